// The range of keys that a query sees in its row of scores. The kernels read neither scores nor
// mask elements outside it.
#pragma once

#include "masked_softmax.h"
#include "rows.h"

/** A mask of bools. */
template <>
struct Packed<uchar> {
  typedef packed_uchar2 two;
  typedef packed_uchar4 four;
};

/** A row of scores: keys from first to last - 1 are seen, and its mask begins at `mask`. */
struct MaskedRow {
  uint first;
  uint last;
  long mask;

  METAL_FUNC bool sees(uint key) const {
    return key >= first && key < last;
  }
  METAL_FUNC bool sees_any4(uint key) const {
    return key + READS > first && key < last;
  }
  METAL_FUNC bool sees_all4(uint key) const {
    return key >= first && key + READS <= last;
  }
  METAL_FUNC uint seen() const {
    return last - first;
  }
};

METAL_FUNC MaskedRow masked_row(constant MaskedSoftmaxParams& params, uint row) {
  MaskedRow result = {0, params.keys, params.mask_start};
  if (params.causal != 0) {
    const uint end = row % params.queries + 1 + params.keys;
    result.last = end > params.queries ? end - params.queries : 0;
    if (params.window != 0 && result.last > params.window) {
      result.first = result.last - params.window;
    }
  }
  if (params.mask_kind != MASK_NONE) {
    for (uint d = params.mask_dims; d > 0; d--) {
      result.mask += long(row % params.mask_shape[d - 1]) * params.mask_strides[d - 1];
      row /= params.mask_shape[d - 1];
    }
  }
  return result;
}

/** Loads four elements of the mask, beginning at a key; `other` for keys that are not seen. */
template <typename E>
METAL_FUNC packed4<E> load_mask4(
    const device E* mask, constant MaskedSoftmaxParams& params, MaskedRow row, uint key, E other) {
  const device E* first = mask + row.mask;
  const long stride = params.mask_key_stride;
  if (stride == 1 && row.sees_all4(key)) {
    return *(const device packed4<E>*)(first + key);
  }
  packed4<E> quad;
  for (uint i = 0; i < READS; i++) {
    quad[i] = row.sees(key + i) ? first[long(key + i) * stride] : other;
  }
  return quad;
}

/** Whether each of four keys is seen and no bool mask hides it. */
METAL_FUNC void load_shown4(
    thread bool* shown,
    const device uchar* mask,
    constant MaskedSoftmaxParams& params,
    MaskedRow row,
    uint key) {
  for (uint i = 0; i < READS; i++) {
    shown[i] = row.sees(key + i);
  }
  if (params.mask_kind == MASK_BOOL) {
    const packed4<uchar> quad = load_mask4(mask, params, row, key, uchar(0));
    for (uint i = 0; i < READS; i++) {
      shown[i] = quad[i] != 0;
    }
  }
}

/** Loads four elements of a row; `pad` for elements that are not seen. */
template <typename T>
METAL_FUNC packed4<T> load_seen4(const device T* x, MaskedRow row, uint key, T pad) {
  if (row.sees_all4(key)) {
    return *(const device packed4<T>*)(x + key);
  }
  packed4<T> quad;
  for (uint i = 0; i < READS; i++) {
    quad[i] = row.sees(key + i) ? x[key + i] : pad;
  }
  return quad;
}
