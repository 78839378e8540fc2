#pragma once

#include <optional>

#include "runtime/primitive.h"

namespace mlx_primitives {

/**
 * Rotates pairs of the first `dims` features of x [B, ..., T, D] by
 * (t + offset) * scale / freq. Exactly one of base and freqs is given;
 * freqs defaults to base^(2i / dims).
 */
mx::array rope(
    const mx::array& x,
    int dims,
    bool traditional,
    std::optional<float> base,
    float scale,
    const mx::array& offset,
    const std::optional<mx::array>& freqs,
    mx::StreamOrDevice s = {});

/**
 * Inputs: x (row-contiguous, floating, rank >= 3), offset (int32, one element or one per batch
 * entry) and, if explicit, freqs (float32 [dims / 2]).
 */
class Rope : public FusedPrimitive {
 public:
  Rope(mx::Stream stream, int dims, bool traditional, float base, float scale, bool forward)
      : FusedPrimitive(stream),
        dims_(dims),
        traditional_(traditional),
        base_(base),
        scale_(scale),
        forward_(forward) {}

  PRIMITIVE_METHODS(Rope)
  DONATES(0)

 private:
  mx::array apply(const mx::array& x, const Arrays& primals, bool forward);
  static void require_only_x(const std::vector<int>& argnums);
  std::pair<Arrays, std::vector<int>> vmap_freqs(
      const Arrays& inputs, const std::vector<int>& axes, int size);

  int dims_;
  bool traditional_;
  float base_; // unused with explicit freqs
  float scale_;
  bool forward_; // false rotates by the negative angle, for the gradient
};

constexpr uint32_t ROPE_GROUP = 256; // threads; enough to hide latency, small enough to spread

/** Features that are not rotated need threads only if out has a different buffer than x. */
constexpr uint32_t rope_columns(uint32_t features, uint32_t pairs, bool in_place) {
  return in_place ? pairs : pairs + static_cast<uint32_t>(ceil_div(features - 2 * pairs, 2));
}

/**
 * The offset as MLX's op takes it. MLX's GPU kernels read an offset for each batch entry, unless
 * the offset is a scalar: docs/upstream, section 11.
 */
mx::array offset_of_mlx(const mx::array& offset, mx::Stream s);

/** Plans one thread for each point of a box, in groups of at most ROPE_GROUP threads. */
Launch plan_box(
    std::string_view op, std::string kernel, std::array<uint64_t, 3> threads, uint32_t max_threads);

} // namespace mlx_primitives
