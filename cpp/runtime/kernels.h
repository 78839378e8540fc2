// Declarations of the CPU kernels, which are Rust functions. crates/kernels/src/c_api.rs defines
// them, and documents the contents of the buffers.
#pragma once

#include <cstdint>

#include "runtime/primitive.h"
#include "runtime/row_order.h"

namespace mlx_primitives::cpu {

using Bytes = const uint8_t*;

enum class Element : uint8_t { f32, f16, bf16 };
enum class Mode : uint8_t { affine, mxfp4, mxfp8, nvfp4, k_quant, plain };

struct AffineShape {
  size_t rows;
  size_t columns;
  size_t scale_columns;
  size_t shift_columns;
};

/** The address of an array's first element, or null, and its strides in elements. */
struct View {
  Bytes data;
  ptrdiff_t strides[4];
};

struct AttentionCall {
  Element element;
  bool causal;
  bool bool_mask;
  RowOrder order;
  float scale;
  float soft_cap;
  uint32_t dropped;
  size_t batch;
  size_t heads;
  size_t kv_heads;
  size_t queries;
  size_t keys;
  size_t dim;
  size_t value_dim;
  size_t window;
  size_t bits; // 0 if keys and values are not quantized
  size_t group;
  View q;
  View k;
  View k_scales;
  View k_biases;
  View v;
  View v_scales;
  View v_biases;
  View mask;
  Bytes sinks;
  uint8_t* out;
};

struct AttentionGradCall {
  AttentionCall forward; // `out` is not used
  View cotangent;
  uint8_t* dq;
  uint8_t* dk; // dk and dv are null if not needed
  uint8_t* dv;
  uint8_t* dmask;  // null unless there is an additive mask
  uint8_t* dsinks; // null if there are no sinks
};

struct CrossEntropyCall {
  Element element;
  bool ignores; // whether rows with the target `ignored` have no loss
  int32_t ignored;
  float smoothing;
  size_t rows;
  size_t classes;
  Bytes x;
  const int32_t* targets;
  float* stats;
  Bytes g; // only for the gradient
  uint8_t* out;
};

/**
 * `batch` matrix products. x is `[m, k]`, or `[k, m]` if `turned`. w is `[n, k]`, or `[k, n]` if
 * `columns`.
 */
struct LinearCall {
  Element element;
  bool w_batched;
  bool columns;
  bool turned;
  uint8_t activation; // as in metal/activation.h
  RowOrder order;
  Element of_w; // not `element` only if that is f32, and w is [n, k] and x is [m, k]
  size_t batch;
  size_t m;
  size_t n;
  size_t k;
  Bytes x;
  Bytes w;
  Bytes bias;
  Bytes residual;
  uint8_t* out;
};

struct Weights {
  Bytes packed;
  Bytes scales;
  Bytes biases;
  size_t columns;
};

struct LowRank {
  Bytes a;
  Bytes b;
  size_t rank;
  float scale;
};

struct LoraCall {
  Element element;
  Mode mode;
  RowOrder order;
  Element of_scales; // as in QuantizedMatmulCall
  uint32_t bits;
  size_t group;
  Bytes x;
  size_t rows;
  size_t axis;
  Weights weights;
  LowRank low;
  uint8_t* out;
};

struct MaskedSoftmaxShape {
  size_t rows;
  size_t queries;
  size_t keys;
  bool causal;
  size_t window; // 0 for no window
};

struct MaskedSoftmaxCall {
  Element element;
  bool additive; // the mask has elements; otherwise bools
  float scale;
  MaskedSoftmaxShape shape;
  size_t mask_dims;
  ptrdiff_t mask_key_stride;
  int64_t mask_strides[8];
  uint32_t mask_shape[8];
  Bytes x;
  Bytes g; // only for the gradient
  Bytes mask;
  uint8_t* out;
};

struct NormGrad {
  Bytes x;
  Bytes weight;
  Bytes g;
  Bytes added;
  uint8_t* of_x;
  uint8_t* of_weight;
  uint8_t* of_bias;
  size_t rows;
  size_t axis;
  float eps;
  bool centered; // layer normalization; otherwise RMS normalization
  bool affine;   // no normalization
};

struct QuantizeShape {
  size_t groups;
  size_t group_size;
  size_t bits;
};

/** The indices of rows to gather from a matrix that has `rows` rows of `columns` groups. */
struct TakenRows {
  const uint32_t* ids;
  size_t rows;
  size_t columns;
};

struct QuantizedMatmulCall {
  Element element;
  Mode mode;
  bool swiglu;
  bool int8;
  uint32_t bits;
  float eps;
  RowOrder order;
  Element of_scales; // of an affine format; not `element` only if that is f32
  bool centered;     // each bias is the scale times minus half of the number of codes
  size_t group;
  size_t rows;
  size_t axis;
  Bytes x;
  Bytes norm;
  Bytes bias;
  Bytes residual;
  const Weights* weights;
  size_t weight_count;
  uint8_t* out;
};

struct QuantizedTransposedCall {
  Element element;
  Mode mode;
  uint32_t bits;
  size_t group;
  Bytes x;
  size_t rows;
  size_t axis;
  Weights weights;
  Bytes residual;
  uint8_t* out;
};

struct ResidualNorm {
  Bytes x;
  Bytes residual;
  Bytes weight;
  Bytes bias;
  uint8_t* sum;
  uint8_t* norm;
  size_t rows;
  size_t axis;
  float eps;
  bool centered; // layer normalization; otherwise RMS normalization
};

struct RopeShape {
  size_t batch;
  size_t heads;
  size_t seq;
  size_t head_dim;
  size_t dims;
  bool traditional;
  bool forward;
  float scale;
};

struct RopeCall {
  Element element;
  float base;
  RopeShape shape;
  const float* freqs; // null, or dims / 2 periods
  const int32_t* offsets;
  size_t offset_count;
  Bytes x;
  uint8_t* out;
};

struct AppendShape {
  size_t batch;
  size_t heads;
  size_t kv_heads;
  size_t time;
  size_t head_dim;
  size_t capacity;
  size_t dims;
  bool traditional;
  bool forward;
  float scale;
  float multiplier;
};

struct RopeAppendCall {
  Element element;
  float base;
  AppendShape shape;
  const float* freqs;
  const int32_t* offsets;
  size_t offset_count;
  const int32_t* slots;
  size_t slot_count;
  Bytes state;
  uint8_t* qkv; // written only in the backward direction
  uint8_t* out;
  uint8_t* heads[3]; // queries, keys, values instead of the state, or null
};

// GCC passes an enumeration of one byte without its extension to 32 bits, and rustc relies on the
// extension. So these functions take such an enumeration by reference. Integers are extended.
// clang-format off
extern "C" {
void mlxp_cpu_activation(const Element&, uint8_t kind, Bytes x, uint8_t* out, size_t size);
void mlxp_cpu_combination(
    const Element&, uint8_t kind, Bytes a, Bytes b, uint8_t* out, size_t size);
void mlxp_cpu_combination_grad(
    const Element&, uint8_t kind, Bytes a, Bytes b, Bytes g, uint8_t* of_a, uint8_t* of_b,
    size_t size);
void mlxp_cpu_affine(
    const Element&, Bytes x, Bytes scale, Bytes shift, uint8_t* out, const AffineShape&);
void mlxp_cpu_attention(const AttentionCall&);
void mlxp_cpu_attention_grad(const AttentionGradCall&);
void mlxp_cpu_copy(
    Bytes x, uint8_t* out, const int32_t* shape, const int64_t* strides, size_t dims, size_t bytes);
void mlxp_cpu_cross_entropy(const CrossEntropyCall&);
void mlxp_cpu_cross_entropy_grad(const CrossEntropyCall&);
void mlxp_cpu_layer_norm(
    const Element&, Bytes x, Bytes weight, Bytes bias, uint8_t* out, size_t rows, size_t axis,
    float eps);
void mlxp_cpu_linear(const LinearCall&);
void mlxp_cpu_logsumexp(const Element&, Bytes x, uint8_t* out, size_t rows, size_t axis);
void mlxp_cpu_log_softmax(const Element&, Bytes x, uint8_t* out, size_t rows, size_t axis);
void mlxp_cpu_logsumexp_grad(
    const Element&, Bytes x, Bytes g, uint8_t* out, size_t rows, size_t axis, bool subtracted);
void mlxp_cpu_lora(const LoraCall&);
void mlxp_cpu_masked_softmax(const MaskedSoftmaxCall&);
void mlxp_cpu_masked_softmax_grad(const MaskedSoftmaxCall&);
void mlxp_cpu_norm_grad(const Element&, const NormGrad&);
void mlxp_cpu_quantize(
    const Element&, Bytes x, uint32_t* packed, uint8_t* scales, uint8_t* biases,
    const QuantizeShape&);
void mlxp_cpu_dequantize(
    const Element&, const uint32_t* packed, Bytes scales, Bytes biases, uint8_t* out,
    const QuantizeShape&);
void mlxp_cpu_dequantize_rows(
    const Element&, const uint32_t* packed, Bytes scales, Bytes biases, const TakenRows&,
    uint8_t* out, const QuantizeShape&);
void mlxp_cpu_quantized_matmul(const QuantizedMatmulCall&);
void mlxp_cpu_quantized_transposed(const QuantizedTransposedCall&);
void mlxp_cpu_reduce(const Element&, uint8_t kind, Bytes x, uint8_t* out, size_t rows, size_t axis);
void mlxp_cpu_reduce_grad(
    const Element&, uint8_t kind, Bytes x, Bytes y, Bytes g, uint8_t* out, size_t rows,
    size_t axis);
void mlxp_cpu_residual_norm(const Element&, const ResidualNorm&);
void mlxp_cpu_rms_norm(
    const Element&, Bytes x, Bytes weight, uint8_t* out, size_t rows, size_t axis, float eps);
void mlxp_cpu_rope(const RopeCall&);
void mlxp_cpu_rope_append(const RopeAppendCall&);
void mlxp_cpu_softmax(const Element&, Bytes x, uint8_t* out, size_t rows, size_t axis);
void mlxp_cpu_take_grad(
    const Element&, Bytes g, const uint32_t* ids, size_t count, uint8_t* out, size_t rows,
    size_t axis);
}
// clang-format on

} // namespace mlx_primitives::cpu

#include "runtime/kernels_layout.h"

namespace mlx_primitives {

inline const uint8_t* bytes(const mx::array& a) {
  return a.data<uint8_t>();
}

inline uint8_t* bytes(mx::array& a) {
  return a.data<uint8_t>();
}

/** The `Element` of an array whose type `require_kernel_dtype` accepts. */
inline cpu::Element element_of(const mx::array& a) {
  return a.dtype() == mx::float32   ? cpu::Element::f32
         : a.dtype() == mx::float16 ? cpu::Element::f16
                                    : cpu::Element::bf16;
}

} // namespace mlx_primitives
