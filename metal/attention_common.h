#pragma once

#include "attention.h"
#include "common.h"

// The score of a key that is hidden from a row. It is finite, as in MLX, which replaces masked
// scores by the lowest number. A row that sees no key therefore gives all keys equal weights.
#define MASKED_SCORE (-FLT_MAX)

/** The larger score, or a if one of them is NaN. The result of max() for NaN depends on the
 * hardware. */
METAL_FUNC float larger_score(float a, float b) {
  return a < b ? b : a;
}

/** Returns the maximum or the sum over the four lanes that hold a row of a matrix. */
METAL_FUNC float row_max(float value) {
  value = larger_score(value, simd_shuffle_xor(value, ushort(1)));
  return larger_score(value, simd_shuffle_xor(value, ushort(8)));
}

METAL_FUNC float row_sum(float value) {
  value += simd_shuffle_xor(value, ushort(1));
  return value + simd_shuffle_xor(value, ushort(8));
}

template <typename T>
METAL_FUNC const device T* row_of(
    const device T* data, constant AttentionView& view, uint batch, uint head, uint row) {
  return data + view.start + long(batch) * view.strides[0] + long(head) * view.strides[1] +
         long(row) * view.strides[2];
}

/** The keys from `first` up to, but not including, `end`. */
struct KeySpan {
  uint first;
  uint end;
};

/** The keys that a query sees by the causal rule and the window. There may be none. */
template <typename Params>
METAL_FUNC KeySpan visible_keys(constant Params& params, uint query) {
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

/** The keys that rows of these queries process: all keys if one of the rows sees none. */
template <typename Params>
METAL_FUNC KeySpan spanned_keys(constant Params& params, uint query, uint last) {
  const KeySpan head = visible_keys(params, query);
  if (head.first >= head.end) {
    return {0, params.keys};
  }
  return {head.first, visible_keys(params, last).end};
}

METAL_FUNC float capped_score(float score, float cap) {
  return cap * precise::tanh(score / cap);
}

/** The position of a row's first element in the mask. */
template <typename Params>
METAL_FUNC long mask_of_row(constant Params& params, uint batch, uint head, uint query) {
  constant AttentionView& view = params.mask;
  return view.start + long(batch) * view.strides[0] + long(head) * view.strides[1] +
         long(query) * view.strides[2];
}

/** Adds an additive mask's element to a score, or hides the score if a bool mask hides it. */
template <typename T, typename Params>
METAL_FUNC float masked_score(
    float score, const device uchar* mask, constant Params& params, long at) {
  if (params.mask_kind == ATTENTION_BOOL_MASK) {
    return mask[at] != 0 ? score : MASKED_SCORE;
  }
  return score + float(((const device T*)mask)[at]);
}

METAL_FUNC float seen_score(float score, uint key, KeySpan seen) {
  // One unsigned comparison replaces two signed comparisons.
  const uint keys = max(seen.end, seen.first) - seen.first;
  return key - seen.first < keys ? score : MASKED_SCORE;
}

template <typename T, uint BITS>
using stored_t = conditional_t<BITS == 0, T, uint>;

/** Keys or values: elements, or packed words with the scale and bias of each group. */
template <typename T, uint BITS>
struct Stored {
  const device stored_t<T, BITS>* data;
  const device T* scales;
  const device T* biases;
};

/** Loads COUNT features of a row of elements, from feature `at` on; zeros past the end. */
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
