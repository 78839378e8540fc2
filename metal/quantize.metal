#include "common.h"
#include "quantize.h"

/** The eight codes of thread `at`. The first code is in the lowest bits. */
template <uint BITS>
METAL_FUNC ulong load_codes(const device uchar* packed, uint at) {
  if (BITS == 8) {
    const device uint* words = (const device uint*)packed + 2 * size_t(at);
    return ulong(words[0]) | (ulong(words[1]) << 32);
  }
  if (BITS == 4) {
    return ulong(((const device uint*)packed)[at]);
  }
  if (BITS == 2) {
    return ulong(((const device ushort*)packed)[at]);
  }
  ulong codes = 0;
  for (uint i = 0; i < BITS; i++) {
    codes |= ulong(packed[size_t(at) * BITS + i]) << (8 * i);
  }
  return codes;
}

template <uint BITS>
METAL_FUNC void store_codes(device uchar* packed, uint at, ulong codes) {
  if (BITS == 8) {
    device uint* words = (device uint*)packed + 2 * size_t(at);
    words[0] = uint(codes);
    words[1] = uint(codes >> 32);
  } else if (BITS == 4) {
    ((device uint*)packed)[at] = uint(codes);
  } else if (BITS == 2) {
    ((device ushort*)packed)[at] = ushort(codes);
  } else {
    for (uint i = 0; i < BITS; i++) {
      packed[size_t(at) * BITS + i] = uchar(codes >> (8 * i));
    }
  }
}

/** The scale and the bias of a group with numbers from `low` to `high`. If 0 lies between them, it
 * gets an exact code. */
METAL_FUNC float2 scale_and_bias(float low, float high, float top) {
  const bool below = abs(low) > abs(high);
  const float range = precise::divide(high - low, top);
  const float size = range < 1e-7f ? 1e-7f : range;
  const float scale = below ? size : -size;
  const float edge = below ? low : high;
  const float steps = rint(precise::divide(edge, scale));
  return steps == 0.0f ? float2(scale, 0.0f) : float2(precise::divide(edge, steps), edge);
}

/** A thread quantizes eight elements. A group's threads find its minimum and maximum together. */
template <typename T, uint BITS>
[[kernel]] void quantize(
    const device T* x [[buffer(0)]],
    device uchar* packed [[buffer(1)]],
    device T* scales [[buffer(2)]],
    device T* biases [[buffer(3)]],
    constant QuantizeParams& params [[buffer(4)]],
    uint at [[thread_position_in_grid]]) {
  // Lanes past the last group do not return here, because SIMD operations need all lanes.
  const bool inside = at < params.groups * params.threads;
  float values[CODES];
  float low = INFINITY;
  float high = -INFINITY;
  if (inside) {
    const device packed4<T>* quads = (const device packed4<T>*)(x + size_t(at) * CODES);
    for (uint q = 0; q < CODES / READS; q++) {
      const packed4<T> quad = quads[q];
      for (uint i = 0; i < READS; i++) {
        const float value = float(quad[i]);
        values[q * READS + i] = value;
        low = value < low ? value : low; // NaN is neither
        high = value > high ? value : high;
      }
    }
  }
  for (uint mask = params.threads / 2; mask > 0; mask /= 2) {
    const float other_low = simd_shuffle_xor(low, ushort(mask));
    const float other_high = simd_shuffle_xor(high, ushort(mask));
    low = other_low < low ? other_low : low;
    high = other_high > high ? other_high : high;
  }
  if (!inside) {
    return;
  }
  const float top = float((1u << BITS) - 1);
  const float2 by = scale_and_bias(low, high, top);
  if (at % params.threads == 0) {
    scales[at / params.threads] = T(by.x);
    biases[at / params.threads] = T(by.y);
  }
  ulong codes = 0;
  for (uint i = 0; i < CODES; i++) {
    const float code = rint(precise::divide(values[i] - by.y, by.x));
    const float kept = code > 0.0f ? (code < top ? code : top) : 0.0f; // 0 for NaN
    codes |= ulong(uint(kept)) << (BITS * i);
  }
  store_codes<BITS>(packed, at, codes);
}

/** Computes the eight elements of thread `at`: codes of thread `from` times scale, plus bias. */
template <typename T, uint BITS>
METAL_FUNC void dequantize_codes(
    const device uchar* packed,
    const device T* scales,
    const device T* biases,
    device T* out,
    uint threads,
    uint from,
    uint at) {
  const float scale = float(scales[from / threads]);
  const float bias = float(biases[from / threads]);
  const ulong codes = load_codes<BITS>(packed, from);
  device packed4<T>* quads = (device packed4<T>*)(out + size_t(at) * CODES);
  for (uint q = 0; q < CODES / READS; q++) {
    packed4<T> quad;
    for (uint i = 0; i < READS; i++) {
      const uint code = uint(codes >> (BITS * (q * READS + i))) & ((1u << BITS) - 1);
      quad[i] = T(float(T(float(code) * scale)) + bias);
    }
    quads[q] = quad;
  }
}

template <typename T, uint BITS>
[[kernel]] void dequantize(
    const device uchar* packed [[buffer(0)]],
    const device T* scales [[buffer(1)]],
    const device T* biases [[buffer(2)]],
    device T* out [[buffer(3)]],
    constant QuantizeParams& params [[buffer(4)]],
    uint at [[thread_position_in_grid]]) {
  if (at < params.groups * params.threads) {
    dequantize_codes<T, BITS>(packed, scales, biases, out, params.threads, at, at);
  }
}

/** Gathers the rows `ids` of a matrix. An id beyond the matrix stands for the last row. */
template <typename T, uint BITS>
[[kernel]] void dequantize_rows(
    const device uchar* packed [[buffer(0)]],
    const device T* scales [[buffer(1)]],
    const device T* biases [[buffer(2)]],
    const device uint* ids [[buffer(3)]],
    device T* out [[buffer(4)]],
    constant QuantizeParams& params [[buffer(5)]],
    uint at [[thread_position_in_grid]]) {
  if (at < params.groups * params.threads) {
    const uint threads = params.columns * params.threads; // of a row
    const uint row = min(ids[at / threads], params.rows - 1);
    const uint from = row * threads + at % threads;
    dequantize_codes<T, BITS>(packed, scales, biases, out, params.threads, from, at);
  }
}

#define QUANTIZE_BITS(DTYPE, T, BITS)                                     \
  MLXP_KERNEL("mlxp_quantize_" #BITS "_" DTYPE, quantize<T, BITS>)        \
  MLXP_KERNEL("mlxp_quantize_back_" #BITS "_" DTYPE, dequantize<T, BITS>) \
  MLXP_KERNEL("mlxp_quantize_rows_" #BITS "_" DTYPE, dequantize_rows<T, BITS>)

#define QUANTIZE_KERNELS(DTYPE, T) \
  QUANTIZE_BITS(DTYPE, T, 2)       \
  QUANTIZE_BITS(DTYPE, T, 3)       \
  QUANTIZE_BITS(DTYPE, T, 4)       \
  QUANTIZE_BITS(DTYPE, T, 5)       \
  QUANTIZE_BITS(DTYPE, T, 6)       \
  QUANTIZE_BITS(DTYPE, T, 8)

MLXP_EACH_DTYPE(QUANTIZE_KERNELS)
