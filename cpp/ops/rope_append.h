#pragma once

#include <optional>

#include "runtime/primitive.h"

namespace mlx_primitives {

/** How a layer's state [batch, rows, head_dim] is divided: queries, keys, values. */
struct StateLayout {
  int heads;
  int kv_heads;
  int head_dim;
  int capacity; // positions that keys and values have room for

  bool operator==(const StateLayout&) const = default;
};

/** What queries and keys are turned by; exactly one of base and freqs is given. */
struct Rotation {
  int dims;
  bool traditional;
  std::optional<float> base;
  float scale;
  float multiplier; // of the features that turn, before they do
  std::optional<mx::array> freqs;
};

/**
 * The state with the queries and keys of qkv [batch, time, (heads + 2 * kv_heads) * head_dim],
 * rotated from position offset on, and its values. Keys and values go to the positions from slots
 * on, or from offset if there are none. A step too long for the query area leaves queries out.
 */
mx::array rope_append(
    const mx::array& state,
    const mx::array& qkv,
    const StateLayout& layout,
    const Rotation& rotation,
    const mx::array& offset,
    const std::optional<mx::array>& slots,
    mx::StreamOrDevice s = {});

/**
 * Inputs: state and qkv (row-contiguous, of one floating type), offset and slots (int32, one
 * element or one a batch entry) and, if explicit, freqs (float32 [dims / 2]).
 */
class RopeAppend : public ComposedPrimitive {
 public:
  RopeAppend(mx::Stream stream, const StateLayout& layout, const Rotation& rotation)
      : ComposedPrimitive(stream),
        layout_(layout),
        dims_(rotation.dims),
        traditional_(rotation.traditional),
        base_(rotation.base.value_or(1.0f)),
        scale_(rotation.scale),
        multiplier_(rotation.multiplier) {}

  COMPOSED_METHODS(RopeAppend)
  DONATES(0)

  std::pair<Arrays, std::vector<int>> vmap(
      const Arrays& inputs, const std::vector<int>& axes) override;

  /** The step's own rows: the state stays where it is. */
  Cost cost(const Arrays& inputs, const Arrays& outputs) override;

 private:
  mx::array keys_and_values(
      const mx::array& state, const mx::array& stored, const mx::array& slots);

  StateLayout layout_;
  int dims_;
  bool traditional_;
  float base_; // ignored with explicit freqs
  float scale_;
  float multiplier_;
};

} // namespace mlx_primitives
