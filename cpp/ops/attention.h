#pragma once

#include <optional>

#include "../../metal/attention.h"
#include "runtime/kernels.h"
#include "runtime/primitive.h"
#include "runtime/row_order.h"

namespace mlx_primitives {

constexpr auto attention_op = "attention";

struct AttentionRules {
  float scale;
  bool causal;
  int window;     // how many positions a query sees, up to its own; 0 if unlimited
  float soft_cap; // 0 if none
  int dropped;    // keys before the first one that are no longer there
  RowOrder order = row_order();

  bool operator==(const AttentionRules&) const = default;
};

/** `bits`-bit codes in words, with a scale and a bias for each group along the last axis. */
struct QuantizedRows {
  mx::array packed;
  mx::array scales;
  mx::array biases;
};

/**
 * softmax(scale * q k^T, capped, masked) v, [B, H, T, E]. q [B, H, T, D], k [B, H / n, S, D] and v
 * [B, H / n, S, E] may have any strides. The mask is boolean or additive and broadcasts to [B, H,
 * T, S]; the sinks are [H]. The result lies in memory as [B, T, H, E], so that joining its heads
 * copies nothing.
 */
mx::array attention(
    const mx::array& q,
    const mx::array& k,
    const mx::array& v,
    const AttentionRules& rules,
    const std::optional<mx::array>& mask = std::nullopt,
    const std::optional<mx::array>& sinks = std::nullopt,
    mx::StreamOrDevice s = {});

mx::array attention_quantized(
    const mx::array& q,
    const QuantizedRows& k,
    const QuantizedRows& v,
    int bits,
    int group_size,
    const AttentionRules& rules,
    const std::optional<mx::array>& mask = std::nullopt,
    const std::optional<mx::array>& sinks = std::nullopt,
    mx::StreamOrDevice s = {});

/** A lazy attention composed of MLX's ops, in the form that an NVIDIA GPU runs. */
Arrays dequantizing_composition(const mx::array& ours);

/**
 * The keys of one split in the kernel for few queries. A core reads keys and values at a limited
 * speed, and runs several small splits at a time, so small splits spread the reads more evenly over
 * the cores.
 */
constexpr uint64_t FEW_QUERY_SPLIT_KEYS = 128;

/**
 * Whether few rows of queries can use the kernel for NVIDIA GPUs. It requires heads of 64, 128 or
 * 256 features, 16-bit types, keys and values that are not quantized, and arrays in which every row
 * is aligned to loads of 16 bytes.
 */
bool takes_few_queries(
    const AttentionParams& params,
    const mx::array& q,
    const mx::array& k,
    const mx::array& v,
    mx::Stream stream);

/** Plan the kernel for few queries, and the kernel that combines its splits. */
Launch plan_few_queries(
    const AttentionParams& params, const std::string& type, uint32_t max_threads);
Launch plan_few_splits(
    const AttentionParams& params, const std::string& type, uint32_t max_threads);

/**
 * Throws if the shapes of queries, keys and values do not fit each other, or if rules are invalid.
 */
void check_attention(
    const mx::Shape& q, const mx::Shape& k, const mx::Shape& v, const AttentionRules& rules);

/**
 * Checks a mask and sinks for scores of this shape. Appends both to the inputs; the mask becomes a
 * view that is broadcast to that shape.
 */
void push_mask_and_sinks(
    Arrays& inputs,
    const std::optional<mx::array>& mask,
    const std::optional<mx::array>& sinks,
    const mx::Shape& scores,
    mx::Dtype dtype,
    mx::Stream s);

/**
 * The inputs for a vmap: the first `count` have their mapped axes joined to the batch; the later
 * inputs are repeated.
 */
Arrays joined_to_batch(
    const Arrays& inputs, const std::vector<int>& axes, int count, int size, mx::Stream s);

/**
 * Inputs: q; k and v, each one array or three (packed, scales and biases); the mask; the sinks
 * (row-contiguous). All inputs except the sinks may have any strides, because the kernels read them
 * in place.
 */
class Attention : public ComposedPrimitive {
 public:
  Attention(
      mx::Stream stream,
      const AttentionRules& rules,
      bool masked,
      bool sinks,
      int bits = 0,
      int group_size = 0)
      : ComposedPrimitive(stream),
        rules_(rules),
        masked_(masked),
        sinks_(sinks),
        bits_(bits),
        group_size_(group_size) {}

  COMPOSED_METHODS(Attention)
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override;
  bool lays_out(const mx::array& out) const override {
    return out.shape(1) > 1 && out.shape(2) > 1;
  }
  void lay_out(mx::array& out) const override;
  bool takes_strides(size_t input) const override {
    return !sinks_ || static_cast<int>(input) != sinks();
  }

  VJP_METHOD
  VMAP_METHOD

  /**
   * Dequantizes quantized keys and values first if `dequantizes`, else multiplies the packed
   * arrays.
   */
  Arrays composition(const Arrays& inputs, bool dequantizes);

 private:
  friend class AttentionGrad;

  /** Extents, rules and splits. The strides are known only at evaluation, so they are not set. */
  AttentionParams params(const Arrays& inputs) const;
  /** The call of the CPU kernel, without the result. */
  cpu::AttentionCall call(const Arrays& inputs) const;

  /** The number of features of the keys or values that begin at this input. */
  int dim(const Arrays& inputs, int at) const {
    int last = inputs[at].shape(3);
    return bits_ > 0 ? static_cast<int>(int64_t{last} * 32 / bits_) : last;
  }
  int parts() const {
    return bits_ > 0 ? 3 : 1;
  }
  /** The positions of the values, the mask and the sinks among the inputs. */
  int values() const {
    return 1 + parts();
  }
  int mask() const {
    return 1 + 2 * parts();
  }
  int sinks() const {
    return mask() + (masked_ ? 1 : 0);
  }

  AttentionRules rules_;
  bool masked_;
  bool sinks_;
  int bits_; // 0 for plain keys and values
  int group_size_;
};

/**
 * The derivatives of an Attention over plain keys and values: in q and, if they are wanted, in k
 * and v and in an additive mask, and in the sinks, if present. Inputs: the inputs of the Attention,
 * then the cotangent of its result, with any strides. Outputs of rank 4 have the memory layout of
 * the result.
 */
class AttentionGrad : public ComposedPrimitive {
 public:
  AttentionGrad(mx::Stream stream, std::shared_ptr<Attention> attention, bool of_keys, bool of_mask)
      : ComposedPrimitive(stream),
        attention_(std::move(attention)),
        of_keys_(of_keys),
        of_mask_(of_mask) {}

  COMPOSED_METHODS(AttentionGrad)
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override;
  bool lays_out(const mx::array& out) const override {
    return out.ndim() == 4 && attention_->lays_out(out);
  }
  void lay_out(mx::array& out) const override {
    if (lays_out(out)) {
      attention_->lay_out(out);
    }
  }
  bool takes_strides(size_t input) const override {
    return attention_->takes_strides(input);
  }

  VMAP_METHOD

  /** The index of the output with the derivatives in this input, or -1. */
  int output_of(int argnum) const;

 private:
  /** The inputs in which the outputs are the derivatives, in the order of the outputs. */
  std::vector<int> argnums() const;

  std::shared_ptr<Attention> attention_;
  bool of_keys_;
  bool of_mask_;
};

} // namespace mlx_primitives
