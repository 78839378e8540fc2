#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <ostream>
#include <string>

#include "mlx/mlx.h"
#include "mlx/primitives.h"
#include "runtime/convert.h"
#include "runtime/dispatch.h"
#include "runtime/mlx_patches.h"

namespace mlx_primitives {

/** Whether eval_gpu runs in a simulator instead of on a GPU. Only tests turn this on. */
bool simulating();

/** As long as it exists, this thread builds a graph whose gradients are taken. */
class Differentiating {
 public:
  Differentiating() {
    ++functions;
  }
  ~Differentiating() {
    --functions;
  }
  Differentiating(const Differentiating&) = delete;
  Differentiating& operator=(const Differentiating&) = delete;

  /** Whether ops should build the nodes whose intermediate results the gradients need too. */
  static bool now() {
    return functions > 0;
  }

 private:
  static thread_local int functions;
};

/** The cost of an evaluation on a GPU. */
struct Cost {
  uint32_t dispatches;
  size_t device_bytes; // the least that it can read and write
};

/** A call of a CPU kernel, which the stream's thread runs. */
using CpuCall = std::function<void()>;

/**
 * Base of every primitive in this crate. An op describes its inputs and its work, and this class
 * runs it. Invariant: outputs are row-contiguous once evaluated, unless the op lays them out.
 */
class FusedPrimitive : public mx::Primitive {
 public:
  using mx::Primitive::Primitive;

  void eval_cpu(const Arrays& inputs, Arrays& outputs) final;
  void eval_gpu(const Arrays& inputs, Arrays& outputs) final;

  /**
   * The dispatches on a GPU, in order, for threadgroups of at most `max_threads`. Arrays that are
   * not evaluated yet have only shapes and types.
   */
  virtual std::vector<Dispatch> dispatches(
      const Arrays& inputs, const Arrays& outputs, uint32_t max_threads) = 0;

  /**
   * How many of the first outputs usually take over the memory of the input with the same index,
   * because the op changes only a small part of that input. Caches of keys and values are examples.
   */
  virtual size_t updates() const {
    return 0;
  }

  /**
   * New outputs for these inputs, with a term added to the first output. The term has that output's
   * shape and type, and the number of dispatches does not grow. Empty if the kernels cannot do
   * that.
   */
  virtual Arrays plus(const Arrays&, const mx::array&) {
    return {};
  }
  /** Whether the kernels add the last input to the first output. */
  virtual bool adds() const {
    return false;
  }

  /** Whether there is a kernel for these inputs only for CPUs. */
  virtual bool cpu_alone(const Arrays&) const {
    return false;
  }

  /**
   * Counts the dispatches (one call for a kernel that only CPUs have), the bytes of each whole
   * input and output, and the bytes of each temporary twice.
   */
  virtual Cost cost(const Arrays& inputs, const Arrays& outputs);

 protected:
  /** Whether an output may have other strides than a row-contiguous array; lay_out sets them. */
  virtual bool lays_out(const mx::array&) const {
    return false;
  }
  virtual void lay_out(mx::array&) const {}

  /**
   * Whether the kernels read this input with its strides. All other inputs must be row-contiguous.
   */
  virtual bool takes_strides(size_t) const {
    return false;
  }

  /**
   * The inputs whose memory the first output may take over if nothing else reads them, best first.
   */
  virtual std::vector<size_t> donors(const Arrays&) const {
    return {};
  }

  /** Whether the first output has the memory of `x`, or may get it if it is not evaluated yet. */
  bool in_place(const mx::array& x, const mx::array& out) const;

  /**
   * The call of the CPU kernel. The arrays are evaluated, and exist until the call has returned.
   */
  virtual CpuCall cpu_call(const Arrays& inputs, Arrays& outputs) const = 0;

  /** The call of a primitive that is a stage of this one. */
  static CpuCall stage_call(const FusedPrimitive& stage, const Arrays& inputs, Arrays& outputs) {
    return stage.cpu_call(inputs, outputs);
  }

  /** Queues the call on the stream's thread. */
  virtual void queue_on_cpu(const Arrays& inputs, Arrays& outputs);

  /** The outputs as a graph of MLX's own ops, on this primitive's stream. */
  virtual Arrays compose(const Arrays& inputs) = 0;

  /** By default, there is one output with the shape of the first input. */
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override {
    return {inputs[0].shape()};
  }

 private:
  /** Checks layouts and allocates the outputs; returns false if there is nothing to compute. */
  bool prepare(const Arrays& inputs, Arrays& outputs) const;

  friend Arrays composition(const mx::array& ours);
  friend bool known_row_contiguous(const mx::array& x);
};

/** The outputs of one of our lazy nodes as a graph of MLX's own ops. */
Arrays composition(const mx::array& ours);

/** Declare the overrides of a primitive that has separate derivatives or a separate vmap. */
#define VJP_METHOD                     \
  Arrays vjp(                          \
      const Arrays& primals,           \
      const Arrays& cotangents,        \
      const std::vector<int>& argnums, \
      const Arrays& outputs) override;
#define VMAP_METHOD                                                                            \
  std::pair<Arrays, std::vector<int>> vmap(const Arrays& inputs, const std::vector<int>& axes) \
      override;
#define DERIVATIVE_METHODS                                                                   \
  Arrays jvp(const Arrays& primals, const Arrays& tangents, const std::vector<int>& argnums) \
      override;                                                                              \
  VJP_METHOD                                                                                 \
  VMAP_METHOD

/** A primitive with the derivatives and vmap of its composition, unless it overrides them. */
class ComposedPrimitive : public FusedPrimitive {
 public:
  using FusedPrimitive::FusedPrimitive;

  DERIVATIVE_METHODS

 protected:
  /** The graph that is differentiated to get the derivatives of this primitive. */
  virtual Arrays differentiable(const Arrays& inputs) {
    return compose(inputs);
  }

 private:
  /** `differentiable` as a function of the inputs that argnums names. */
  auto partial(const Arrays& inputs, const std::vector<int>& argnums);
};

/**
 * The type in which a product of type `dtype` reads weights, or the scales of packed weights, of
 * type `own`. CPU kernels convert 16-bit types to float32 while they read them. For other kernels,
 * the arrays are converted first.
 */
mx::Dtype read_as(mx::Dtype own, mx::Dtype dtype, mx::Stream s);

/** Throws if a GPU evaluates a node that has a kernel only for CPUs. */
[[noreturn]] void refuse_elsewhere(const char* op);

/** A composed primitive that has a kernel only for CPUs. */
class CpuPrimitive : public ComposedPrimitive {
 public:
  using ComposedPrimitive::ComposedPrimitive;

  bool cpu_alone(const Arrays&) const override {
    return true;
  }
  std::vector<Dispatch> dispatches(const Arrays&, const Arrays&, uint32_t) override {
    refuse_elsewhere(name());
  }
};

/** The methods that every primitive with a kernel only for CPUs overrides. */
#define CPU_METHODS(TYPE)                                        \
  Arrays compose(const Arrays&) override;                        \
  const char* name() const override {                            \
    return #TYPE;                                                \
  }                                                              \
  bool is_equivalent(const mx::Primitive& other) const override; \
                                                                 \
 protected:                                                      \
  CpuCall cpu_call(const Arrays&, Arrays&) const override;       \
                                                                 \
 public:

/** The methods that every composed primitive overrides. */
#define COMPOSED_METHODS(TYPE)                                                       \
  std::vector<Dispatch> dispatches(const Arrays&, const Arrays&, uint32_t) override; \
  CPU_METHODS(TYPE)

/** The methods of a primitive with hand-written derivatives. */
#define PRIMITIVE_METHODS(TYPE) \
  COMPOSED_METHODS(TYPE)        \
  DERIVATIVE_METHODS

/** Declares that the first output may take over the memory of the input `INDEX`. */
#define DONATES(INDEX)                                       \
  std::vector<size_t> donors(const Arrays&) const override { \
    return {INDEX};                                          \
  }

/** A streamable part of an error's text. Its value must outlive it. */
class Part {
 public:
  explicit Part(const char* text) : value_(text), write_(write_text) {}
  template <typename T>
  explicit Part(const T& value) : value_(&value), write_(write_value<T>) {}

  void write(std::ostream& to) const {
    write_(to, value_);
  }

 private:
  static void write_text(std::ostream& to, const void* text) {
    to << static_cast<const char*>(text);
  }
  template <typename T>
  static void write_value(std::ostream& to, const void* value) {
    to << *static_cast<const T*>(value);
  }

  const void* value_;
  void (*write_)(std::ostream& to, const void* value);
};

/** Throws invalid_argument "[op] expected ..., got ...". */
[[noreturn]] void refuse_parts(const char* op, std::initializer_list<Part> parts);

/** Throws like `refuse_parts`, so that one function builds the texts of all errors. */
template <typename... Parts>
[[noreturn]] void refuse(const char* op, const Parts&... parts) {
  refuse_parts(op, {Part(parts)...});
}

/** Throws for dtypes that the kernels do not support. */
void require_kernel_dtype(const char* op, mx::Dtype dtype);

/** Throws for rank 0 and for an empty last axis. */
void require_last_axis(const char* op, const mx::array& x);

/** Whether x will be row-contiguous once evaluated. */
bool known_row_contiguous(const mx::array& x);

/** x if it is sure to be row-contiguous once evaluated, else a node that copies it if needed. */
mx::array row_contiguous(const mx::array& x, mx::Stream s);

/** Calls MLX's allocator and throws if it returns null because memory ran out. */
Memory allocate(size_t bytes);

/** Allocates a new buffer for `out`; a large one begins at a page boundary. */
void allocate(mx::array& out);

/**
 * x with the vmapped axis in front. An unmapped input (axis -1) is broadcast to `size` entries
 * there.
 */
mx::array batch_first(const mx::array& x, int axis, int size, mx::Stream s);

/** The results of `run` for each entry of the vmapped axes, stacked along axis 0. */
mx::array entry_by_entry(
    const Arrays& inputs,
    const std::vector<int>& axes,
    const std::function<mx::array(const Arrays&)>& run,
    mx::Stream s);

/** A multiplier for a kernel: rounded to the type of the array that it multiplies. */
float rounded(float value, mx::Dtype dtype);

/** The length of the vmapped axis. */
int batch_size(const Arrays& inputs, const std::vector<int>& axes);

} // namespace mlx_primitives
