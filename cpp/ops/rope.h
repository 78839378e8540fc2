#pragma once

#include <optional>

#include "ops/common.h"

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
 * Inputs: x (row-contiguous, floating, rank >= 3), offset (int32, one element or
 * one a batch entry) and, if explicit, freqs (float32 [dims / 2]).
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

 private:
  mx::array apply(const mx::array& x, const std::vector<mx::array>& primals, bool forward);
  static void require_only_x(const std::vector<int>& argnums);
  std::pair<std::vector<mx::array>, std::vector<int>> vmap_freqs(
      const std::vector<mx::array>& inputs, const std::vector<int>& axes, int size);

  int dims_;
  bool traditional_;
  float base_; // ignored with explicit freqs
  float scale_;
  bool forward_; // false rotates by the negative angle, the gradient
};

} // namespace mlx_primitives
