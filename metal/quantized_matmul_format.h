// What the kernels of quantized weights share: the packing, and what follows the products.
#pragma once

#include "common.h"
#include "quantized_matmul.h"

// Rows of packed weights are little-endian streams of BITS-bit numbers. A lane takes them in words
// of which each half of 16 bits begins with whole numbers: QUANTIZED_VALUES of them at a time.

template <uint BITS>
struct Format {
  enum : uint {
    words = BITS == 2  ? 1
            : BITS > 4 ? 4
                       : 2,
    per_half = BITS == 3   ? 4
               : BITS == 6 ? 2
                           : 16 / BITS,
  };
};

/** The number that begins at a bit of a word. */
template <uint BITS, bool FP4>
METAL_FUNC float number(uint word, uint bit) {
  const uint q = (word >> bit) & ((1u << BITS) - 1u);
  if (!FP4) {
    return float(q);
  }
  // Sign, two bits of exponent, one of mantissa: 2^126 too small once in place; below 1 only 0.5.
  const float above = as_type<float>(((q & 7u) << 22) + (126u << 23));
  const float magnitude = (q & 6u) != 0u ? above : 0.5f * float(q & 1u);
  return (q & 8u) != 0u ? -magnitude : magnitude;
}

/**
 * Returns what `two_numbers` adds to each number. It writes a number into the mantissa of a half,
 * which takes no conversion, and so gets the number plus a power of two.
 */
template <typename T, uint BITS, bool FP4>
METAL_FUNC float added_number() {
  return FP4 || sizeof(T) == sizeof(float) ? 0.0f : float(1u << BITS);
}

/** The numbers at an index in both halves of a word; of float32 exactly as they are. */
template <typename T, uint BITS, bool FP4>
METAL_FUNC float2 two_numbers(uint word, uint index) {
  const uint bit = index * BITS;
  if (FP4 || sizeof(T) == sizeof(float)) {
    return float2(number<BITS, FP4>(word, bit), number<BITS, FP4>(word, 16 + bit));
  }
  const uint place = 10 - BITS; // the upper bits of a mantissa
  const uint placed =
      bit < place ? word << (place - min(bit, place)) : word >> (bit - min(bit, place));
  const uint mask = ((1u << BITS) - 1u) << place;
  const uint exponent = (15 + BITS) << 10;
  return float2(as_type<half2>((placed & mask * 0x10001u) | exponent * 0x10001u));
}

/** The words of the lane of this number, counted from the beginning of a row. */
template <uint BITS>
METAL_FUNC void load_words(const device uchar* row, uint lane, thread uint* words) {
  if (BITS == 2) {
    words[0] = ((const device uint*)row)[lane];
  } else if (BITS == 3) {
    const device ushort* from = (const device ushort*)row + lane * 3;
    const uint a = from[0];
    const uint b = from[1];
    const uint c = from[2];
    words[0] = as_type<uint>(ushort2(ushort(a), ushort(a >> 12 | b << 4)));
    words[1] = as_type<uint>(ushort2(ushort(b >> 8 | c << 8), ushort(c >> 4)));
  } else if (BITS == 6) {
    const device uint* from = (const device uint*)row + lane * 3;
    const uint a = from[0];
    const uint b = from[1];
    const uint c = from[2];
    words[0] = as_type<uint>(ushort2(ushort(a), ushort(a >> 12)));
    words[1] = as_type<uint>(ushort2(ushort(a >> 24 | b << 8), ushort(b >> 4)));
    words[2] = as_type<uint>(ushort2(ushort(b >> 16), ushort(b >> 28 | c << 4)));
    words[3] = as_type<uint>(ushort2(ushort(c >> 8), ushort(c >> 20)));
  } else if (BITS == 8) {
    const packed_uint4 from = ((const device packed_uint4*)row)[lane];
    for (uint w = 0; w < 4; w++) {
      words[w] = from[w];
    }
  } else {
    const packed_uint2 from = ((const device packed_uint2*)row)[lane];
    words[0] = from[0];
    words[1] = from[1];
  }
}

/** One matrix. Scales and biases are of T, or scales are bytes that stand for powers of two. */
template <typename T>
struct Part {
  const device uchar* packed;
  const device uchar* scales;
  const device uchar* biases;
};

template <typename T, bool FP4, typename I>
METAL_FUNC float scale_at(Part<T> part, I index) {
  if (!FP4) {
    return float(((const device T*)part.scales)[index]);
  }
  const uint e = part.scales[index];
  return float(T(as_type<float>(e == 0u ? 0x00400000u : e << 23)));
}

template <typename T, bool FP4, typename I>
METAL_FUNC float bias_at(Part<T> part, I index) {
  return FP4 ? 0.0f : float(((const device T*)part.biases)[index]);
}

template <typename T>
METAL_FUNC Part<T> part_of(uint index, Part<T> a, Part<T> b, Part<T> c) {
  Part<T> part = a;
  if (index == 1) {
    part = b;
  }
  if (index == 2) {
    part = c;
  }
  return part;
}

/** The part that a threadgroup works on, its block within that, and where that part's columns
 * begin. */
struct Where {
  uint part;
  uint block;
  uint columns_before;
};

METAL_FUNC Where find_part(uint block, constant QuantizedMatmulParams& params) {
  Where where = {0, block, 0};
  for (uint i = 1; i < params.parts; i++) {
    if (params.swiglu == 0 && block >= params.part_blocks[i]) {
      where.part = i;
      where.block = block - params.part_blocks[i];
      where.columns_before += params.part_columns[i - 1];
    }
  }
  return where;
}

/** silu(gate) * up, each operation rounded to T as one of its own would. */
template <typename T>
METAL_FUNC float swiglu(float gate, float up) {
  const float power = precise::exp(-fabs(gate));
  const float sigmoid = float(T((gate < 0.0f ? power : 1.0f) / (1.0f + power)));
  return float(T(float(T(gate * sigmoid)) * up));
}

template <typename T>
METAL_FUNC void write_result(
    float y,
    uint row,
    uint column,
    const device T* bias,
    const device T* residual,
    device T* out,
    constant QuantizedMatmulParams& params) {
  const size_t at = size_t(row) * params.columns + column;
  if (params.biased != 0) {
    y = float(T(y + float(bias[column])));
  }
  if (params.added != 0) {
    y = float(T(y + float(residual[at])));
  }
  out[at] = T(y);
}
