#include "bridge/ops.h"

#include <stdexcept>

#include "mlx-primitives/src/ffi/ops.rs.h"
#include "ops/activation.h"
#include "ops/attention.h"
#include "ops/cross_entropy.h"
#include "ops/layer_norm.h"
#include "ops/linear.h"
#include "ops/logsumexp.h"
#include "ops/lora.h"
#include "ops/masked_softmax.h"
#include "ops/quantize.h"
#include "ops/quantized_matmul.h"
#include "ops/residual_norm.h"
#include "ops/rms_norm.h"
#include "ops/rope.h"
#include "ops/rope_append.h"
#include "ops/softmax.h"

namespace mlx_primitives::bridge {

static_assert(
    static_cast<unsigned>(ActivationKind::None) == ACTIVATION_NONE &&
    static_cast<unsigned>(ActivationKind::Relu) == ACTIVATION_RELU &&
    static_cast<unsigned>(ActivationKind::Gelu) == ACTIVATION_GELU &&
    static_cast<unsigned>(ActivationKind::GeluTanh) == ACTIVATION_GELU_TANH &&
    static_cast<unsigned>(ActivationKind::Silu) == ACTIVATION_SILU &&
    static_cast<unsigned>(ActivationKind::Swiglu) == ACTIVATION_SWIGLU &&
    static_cast<unsigned>(ActivationKind::Geglu) == ACTIVATION_GEGLU &&
    static_cast<unsigned>(ActivationKind::GegluTanh) == ACTIVATION_GEGLU_TANH &&
    static_cast<unsigned>(ActivationKind::AddRelu) == ACTIVATION_ADD_RELU &&
    static_cast<unsigned>(ActivationKind::MulRelu) == ACTIVATION_MUL_RELU);

namespace {

mlx_primitives::ActivationKind to_kind(ActivationKind kind) {
  return static_cast<mlx_primitives::ActivationKind>(kind);
}

} // namespace

Handle activation(ActivationKind kind, const MlxArray& x) {
  return handle(mlx_primitives::activation(to_kind(kind), x, here()));
}

Handle activation_of_two(ActivationKind kind, const MlxArray& a, const MlxArray& b) {
  return handle(mlx_primitives::activation(to_kind(kind), a, b, here()));
}

Handle affine(const MlxArray& x, const MlxArray& scale, const MlxArray& shift) {
  return handle(mlx_primitives::affine(x, scale, shift, here()));
}

namespace {

mlx_primitives::AttentionRules to_rules(const AttentionRules& rules) {
  return {rules.scale, rules.causal, rules.window, rules.soft_cap, rules.dropped};
}

QuantizedRows to_rows(const ArrayList& parts) {
  if (parts.size() != 3) {
    throw std::invalid_argument("[attention] expected packed numbers, scales and biases");
  }
  return {parts[0], parts[1], parts[2]};
}

} // namespace

Handle attention(
    const MlxArray& q,
    const MlxArray& k,
    const MlxArray& v,
    const AttentionRules& rules,
    const MlxArray* mask,
    const MlxArray* sinks) {
  return handle(
      mlx_primitives::attention(q, k, v, to_rules(rules), optional(mask), optional(sinks), here()));
}

Handle attention_quantized(
    const MlxArray& q,
    const ArrayList& k,
    const ArrayList& v,
    int32_t bits,
    int32_t group_size,
    const AttentionRules& rules,
    const MlxArray* mask,
    const MlxArray* sinks) {
  return handle(mlx_primitives::attention_quantized(
      q,
      to_rows(k),
      to_rows(v),
      bits,
      group_size,
      to_rules(rules),
      optional(mask),
      optional(sinks),
      here()));
}

ListHandle dequantizing_composition(const MlxArray& array) {
  return handle(mlx_primitives::dequantizing_composition(array));
}

Handle cross_entropy(
    const MlxArray& x, const MlxArray& targets, float smoothing, bool ignores, int32_t ignored) {
  auto without = ignores ? std::optional<int>(ignored) : std::nullopt;
  return handle(mlx_primitives::cross_entropy(x, targets, smoothing, without, here()));
}

Handle layer_norm(const MlxArray& x, const MlxArray* weight, const MlxArray* bias, float eps) {
  return handle(mlx_primitives::layer_norm(x, optional(weight), optional(bias), eps, here()));
}

Handle builtin_layer_norm(
    const MlxArray& x, const MlxArray* weight, const MlxArray* bias, float eps) {
  return handle(mx::fast::layer_norm(x, optional(weight), optional(bias), eps, here()));
}

Handle linear(
    const MlxArray& x,
    const MlxArray& w,
    const MlxArray* bias,
    ActivationKind activation,
    const MlxArray* residual) {
  auto kind = static_cast<mlx_primitives::ActivationKind>(activation);
  return handle(mlx_primitives::linear(x, w, optional(bias), kind, optional(residual), here()));
}

Handle gated_linear(const ArrayList& inputs, float eps) {
  auto found = mlx_primitives::gated_linear(inputs, eps, here());
  return found ? handle(*std::move(found)) : nullptr;
}

uint8_t set_row_order(uint8_t order) {
  return static_cast<uint8_t>(std::exchange(row_order(), static_cast<RowOrder>(order)));
}

Handle matmul(const MlxArray& a, const MlxArray& b, bool transposed) {
  return handle(mlx_primitives::matmul(a, b, transposed, here()));
}

Handle product(const MlxArray& a, const MlxArray& b) {
  return handle(mlx_primitives::product(a, b, false, here()));
}

Handle logsumexp(const MlxArray& x, bool keepdims) {
  return handle(mlx_primitives::logsumexp(x, keepdims, here()));
}

Handle log_softmax(const MlxArray& x) {
  return handle(mlx_primitives::log_softmax(x, here()));
}

Handle lora_linear(
    const MlxArray& x,
    const ArrayList& base,
    const QuantizedLayout* layout,
    const MlxArray& a,
    const MlxArray& b,
    float scale) {
  LoraBase matrix{base, std::nullopt};
  if (layout) {
    matrix.format = QuantizedFormat{layout->group_size, layout->bits, layout->mode};
  }
  return handle(mlx_primitives::lora_linear(x, matrix, a, b, scale, here()));
}

Handle masked_softmax(
    const MlxArray& x,
    float scale,
    const MlxArray* mask,
    bool causal,
    bool sliding,
    int32_t window) {
  auto keys = sliding ? std::optional<int>(window) : std::nullopt;
  return handle(mlx_primitives::masked_softmax(x, scale, optional(mask), causal, keys, here()));
}

ListHandle quantize(const MlxArray& x, int32_t group_size, int32_t bits) {
  return handle(mlx_primitives::quantize(x, group_size, bits, here()));
}

Handle dequantize(
    const MlxArray& packed,
    const MlxArray& scales,
    const MlxArray& biases,
    int32_t group_size,
    int32_t bits) {
  return handle(mlx_primitives::dequantize(packed, scales, biases, group_size, bits, here()));
}

Handle dequantize_rows(
    const MlxArray& packed,
    const MlxArray& scales,
    const MlxArray& biases,
    const MlxArray& ids,
    int32_t group_size,
    int32_t bits) {
  return handle(
      mlx_primitives::dequantize_rows(packed, scales, biases, ids, group_size, bits, here()));
}

namespace {
QuantizedFormat format_of(const QuantizedLayout& layout) {
  return {layout.group_size, layout.bits, layout.mode};
}

/**
 * Makes weights from a list of arrays. Each weight takes its packed array, its scales and, if
 * affine, its biases.
 */
std::vector<QuantizedWeight> weights_of(const ArrayList& arrays, const QuantizedLayout& layout) {
  std::vector<QuantizedWeight> weights;
  bool affine = format_of(layout).affine();
  for (size_t i = 0; i + 1 < arrays.size(); i += affine ? 3 : 2) {
    auto biases = affine ? std::optional(arrays.at(i + 2)) : std::nullopt;
    weights.push_back({arrays[i], arrays[i + 1], biases});
  }
  return weights;
}
} // namespace

void check_quantized(const ArrayList& weight, const QuantizedLayout& layout) {
  require_quantized("quantized_weight", weights_of(weight, layout).at(0), format_of(layout));
}

Handle quantized_matmul(
    const MlxArray& x,
    const ArrayList& weights,
    const QuantizedLayout& layout,
    const QuantizedSteps& steps,
    const MlxArray* norm,
    const MlxArray* bias,
    const MlxArray* residual) {
  QuantizedExtras extras{
      optional(norm),
      steps.eps,
      optional(bias),
      optional(residual),
      steps.swiglu,
      steps.int8,
      steps.centered};
  auto list = weights_of(weights, layout);
  return handle(mlx_primitives::quantized_matmul(x, list, format_of(layout), extras, here()));
}

ListHandle pack_matrix(const MlxArray& w, const QuantizedLayout& layout) {
  auto format = format_of(layout);
  require_format("quantized_weight", format); // MLX divides by its numbers before it checks them
  auto [group, bits, mode] = format;
  if (mode == QuantizedMode::KQuant) {
    refuse(
        "quantized_weight", "expected a mode that MLX packs, got k_quant, which GGUF files have");
  }
  return handle(mx::quantize(w, group, bits, format.name(), std::nullopt, here()));
}

Handle unpack_matrix(const ArrayList& weight, const QuantizedLayout& layout, Dtype dtype) {
  auto w = weights_of(weight, layout).at(0);
  return handle(unpacked(w, format_of(layout), to_mlx(dtype), mx::to_stream(here())));
}

Handle reduction(const MlxArray& x, ReductionKind kind, bool all, bool keepdims) {
  // The result is small, but if the input is a view of a small array, MLX may copy the input first.
  const auto& shape = x.shape();
  require_memory("reduce", {shape.begin(), shape.size()}, x.dtype());
  return handle(mlx_primitives::reduce(x, kind, all, keepdims, here()));
}

ListHandle rms_norm_residual(
    const MlxArray& x, const MlxArray& residual, const MlxArray* weight, float eps) {
  return handle(mlx_primitives::rms_norm_residual(x, residual, optional(weight), eps, here()));
}

ListHandle layer_norm_residual(
    const MlxArray& x,
    const MlxArray& residual,
    const MlxArray* weight,
    const MlxArray* bias,
    float eps) {
  return handle(mlx_primitives::layer_norm_residual(
      x, residual, optional(weight), optional(bias), eps, here()));
}

Handle rms_norm(const MlxArray& x, const MlxArray* weight, float eps) {
  return handle(mlx_primitives::rms_norm(x, optional(weight), eps, here()));
}

Handle builtin_rms_norm(const MlxArray& x, const MlxArray* weight, float eps) {
  return handle(mx::fast::rms_norm(x, optional(weight), eps, here()));
}

Handle rope(
    const MlxArray& x,
    int32_t dims,
    bool traditional,
    const float* base,
    float scale,
    const MlxArray& offset,
    const MlxArray* freqs) {
  return handle(mlx_primitives::rope(
      x, dims, traditional, optional(base), scale, offset, optional(freqs), here()));
}

Handle builtin_rope(
    const MlxArray& x,
    int32_t dims,
    bool traditional,
    const float* base,
    float scale,
    const MlxArray& offset,
    const MlxArray* freqs) {
  return handle(
      mx::fast::rope(x, dims, traditional, optional(base), scale, offset, optional(freqs), here()));
}

namespace {

Rotation to_rotation(const AppendRotation& rotation, const MlxArray* freqs) {
  return {
      rotation.dims,
      rotation.traditional,
      rotation.has_base ? std::optional<float>(rotation.base) : std::nullopt,
      rotation.scale,
      rotation.multiplier,
      optional(freqs)};
}

KvLayout to_layout(const AppendLayout& layout) {
  return {layout.heads, layout.kv_heads, layout.head_dim, layout.capacity};
}

} // namespace

Handle rope_append(
    const MlxArray& state,
    const MlxArray& qkv,
    const AppendLayout& layout,
    const AppendRotation& rotation,
    const MlxArray* freqs,
    const MlxArray& offset,
    const MlxArray* slots) {
  return handle(mlx_primitives::rope_append(
      state,
      qkv,
      to_layout(layout),
      to_rotation(rotation, freqs),
      offset,
      optional(slots),
      here()));
}

ListHandle rope_heads(
    const MlxArray& qkv,
    const AppendLayout& layout,
    const AppendRotation& rotation,
    const MlxArray* freqs,
    const MlxArray& offset) {
  return handle(mlx_primitives::rope_heads(
      qkv, to_layout(layout), to_rotation(rotation, freqs), offset, here()));
}

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
    const MlxArray* sinks) {
  return handle(mlx_primitives::rope_append_attention(
      state,
      qkv,
      to_layout(layout),
      to_rotation(rotation, freqs),
      offset,
      optional(slots),
      len,
      to_rules(rules),
      optional(mask),
      optional(sinks),
      here()));
}

Handle softmax(const MlxArray& x) {
  return handle(mlx_primitives::softmax(x, here()));
}

Handle builtin_softmax(const MlxArray& x, bool precise) {
  return handle(mx::softmax(x, -1, precise, here()));
}

} // namespace mlx_primitives::bridge
