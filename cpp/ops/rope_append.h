#pragma once

#include <optional>

#include "ops/attention.h"
#include "runtime/kernels.h"
#include "runtime/primitive.h"

namespace mlx_primitives {

/**
 * The numbers that divide the rows of a layer's state [batch, rows, head_dim] into queries, keys
 * and values.
 */
struct KvLayout {
  int heads;
  int kv_heads;
  int head_dim;
  int capacity; // the number of positions for keys and values

  bool operator==(const KvLayout&) const = default;
};

/** How queries and keys are rotated; exactly one of base and freqs is given. */
struct Rotation {
  int dims;
  bool traditional;
  std::optional<float> base;
  float scale;
  float multiplier; // multiplies the features to rotate, before the rotation
  std::optional<mx::array> freqs;
};

/**
 * Copies qkv [batch, time, (heads + 2 * kv_heads) * head_dim] into the state. Queries and keys are
 * rotated; their first position is `offset`. Keys and values go to consecutive slots of the state
 * that begin at `slots`, or at `offset` without `slots`. Queries go to the query area, the rows of
 * the state before the first key. If the step has too many positions for it, they are not stored.
 */
mx::array rope_append(
    const mx::array& state,
    const mx::array& qkv,
    const KvLayout& layout,
    const Rotation& rotation,
    const mx::array& offset,
    const std::optional<mx::array>& slots,
    mx::StreamOrDevice s = {});

/**
 * Runs `rope_append`, and then the attention of the step's queries over the first `len` positions.
 * Returns the state and the attention's result [batch, time, heads * head_dim]. The step must fit
 * the query area. The mask broadcasts to [batch, heads, time, len].
 */
Arrays rope_append_attention(
    const mx::array& state,
    const mx::array& qkv,
    const KvLayout& layout,
    const Rotation& rotation,
    const mx::array& offset,
    const std::optional<mx::array>& slots,
    int len,
    const AttentionRules& rules,
    const std::optional<mx::array>& mask,
    const std::optional<mx::array>& sinks,
    mx::StreamOrDevice s = {});

/**
 * Splits qkv into queries, keys and values [batch, heads, time, head_dim], and rotates queries and
 * keys as `rope_append` does. Does not use the layout's capacity.
 */
Arrays rope_heads(
    const mx::array& qkv,
    const KvLayout& layout,
    const Rotation& rotation,
    const mx::array& offset,
    mx::StreamOrDevice s = {});

/** Throw if `rope_append` does not accept the rotation, or the positions in `offset` or `slots`. */
void check_rotation(const Rotation& rotation, int head_dim);
void check_positions(const char* what, const mx::array& positions, int batch);

/** Checks the arguments of `rope_append` and returns the inputs of its primitive. */
Arrays append_inputs(
    const mx::array& state,
    const mx::array& qkv,
    const KvLayout& layout,
    const Rotation& rotation,
    const mx::array& offset,
    const std::optional<mx::array>& slots,
    mx::Stream s);

/**
 * The inputs of a primitive for a vmap. The batch absorbs the mapped axes of the first `arrays`
 * inputs, and of the positions and slots after them. The inputs after these are not mapped.
 */
Arrays joined_steps(
    const Arrays& inputs, const std::vector<int>& axes, size_t arrays, int size, mx::Stream s);

/**
 * Inputs: state and qkv (row-contiguous, of one floating type), offset and slots (int32, one
 * element or one per batch entry) and, if explicit, freqs (float32 [dims / 2]).
 */
class RopeAppend : public ComposedPrimitive {
 public:
  RopeAppend(mx::Stream stream, const KvLayout& layout, const Rotation& rotation)
      : ComposedPrimitive(stream),
        layout_(layout),
        dims_(rotation.dims),
        traditional_(rotation.traditional),
        base_(rotation.base.value_or(1.0f)),
        scale_(rotation.scale),
        multiplier_(rotation.multiplier) {}

  COMPOSED_METHODS(RopeAppend)

  size_t updates() const override {
    return 1;
  }

  VJP_METHOD
  VMAP_METHOD

  /** Counts only the rows that the step writes, because the rest of the state stays in place. */
  Cost cost(const Arrays& inputs, const Arrays& outputs) override;

 private:
  friend class RopeAppendGrad;
  friend class RopeHeads;

  // These functions plan and call the kernel for the forward and the backward direction. `places`
  // are the inputs after qkv. `step` is an input in the forward direction, and the second output in
  // the backward direction.
  std::vector<Dispatch> launches(
      const mx::array& state,
      const Arrays& step,
      const Arrays& places,
      const Arrays& outputs,
      uint32_t max_threads) const;
  cpu::RopeAppendCall call(
      const mx::array& state,
      const mx::array& step,
      const Arrays& places,
      mx::array& out,
      bool forward) const;

  /** The result of `rope_heads`, built from MLX's ops. */
  Arrays composed_heads(
      const mx::array& qkv, const mx::array& offset, const std::optional<mx::array>& freqs);
  mx::array keys_and_values(
      const mx::array& state, const mx::array& stored, const mx::array& slots);

  KvLayout layout_;
  int dims_;
  bool traditional_;
  float base_; // unused with explicit freqs
  float scale_;
  float multiplier_;
};

/**
 * The derivatives of a RopeAppend with respect to the state and qkv. The inputs are the cotangent
 * of the new state, then the RopeAppend's inputs after qkv. The first output usually reuses the
 * memory of the cotangent.
 */
class RopeAppendGrad : public ComposedPrimitive {
 public:
  RopeAppendGrad(mx::Stream stream, std::shared_ptr<RopeAppend> append, int time)
      : ComposedPrimitive(stream), append_(std::move(append)), time_(time) {}

  COMPOSED_METHODS(RopeAppendGrad)
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override;

  size_t updates() const override {
    return 1;
  }

  VMAP_METHOD

 private:
  std::shared_ptr<RopeAppend> append_;
  int time_; // the number of positions of the step
};

/**
 * In the forward direction, the inputs are qkv, the offset (int32, one element or one per batch
 * entry) and, if explicit, freqs; the outputs are queries, keys and values. In the backward
 * direction, queries, keys and values replace qkv as inputs, and qkv is the output. Each direction
 * computes the derivative of the other direction.
 */
class RopeHeads : public ComposedPrimitive {
 public:
  RopeHeads(mx::Stream stream, std::shared_ptr<RopeAppend> append, bool forward)
      : ComposedPrimitive(stream), append_(std::move(append)), forward_(forward) {}

  COMPOSED_METHODS(RopeHeads)
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override;
  VJP_METHOD

  /** Builds a node with this node's stream and rotation, and returns its outputs. */
  Arrays node(Arrays inputs, bool forward);

 private:
  /** The number of inputs before the offset. */
  size_t arrays() const {
    return forward_ ? 1 : 3;
  }

  std::shared_ptr<RopeAppend> append_;
  bool forward_;
};

/**
 * Joins a RopeAppend and an Attention over its result into one node, so that the graph of a decoded
 * token has fewer nodes. The inputs are RopeAppend's inputs, then the mask and the sinks.
 */
class RopeAppendAttention : public ComposedPrimitive {
 public:
  RopeAppendAttention(
      mx::Stream stream,
      const KvLayout& layout,
      const Rotation& rotation,
      int len,
      const AttentionRules& rules,
      bool masked,
      bool sinks)
      : ComposedPrimitive(stream),
        append_(std::make_shared<RopeAppend>(stream, layout, rotation)),
        attention_(std::make_shared<Attention>(stream, rules, masked, sinks)),
        layout_(layout),
        appended_(rotation.freqs ? 5 : 4),
        masked_(masked),
        len_(len) {}

  COMPOSED_METHODS(RopeAppendAttention)
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override;
  size_t updates() const override {
    return 1;
  }
  bool takes_strides(size_t input) const override {
    return masked_ && input == appended_;
  }
  Cost cost(const Arrays& inputs, const Arrays& outputs) override;

 protected:
  /** Builds the RopeAppend and the Attention as separate nodes, whose derivatives have kernels. */
  Arrays differentiable(const Arrays& inputs) override;

 private:
  /** Returns the outputs. Calls `run` with each of the two primitives and its inputs. */
  template <typename Run>
  Arrays staged(const Arrays& inputs, Run run);

  /**
   * The inputs and the output of the Attention, as views of the state and of this node's result.
   */
  Arrays attended(const Arrays& inputs, const mx::array& state) const;
  mx::array by_heads(const mx::array& result) const;

  /** The inputs of the RopeAppend. */
  Arrays appended(const Arrays& inputs) const {
    return {inputs.begin(), inputs.begin() + static_cast<std::ptrdiff_t>(appended_)};
  }

  std::shared_ptr<RopeAppend> append_;
  std::shared_ptr<Attention> attention_;
  KvLayout layout_;
  size_t appended_; // the number of inputs of the RopeAppend
  bool masked_;
  int len_;
};

} // namespace mlx_primitives
