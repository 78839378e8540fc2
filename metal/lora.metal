#include "lora.h"

#include "common.h"

/**
 * out = base + scale * (projected * B^T), rounded after the product, after the scale and after the
 * sum. A thread computes a column of up to LORA_ROWS rows.
 */
template <typename T>
[[kernel]] void lora_correct(
    const device T* projected [[buffer(0)]],
    const device T* b [[buffer(1)]],
    const device T* base [[buffer(2)]], // shares its buffer with out
    device T* out [[buffer(3)]],
    constant LoraParams& params [[buffer(4)]],
    uint2 position [[thread_position_in_grid]]) {
  const uint column = position.x;
  const uint top = position.y * LORA_ROWS;
  if (column >= params.columns) {
    return;
  }
  float sums[LORA_ROWS];
  for (uint m = 0; m < LORA_ROWS; m++) {
    sums[m] = 0.0f;
  }
  b += size_t(column) * params.rank;
  projected += size_t(top) * params.rank;
  const uint rows = min(uint(LORA_ROWS), params.rows - top);
  for (uint i = 0; i < params.rank; i++) {
    const float of_b = float(b[i]);
    for (uint m = 0; m < LORA_ROWS; m++) {
      if (m < rows) {
        sums[m] = fma(float(projected[size_t(m) * params.rank + i]), of_b, sums[m]);
      }
    }
  }
  for (uint m = 0; m < LORA_ROWS; m++) {
    if (m < rows) {
      const size_t at = size_t(top + m) * params.columns + column;
      const float correction = float(T(float(T(sums[m])) * params.scale));
      out[at] = T(float(base[at]) + correction);
    }
  }
}

#define LORA_KERNELS(DTYPE, T) MLXP_KERNEL("mlxp_lora_correct_" DTYPE, lora_correct<T>)

MLXP_EACH_DTYPE(LORA_KERNELS)
