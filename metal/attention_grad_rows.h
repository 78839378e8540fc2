#pragma once

#include "attention_tile.h"

/** The rows in a tile: query rows of all heads that share a key-value head, or keys. */
struct HeadRows {
  uint batch;
  uint head; // the first
  uint heads;
};

/** Copies rows, beginning with `first`, to a tile of `room` rows; zeros after `count` rows and
 * after `dim` features. */
template <typename T, uint FEATURES>
METAL_FUNC void load_head_rows(
    threadgroup T* tile,
    const device T* data,
    constant AttentionView& view,
    HeadRows of,
    uint dim,
    uint first,
    uint count,
    uint room,
    uint thread_index,
    uint threads) {
  constexpr uint OF_ROW = FEATURES / READS;
#pragma clang loop unroll(disable)
  for (uint i = thread_index; i < room * OF_ROW; i += threads) {
    const uint row = i / OF_ROW;
    const uint at = i % OF_ROW * READS;
    float features[READS];
    for (uint j = 0; j < READS; j++) {
      features[j] = 0.0f;
    }
    if (row < count && at < dim) {
      const uint place = first + row;
      const device T* from =
          row_of(data, view, of.batch, of.head + place % of.heads, place / of.heads);
      load_features<T, READS>(features, from, view.strides[3], at, dim);
    }
    for (uint j = 0; j < READS; j++) {
      tile[row * tile_pitch<T, FEATURES>() + at + j] = T(features[j]);
    }
  }
}

/** Multiplies a SIMD group's eight rows with every group of eight rows of a transposed tile. */
template <typename T, uint FEATURES, uint COLUMNS>
METAL_FUNC void multiply_rows(
    thread simdgroup_float8x8* products,
    const threadgroup T* own,
    const threadgroup T* tile,
    uint matrix_x,
    uint matrix_y) {
  constexpr uint PITCH = tile_pitch<T, FEATURES>();
  for (uint c = 0; c < COLUMNS; c++) {
    products[c] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
  }
  own += matrix_y * PITCH + matrix_x;
  tile += matrix_x * PITCH + matrix_y;
#pragma clang loop unroll_count(2)
  for (uint f = 0; f < FEATURES; f += ATTENTION_FRAGMENT) {
    simdgroup_matrix<float, 8, 8> rows;
    rows.thread_elements()[0] = float(own[f]);
    rows.thread_elements()[1] = float(own[f + 1]);
    for (uint c = 0; c < COLUMNS; c++) {
      const threadgroup T* from = tile + (c * ATTENTION_FRAGMENT * PITCH + f);
      simdgroup_matrix<float, 8, 8> transposed;
      transposed.thread_elements()[0] = float(from[0]);
      transposed.thread_elements()[1] = float(from[PITCH]);
      simdgroup_multiply_accumulate(products[c], rows, transposed, products[c]);
    }
  }
}

/** A score, and its derivative with respect to the product of query and key, or to the mask. */
struct Score {
  float value;
  float slope; // 0 if the score is hidden
};

/** Returns the score of a row and a key. The row exists, but the key may be past the end. */
template <typename T, bool OF_MASK = false>
METAL_FUNC Score score_of(
    float product,
    const device uchar* mask,
    constant AttentionGradParams& params,
    uint batch,
    uint kv_head,
    uint row,
    uint key) {
  if (key >= params.keys) {
    return {-INFINITY, 0.0f};
  }
  const uint query = row / params.group;
  Score score = {params.scale * product, params.scale};
  if (params.soft_cap > 0.0f) {
    score.value = capped_score(score.value, params.soft_cap);
    const float share = score.value / params.soft_cap;
    score.slope *= 1.0f - share * share;
  }
  bool hidden = false;
  if (params.mask_kind != ATTENTION_NO_MASK) {
    const uint head = kv_head * params.group + row % params.group;
    const long at = mask_of_row(params, batch, head, query) + long(key) * params.mask.strides[3];
    score.value = masked_score<T>(score.value, mask, params, at);
    hidden = params.mask_kind == ATTENTION_BOOL_MASK && mask[at] == 0;
  }
  const KeySpan seen = visible_keys(params, query);
  if (hidden || key < seen.first || key >= seen.end) {
    return {MASKED_SCORE, 0.0f};
  }
  return OF_MASK ? Score{score.value, 1.0f} : score;
}

/** The keys that rows first..last need: all keys if a mask may hide all keys that a row sees. */
METAL_FUNC KeySpan
needed_keys(constant AttentionGradParams& params, uint first_row, uint last_row) {
  if (params.mask_kind != ATTENTION_NO_MASK) {
    return {0, params.keys};
  }
  const KeySpan span = spanned_keys(params, first_row / params.group, last_row / params.group);
  return {span.first, min(span.end, params.keys)};
}

/** The rows that give weight to one of these keys. A row that sees no key weighs all equally. */
METAL_FUNC KeySpan
needed_rows(constant AttentionGradParams& params, uint first_key, uint last_key) {
  KeySpan queries = {0, params.queries};
  if (params.mask_kind == ATTENTION_NO_MASK) {
    // The position of the first query among the keys.
    const int before = int(params.keys) - int(params.queries);
    if (params.causal != 0 && before >= 0) {
      queries.first = uint(max(0, int(first_key) - before));
    }
    if (params.window > 0) {
      const int end = int(last_key) + int(params.window) - before;
      queries.end = uint(clamp(end, 0, int(params.queries)));
    }
  }
  return {min(queries.first, queries.end) * params.group, queries.end * params.group};
}
