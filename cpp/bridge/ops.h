// The C++ side of the ops in src/ffi/. It only converts types.
#pragma once

#include "mlx-primitives/src/ffi/mod.rs.h"
#include "ops/quantized_matmul.h"
#include "ops/reduce.h"

namespace mlx_primitives::bridge {

enum class ActivationKind : uint8_t;
struct AppendLayout;
struct AppendRotation;
struct AttentionRules;
struct QuantizedLayout;
struct QuantizedSteps;

Handle activation(ActivationKind kind, const MlxArray& x);
Handle activation_of_two(ActivationKind kind, const MlxArray& a, const MlxArray& b);
Handle affine(const MlxArray& x, const MlxArray& scale, const MlxArray& shift);
Handle attention(
    const MlxArray& q,
    const MlxArray& k,
    const MlxArray& v,
    const AttentionRules& rules,
    const MlxArray* mask,
    const MlxArray* sinks);
Handle attention_quantized(
    const MlxArray& q,
    const ArrayList& k,
    const ArrayList& v,
    int32_t bits,
    int32_t group_size,
    const AttentionRules& rules,
    const MlxArray* mask,
    const MlxArray* sinks);
ListHandle dequantizing_composition(const MlxArray& array);
/** `ignored` is the class to ignore. It is used only if `ignores` is true. */
Handle cross_entropy(
    const MlxArray& x, const MlxArray& targets, float smoothing, bool ignores, int32_t ignored);
Handle layer_norm(const MlxArray& x, const MlxArray* weight, const MlxArray* bias, float eps);
Handle builtin_layer_norm(
    const MlxArray& x, const MlxArray* weight, const MlxArray* bias, float eps);
Handle linear(
    const MlxArray& x,
    const MlxArray& w,
    const MlxArray* bias,
    ActivationKind activation,
    const MlxArray* residual);
/** Returns null if no kernel supports these inputs. */
Handle gated_linear(const ArrayList& inputs, float eps);
/** Sets the `RowOrder` of the ops that this thread builds, and returns the previous one. */
uint8_t set_row_order(uint8_t order);
Handle matmul(const MlxArray& a, const MlxArray& b, bool transposed);
Handle product(const MlxArray& a, const MlxArray& b);
Handle logsumexp(const MlxArray& x, bool keepdims);
Handle log_softmax(const MlxArray& x);
Handle lora_linear(
    const MlxArray& x,
    const ArrayList& base,
    const QuantizedLayout* layout,
    const MlxArray& a,
    const MlxArray& b,
    float scale);
/** `mask` may be null; the window is used only if `sliding` is true. */
Handle masked_softmax(
    const MlxArray& x,
    float scale,
    const MlxArray* mask,
    bool causal,
    bool sliding,
    int32_t window);
ListHandle quantize(const MlxArray& x, int32_t group_size, int32_t bits);
Handle dequantize(
    const MlxArray& packed,
    const MlxArray& scales,
    const MlxArray& biases,
    int32_t group_size,
    int32_t bits);
Handle dequantize_rows(
    const MlxArray& packed,
    const MlxArray& scales,
    const MlxArray& biases,
    const MlxArray& ids,
    int32_t group_size,
    int32_t bits);
void check_quantized(const ArrayList& weight, const QuantizedLayout& layout);
Handle quantized_matmul(
    const MlxArray& x,
    const ArrayList& weights,
    const QuantizedLayout& layout,
    const QuantizedSteps& steps,
    const MlxArray* norm,
    const MlxArray* bias,
    const MlxArray* residual);
ListHandle pack_matrix(const MlxArray& w, const QuantizedLayout& layout);
Handle unpack_matrix(const ArrayList& weight, const QuantizedLayout& layout, Dtype dtype);
Handle reduction(const MlxArray& x, ReductionKind kind, bool all, bool keepdims);
ListHandle rms_norm_residual(
    const MlxArray& x, const MlxArray& residual, const MlxArray* weight, float eps);
ListHandle layer_norm_residual(
    const MlxArray& x,
    const MlxArray& residual,
    const MlxArray* weight,
    const MlxArray* bias,
    float eps);
Handle rms_norm(const MlxArray& x, const MlxArray* weight, float eps);
Handle builtin_rms_norm(const MlxArray& x, const MlxArray* weight, float eps);
Handle rope(
    const MlxArray& x,
    int32_t dims,
    bool traditional,
    const float* base,
    float scale,
    const MlxArray& offset,
    const MlxArray* freqs);
Handle builtin_rope(
    const MlxArray& x,
    int32_t dims,
    bool traditional,
    const float* base,
    float scale,
    const MlxArray& offset,
    const MlxArray* freqs);
Handle rope_append(
    const MlxArray& state,
    const MlxArray& qkv,
    const AppendLayout& layout,
    const AppendRotation& rotation,
    const MlxArray* freqs,
    const MlxArray& offset,
    const MlxArray* slots);
ListHandle rope_heads(
    const MlxArray& qkv,
    const AppendLayout& layout,
    const AppendRotation& rotation,
    const MlxArray* freqs,
    const MlxArray& offset);
/** The mask and the sinks may be null. */
ListHandle rope_append_attention(
    const MlxArray& state,
    const MlxArray& qkv,
    const AppendLayout& layout,
    const AppendRotation& rotation,
    const MlxArray* freqs,
    const MlxArray& offset,
    const MlxArray* slots,
    int32_t len,
    const AttentionRules& rules,
    const MlxArray* mask,
    const MlxArray* sinks);
Handle softmax(const MlxArray& x);
Handle builtin_softmax(const MlxArray& x, bool precise);

} // namespace mlx_primitives::bridge
