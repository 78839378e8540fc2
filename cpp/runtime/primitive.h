#pragma once

#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>

#include "mlx/mlx.h"
#include "mlx/primitives.h"
#include "runtime/dispatch.h"

namespace mlx_primitives {

/** Whether eval_gpu runs here without a GPU, in a simulator: in tests, and only if asked to. */
bool simulating();

/** What an evaluation on a GPU takes. */
struct Cost {
  uint32_t dispatches;
  size_t device_bytes; // least to read and write
};

/** A call of a CPU kernel, for the stream's thread. */
using CpuCall = std::function<void()>;

/**
 * Base of every primitive here: an op says what it takes and what is to be run, and this class
 * runs it. Invariant: outputs are row-contiguous once evaluated, unless it lays them out itself.
 */
class FusedPrimitive : public mx::Primitive {
 public:
  using mx::Primitive::Primitive;

  void eval_cpu(const Arrays& inputs, Arrays& outputs) final;
  void eval_gpu(const Arrays& inputs, Arrays& outputs) final;

  /**
   * What a GPU runs, in order, for threadgroups of at most `max_threads`. Of arrays that are not
   * evaluated yet only shapes and types are known.
   */
  virtual std::vector<Dispatch> dispatches(
      const Arrays& inputs, const Arrays& outputs, uint32_t max_threads) = 0;

  /** Its dispatches, each input and output whole, and each temporary written and read. */
  virtual Cost cost(const Arrays& inputs, const Arrays& outputs);

 protected:
  /** Whether outputs may have other strides than those of row-contiguous arrays; lay_out sets them.
   */
  virtual bool lays_out() const {
    return false;
  }
  virtual void lay_out(mx::array&) const {}

  /** Whether the kernels read this input by its strides. All others have to be row-contiguous. */
  virtual bool takes_strides(size_t) const {
    return false;
  }

  /** The inputs whose memory the first output takes over if nothing else reads it, best first. */
  virtual std::vector<size_t> donors(const Arrays&) const {
    return {};
  }

  /** Whether the first output has the memory of `x`; before evaluation, whether it may get it. */
  bool in_place(const mx::array& x, const mx::array& out) const;

  /** What a CPU runs. Arrays are evaluated and live until the call has returned. */
  virtual CpuCall cpu_call(const Arrays& inputs, Arrays& outputs) const = 0;

  /** Queues the call on the stream's thread. */
  virtual void queue_on_cpu(const Arrays& inputs, Arrays& outputs);

  /** The outputs as a graph of MLX's own ops, on this primitive's stream. */
  virtual Arrays compose(const Arrays& inputs) = 0;

  /** By default the one output is like the first input. */
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override {
    return {inputs[0].shape()};
  }

 private:
  /** Checks layouts and gives the outputs memory; false if there is nothing to compute. */
  bool prepare(const Arrays& inputs, Arrays& outputs) const;

  friend Arrays composition(const mx::array& ours);
  friend mx::array row_contiguous(const mx::array& x, mx::Stream s);
};

/** The same values as a lazy node of ours, as a graph of MLX's own ops. */
Arrays composition(const mx::array& ours);

/** A primitive whose derivatives and vmap are those of its composition, unless it overrides them.
 */
class ComposedPrimitive : public FusedPrimitive {
 public:
  using FusedPrimitive::FusedPrimitive;

  Arrays jvp(
      const Arrays& primals, const Arrays& tangents, const std::vector<int>& argnums) override;
  Arrays vjp(
      const Arrays& primals,
      const Arrays& cotangents,
      const std::vector<int>& argnums,
      const Arrays& outputs) override;
  std::pair<Arrays, std::vector<int>> vmap(
      const Arrays& inputs, const std::vector<int>& axes) override;

 private:
  /** compose as a function of the inputs that argnums name. */
  auto partial(const Arrays& inputs, const std::vector<int>& argnums);
};

/** The methods that every composed primitive overrides. */
#define COMPOSED_METHODS(TYPE)                                                       \
  std::vector<Dispatch> dispatches(const Arrays&, const Arrays&, uint32_t) override; \
  Arrays compose(const Arrays&) override;                                            \
  const char* name() const override {                                                \
    return #TYPE;                                                                    \
  }                                                                                  \
  bool is_equivalent(const mx::Primitive& other) const override;                     \
                                                                                     \
 protected:                                                                          \
  CpuCall cpu_call(const Arrays&, Arrays&) const override;                           \
                                                                                     \
 public:

/** The methods of a primitive that has derivatives of its own. */
#define PRIMITIVE_METHODS(TYPE)                                                                \
  COMPOSED_METHODS(TYPE)                                                                       \
  Arrays jvp(const Arrays& primals, const Arrays& tangents, const std::vector<int>& argnums)   \
      override;                                                                                \
  Arrays vjp(                                                                                  \
      const Arrays& primals,                                                                   \
      const Arrays& cotangents,                                                                \
      const std::vector<int>& argnums,                                                         \
      const Arrays& outputs) override;                                                         \
  std::pair<Arrays, std::vector<int>> vmap(const Arrays& inputs, const std::vector<int>& axes) \
      override;

/** For a primitive whose one output may take over the memory of its input `INDEX`. */
#define DONATES(INDEX)                                       \
  std::vector<size_t> donors(const Arrays&) const override { \
    return {INDEX};                                          \
  }

/** Throws invalid_argument "[op] expected ..., got ...", built from the streamable parts. */
template <typename... Parts>
[[noreturn]] void refuse(const char* op, const Parts&... parts) {
  std::ostringstream text;
  text << "[" << op << "] ";
  (text << ... << parts);
  throw std::invalid_argument(text.str());
}

/** Refuses dtypes that no kernel is instantiated for. */
void require_kernel_dtype(const char* op, mx::Dtype dtype);

/** Refuses rank 0 and a last axis of no elements. */
void require_last_axis(const char* op, const mx::array& x);

/** x where it is known to be row-contiguous once evaluated, else a node that copies if needed. */
mx::array row_contiguous(const mx::array& x, mx::Stream s);

/** MLX's allocator, which returns null where there is no memory, as an exception. */
mx::allocator::Data allocate(size_t bytes);

/** Gives out a buffer of its own; a large one begins at a page. */
void allocate(mx::array& out);

/** x with the vmapped axis in front; unmapped inputs (axis -1) are broadcast to `size` there. */
mx::array batch_first(const mx::array& x, int axis, int size, mx::Stream s);

/** Multipliers that kernels take: the value as the type of the array that it multiplies holds it.
 */
float rounded(float value, mx::Dtype dtype);

/** The extent of the vmapped axis. */
int batch_size(const Arrays& inputs, const std::vector<int>& axes);

} // namespace mlx_primitives
