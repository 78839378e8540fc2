#pragma once

#include <initializer_list>
#include <sstream>
#include <stdexcept>
#include <string>

#include "mlx/mlx.h"
#include "mlx/primitives.h"

namespace mlx_primitives {

namespace mx = mlx::core;

/** Whether eval_gpu runs here without a GPU, in a simulator: in tests, and only if asked to. */
bool simulating();

/** What an evaluation on a GPU takes. */
struct Cost {
  uint32_t dispatches;
  size_t device_bytes; // least to read and write
};

/** Base of every primitive here. Invariant: outputs are row-contiguous once evaluated. */
class FusedPrimitive : public mx::Primitive {
 public:
  using mx::Primitive::Primitive;

  /** Runs run_on_cpu, or what a GPU would run if that is simulated. */
  void eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) final;

  /** One dispatch that reads the inputs and writes the outputs whole, unless overridden. */
  virtual Cost cost(
      const std::vector<mx::array>& inputs, const std::vector<mx::array>& outputs) const;

 protected:
  virtual void run_on_cpu(
      const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) = 0;

  /** The outputs as a graph of MLX's own ops, on this primitive's stream. */
  virtual std::vector<mx::array> compose(const std::vector<mx::array>& inputs) = 0;

  friend std::vector<mx::array> composition(const mx::array& ours);
};

/** The same values as a lazy node of ours, as a graph of MLX's own ops. */
std::vector<mx::array> composition(const mx::array& ours);

/** A primitive whose derivatives and vmap are those of its composition, unless it overrides them.
 */
class ComposedPrimitive : public FusedPrimitive {
 public:
  using FusedPrimitive::FusedPrimitive;

  std::vector<mx::array> jvp(
      const std::vector<mx::array>& primals,
      const std::vector<mx::array>& tangents,
      const std::vector<int>& argnums) override;
  std::vector<mx::array> vjp(
      const std::vector<mx::array>& primals,
      const std::vector<mx::array>& cotangents,
      const std::vector<int>& argnums,
      const std::vector<mx::array>& outputs) override;
  std::pair<std::vector<mx::array>, std::vector<int>> vmap(
      const std::vector<mx::array>& inputs, const std::vector<int>& axes) override;

 private:
  /** compose as a function of the inputs that argnums name. */
  auto partial(const std::vector<mx::array>& inputs, const std::vector<int>& argnums);
};

/** The methods that every composed primitive overrides. */
#define COMPOSED_METHODS(TYPE)                                                      \
  void run_on_cpu(const std::vector<mx::array>&, std::vector<mx::array>&) override; \
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override;   \
  std::vector<mx::array> compose(const std::vector<mx::array>&) override;           \
  const char* name() const override {                                               \
    return #TYPE;                                                                   \
  }                                                                                 \
  bool is_equivalent(const mx::Primitive& other) const override;                    \
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;

/** The methods of a primitive that has derivatives of its own. */
#define PRIMITIVE_METHODS(TYPE)                             \
  COMPOSED_METHODS(TYPE)                                    \
  std::vector<mx::array> jvp(                               \
      const std::vector<mx::array>& primals,                \
      const std::vector<mx::array>& tangents,               \
      const std::vector<int>& argnums) override;            \
  std::vector<mx::array> vjp(                               \
      const std::vector<mx::array>& primals,                \
      const std::vector<mx::array>& cotangents,             \
      const std::vector<int>& argnums,                      \
      const std::vector<mx::array>& outputs) override;      \
  std::pair<std::vector<mx::array>, std::vector<int>> vmap( \
      const std::vector<mx::array>& inputs, const std::vector<int>& axes) override;

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

/** Throws if an evaluated input does not have the layout that row_contiguous promises. */
void require_row_contiguous(const char* op, const mx::array& x);

/** MLX's allocator, which returns null where there is no memory, as an exception. */
mx::allocator::Data allocate(size_t bytes);

/** Gives out a buffer of its own; a large one begins at a page. */
void allocate(mx::array& out);

/** Gives out the buffer of x if nothing else will read it, else a new one. */
void donate_or_allocate(const mx::array& x, mx::array& out);

/** Gives out the buffer of the first input that nothing else will read, else a new one. */
void donate_one_or_allocate(const std::vector<mx::array>& inputs, mx::array& out);

/** x with the vmapped axis in front; unmapped inputs (axis -1) are broadcast to `size` there. */
mx::array batch_first(const mx::array& x, int axis, int size, mx::Stream s);

/** The extent of the vmapped axis. */
int batch_size(const std::vector<mx::array>& inputs, const std::vector<int>& axes);

} // namespace mlx_primitives
