#pragma once

#include "runtime/primitive.h"

namespace mlx_primitives {

/**
 * Packs groups of the last axis of x as codes of `bits` bits in uint32 words, with a scale and a
 * bias for each group: MLX's affine layout.
 */
Arrays quantize(const mx::array& x, int group_size, int bits, mx::StreamOrDevice s = {});

/** codes * scales + biases, in the type of the scales. */
mx::array dequantize(
    const mx::array& packed,
    const mx::array& scales,
    const mx::array& biases,
    int group_size,
    int bits,
    mx::StreamOrDevice s = {});

/**
 * Rows of the matrix that `dequantize` returns: [..., k] for uint32 `ids` [...]. An id beyond the
 * matrix returns its last row.
 */
mx::array dequantize_rows(
    const mx::array& packed,
    const mx::array& scales,
    const mx::array& biases,
    const mx::array& ids,
    int group_size,
    int bits,
    mx::StreamOrDevice s = {});

/** Input: x (row-contiguous, floating). Outputs: codes, scales, biases. */
class Quantize : public ComposedPrimitive {
 public:
  Quantize(mx::Stream stream, int group_size, int bits)
      : ComposedPrimitive(stream), group_size_(group_size), bits_(bits) {}

  COMPOSED_METHODS(Quantize)
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override;

  VMAP_METHOD

 private:
  int group_size_;
  int bits_;
};

/**
 * Inputs: codes (uint32), scales, biases (of one floating type), and optionally the rows to take
 * (uint32), all row-contiguous.
 */
class Dequantize : public ComposedPrimitive {
 public:
  Dequantize(mx::Stream stream, int group_size, int bits)
      : ComposedPrimitive(stream), group_size_(group_size), bits_(bits) {}

  COMPOSED_METHODS(Dequantize)
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override;

  VJP_METHOD
  VMAP_METHOD

 private:
  int group_size_;
  int bits_;
};

} // namespace mlx_primitives
