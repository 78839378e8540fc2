// Asserts the sizes and offsets of the structs that C++ passes to the CPU kernels.
// crates/kernels/src/c_api.rs asserts the same numbers. Only kernels.h includes this file, at its
// end.
#pragma once

#include <cstddef>

namespace mlx_primitives::cpu {

#define OFFSET(TYPE, FIELD, BYTES) static_assert(offsetof(TYPE, FIELD) == (BYTES))
static_assert(sizeof(AffineShape) == 32 && sizeof(View) == 40 && sizeof(AttentionCall) == 432);
OFFSET(AttentionCall, scale, 4);
OFFSET(AttentionCall, batch, 16);
OFFSET(AttentionCall, q, 96);
OFFSET(AttentionCall, mask, 376);
OFFSET(AttentionCall, out, 424);
static_assert(sizeof(AttentionGradCall) == 512 && sizeof(CrossEntropyCall) == 72);
OFFSET(AttentionGradCall, cotangent, 432);
OFFSET(AttentionGradCall, dq, 472);
OFFSET(AttentionGradCall, dsinks, 504);
OFFSET(CrossEntropyCall, ignored, 4);
OFFSET(CrossEntropyCall, smoothing, 8);
OFFSET(CrossEntropyCall, rows, 16);
OFFSET(CrossEntropyCall, x, 32);
OFFSET(CrossEntropyCall, out, 64);
OFFSET(LinearCall, activation, 4);
OFFSET(LinearCall, of_w, 6);
OFFSET(LinearCall, batch, 8);
OFFSET(LinearCall, x, 40);
OFFSET(LinearCall, out, 72);
static_assert(sizeof(LinearCall) == 80 && sizeof(Weights) == 32 && sizeof(LoraCall) == 112);
OFFSET(LoraCall, of_scales, 3);
OFFSET(LoraCall, bits, 4);
OFFSET(LoraCall, weights, 40);
OFFSET(LoraCall, low, 72);
OFFSET(LoraCall, out, 104);
static_assert(sizeof(MaskedSoftmaxShape) == 40 && sizeof(MaskedSoftmaxCall) == 192);
OFFSET(MaskedSoftmaxShape, causal, 24);
OFFSET(MaskedSoftmaxShape, window, 32);
OFFSET(MaskedSoftmaxCall, shape, 8);
OFFSET(MaskedSoftmaxCall, mask_strides, 64);
OFFSET(MaskedSoftmaxCall, mask_shape, 128);
OFFSET(MaskedSoftmaxCall, out, 184);
static_assert(sizeof(NormGrad) == 80 && sizeof(ResidualNorm) == 72 && sizeof(TakenRows) == 24);
OFFSET(NormGrad, rows, 56);
OFFSET(NormGrad, centered, 76);
OFFSET(NormGrad, affine, 77);
static_assert(sizeof(RopeAppendCall) == 168 && sizeof(QuantizeShape) == 24);
static_assert(sizeof(QuantizedMatmulCall) == 96 && sizeof(QuantizedTransposedCall) == 88);
OFFSET(QuantizedMatmulCall, bits, 4);
OFFSET(QuantizedMatmulCall, of_scales, 13);
OFFSET(QuantizedMatmulCall, group, 16);
OFFSET(QuantizedMatmulCall, x, 40);
OFFSET(QuantizedMatmulCall, out, 88);
OFFSET(QuantizedTransposedCall, bits, 4);
OFFSET(QuantizedTransposedCall, weights, 40);
OFFSET(QuantizedTransposedCall, out, 80);
OFFSET(ResidualNorm, rows, 48);
OFFSET(ResidualNorm, eps, 64);
OFFSET(ResidualNorm, centered, 68);
static_assert(sizeof(RopeShape) == 48 && sizeof(RopeCall) == 96 && sizeof(AppendShape) == 72);
OFFSET(RopeShape, traditional, 40);
OFFSET(RopeShape, scale, 44);
OFFSET(RopeCall, shape, 8);
OFFSET(RopeCall, freqs, 56);
OFFSET(RopeCall, out, 88);
OFFSET(AppendShape, forward, 57);
OFFSET(AppendShape, multiplier, 64);
OFFSET(RopeAppendCall, freqs, 80);
OFFSET(RopeAppendCall, slots, 104);
OFFSET(RopeAppendCall, heads, 144);
#undef OFFSET

} // namespace mlx_primitives::cpu
