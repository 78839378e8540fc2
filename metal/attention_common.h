#pragma once

#include "attention.h"
#include "common.h"

// What a row must not see. Finite, so that a row that sees nothing weighs all keys alike, as a
// softmax over scores that MLX replaced by the lowest number does.
#define MASKED_SCORE (-FLT_MAX)

/** max() would let a NaN through or not as the hardware likes; this comparison drops it. */
METAL_FUNC float larger_score(float a, float b) {
  return a < b ? b : a;
}

template <typename T>
METAL_FUNC const device T* row_of(
    const device T* data, constant AttentionView& view, uint batch, uint head, uint row) {
  return data + view.start + long(batch) * view.strides[0] + long(head) * view.strides[1] +
         long(row) * view.strides[2];
}

/** Keys from `first` to `end`. */
struct KeySpan {
  uint first;
  uint end;
};

/** What a query sees by the causal rule and the window; empty if nothing. */
METAL_FUNC KeySpan visible_keys(constant AttentionParams& params, uint query) {
  const int after = int(params.keys) - int(params.queries) + int(query) + 1;
  KeySpan span = {0, params.keys};
  if (params.window > 0) {
    span.first = uint(max(0, after - int(params.window)));
  }
  if (params.causal != 0) {
    span.end = uint(max(0, after));
  }
  return span;
}

/** What rows of these queries go through: everything if one of them sees nothing. */
METAL_FUNC KeySpan spanned_keys(constant AttentionParams& params, uint query, uint last) {
  const KeySpan head = visible_keys(params, query);
  if (head.first >= head.end) {
    return {0, params.keys};
  }
  return {head.first, visible_keys(params, last).end};
}

/** Caps and masks the score of a row with a key. */
template <typename T>
METAL_FUNC float finished_score(
    float score,
    const device uchar* mask,
    constant AttentionParams& params,
    uint batch,
    uint kv_head,
    uint row,
    uint key) {
  if (params.soft_cap > 0.0f) {
    score = params.soft_cap * precise::tanh(score / params.soft_cap);
  }
  const uint query = row / params.group;
  if (params.mask_kind != ATTENTION_NO_MASK) {
    const uint head = kv_head * params.group + row % params.group;
    const long step = long(key) * params.mask.strides[3];
    if (params.mask_kind == ATTENTION_BOOL_MASK) {
      score = row_of(mask, params.mask, batch, head, query)[step] != 0 ? score : MASKED_SCORE;
    } else {
      score += float(row_of((const device T*)mask, params.mask, batch, head, query)[step]);
    }
  }
  const KeySpan span = visible_keys(params, query);
  return key >= span.first && key < span.end ? score : MASKED_SCORE;
}

template <typename T, uint BITS>
using stored_t = conditional_t<BITS == 0, T, uint>;

/** `count` features of a plain row from `at` on; zeros past its end. */
template <typename T, uint COUNT>
METAL_FUNC void load_features(
    thread float* values, const device T* row, long step, uint at, uint dim) {
  for (uint i = 0; i < COUNT; i += READS) {
    if (step == 1 && at + i + READS <= dim) {
      const packed4<T> quad = *(const device packed4<T>*)(row + at + i);
      for (uint j = 0; j < READS; j++) {
        values[i + j] = float(quad[j]);
      }
    } else {
      for (uint j = 0; j < READS; j++) {
        const uint feature = at + i + j;
        values[i + j] = feature < dim ? float(row[long(feature) * step]) : 0.0f;
      }
    }
  }
}

/** Eight features of a quantized row, without their group's scale and bias. */
template <uint BITS>
METAL_FUNC void load_codes(thread float* values, const device uint* row, long step, uint part) {
  constexpr uint words = ATTENTION_PART * BITS / 32;
  constexpr uint each = 32 / BITS;
  for (uint w = 0; w < words; w++) {
    const uint word = row[long(part * words + w) * step];
    for (uint i = 0; i < each; i++) {
      values[w * each + i] = float(word >> (BITS * i) & ((1u << BITS) - 1));
    }
  }
}
