// Shared by the kernels of quantized weights: the packing, and the steps after the products.
#pragma once

#include "common.h"
#include "quantized_matmul.h"

// Rows of packed weights are little-endian streams of BITS-bit numbers. A lane loads
// QUANTIZED_VALUES of them at a time, in words whose 16-bit halves each begin with whole numbers.

template <uint BITS>
struct Format {
  enum : uint {
    words = BITS == 2  ? 1
            : BITS > 4 ? 4
                       : 2,
    per_half = BITS == 3   ? 4
               : BITS == 5 ? 2
               : BITS == 6 ? 2
                           : 16 / BITS,
  };
};

/** The numbers that codes represent: integers, or floats whose scales are bytes. */
enum : uint {
  INTEGERS = 0, // scaled by numbers of the model's type, with biases
  MX_FLOATS,    // scaled by powers of two
  NV_FLOATS,    // scaled by floats of 8 bits
};

/** The float of 4 or 8 bits at an index in both halves of a word. */
template <uint BITS>
METAL_FUNC half2 two_floats(uint word, uint index) {
  // Exponent and mantissa move to the border of those fields in a half, the sign to its own place.
  // The number is then too small by a power of two, which also holds for subnormal numbers.
  const uint bit = index * BITS;
  const uint place = BITS == 4 ? 9 : 7;
  const uint placed =
      bit < place ? word << (place - min(bit, place)) : word >> (bit - min(bit, place));
  uint magnitude = placed & (BITS == 4 ? 0x0e000e00u : 0x3f803f80u);
  if (BITS == 8) {
    magnitude |= (magnitude + 0x00800080u) & 0x40004000u; // all ones are NaN
  }
  const uint sign = word << (16 - BITS - bit) & 0x80008000u;
  return as_type<half2>(magnitude | sign) * half2(BITS == 4 ? 16384.0f : 256.0f);
}

/**
 * Returns what `two_numbers` adds to each number. It writes a number into the mantissa of a half,
 * which takes no conversion, and so gets the number plus a power of two.
 */
template <typename T, uint BITS, uint FLOATS>
METAL_FUNC float added_number() {
  return FLOATS || sizeof(T) == sizeof(float) ? 0.0f : float(1u << BITS);
}

/** The numbers at an index in both halves of a word, plus `added_number`. */
template <typename T, uint BITS, uint FLOATS>
METAL_FUNC float2 two_numbers(uint word, uint index) {
  if (FLOATS) {
    return float2(two_floats<BITS>(word, index));
  }
  const uint bit = index * BITS;
  const uint ones = (1u << BITS) - 1u;
  if (sizeof(T) == sizeof(float)) {
    return float2(float((word >> bit) & ones), float((word >> (16 + bit)) & ones));
  }
  const uint place = 10 - BITS; // the upper bits of a mantissa
  const uint placed =
      bit < place ? word << (place - min(bit, place)) : word >> (bit - min(bit, place));
  const uint mask = ones << place;
  const uint exponent = (15 + BITS) << 10;
  return float2(as_type<half2>((placed & mask * 0x10001u) | exponent * 0x10001u));
}

/** The words of the lane with this index, counted from the beginning of a row. */
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
  } else if (BITS == 5) {
    const device ushort* from = (const device ushort*)row + lane * 5;
    const uint a = from[0];
    const uint b = from[1];
    const uint c = from[2];
    const uint d = from[3];
    const uint e = from[4];
    words[0] = as_type<uint>(ushort2(ushort(a), ushort(a >> 10 | b << 6)));
    words[1] = as_type<uint>(ushort2(ushort(b >> 4), ushort(b >> 14 | c << 2)));
    words[2] = as_type<uint>(ushort2(ushort(c >> 8 | d << 8), ushort(d >> 2)));
    words[3] = as_type<uint>(ushort2(ushort(d >> 12 | e << 4), ushort(e >> 6)));
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

/** One matrix. Scales and biases are of T, or scales are bytes. */
template <typename T>
struct Part {
  const device uchar* packed;
  const device uchar* scales;
  const device uchar* biases;
};

template <typename T, uint FLOATS, typename I>
METAL_FUNC float scale_at(Part<T> part, I index) {
  if (!FLOATS) {
    return float(((const device T*)part.scales)[index]);
  }
  const uint e = part.scales[index];
  if (FLOATS == NV_FLOATS) {
    return float(two_floats<8>(e, 0)[0]);
  }
  return float(T(as_type<float>(e == 0u ? 0x00400000u : e << 23)));
}

template <typename T, uint FLOATS, typename I>
METAL_FUNC float bias_at(Part<T> part, I index) {
  return FLOATS ? 0.0f : float(((const device T*)part.biases)[index]);
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

/** The part that a threadgroup computes, its block within the part, and the first column of the
 * part. */
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

/** silu(gate) * up, each operation rounded to T as if it were separate. */
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
