// What the kernels of quantized weights share: the packing, and what follows the products.
#pragma once

#include "common.h"
#include "quantized_matmul.h"

// Rows of packed weights are little-endian streams of BITS-bit numbers. A lane takes them in fields
// of whole words, or of 24 bits where numbers of three and six bits would straddle words.

template <uint BITS>
struct Format {
  enum : uint {
    fields = BITS == 2   ? 1
             : BITS == 6 ? 4
                         : 2,
    per_field = (BITS == 3 || BITS == 6 ? 24 : 32) / BITS,
    values = fields * per_field, // of a lane
    step = SIMD_WIDTH * values,  // of a SIMD group
  };
};

template <uint BITS, bool FP4>
METAL_FUNC float number(uint field, uint index) {
  const uint q = (field >> (index * BITS)) & ((1u << BITS) - 1u);
  if (!FP4) {
    return float(q);
  }
  // Sign, two bits of exponent, one of mantissa: 2^126 too small once in place; below 1 only 0.5.
  const float above = as_type<float>(((q & 7u) << 22) + (126u << 23));
  const float magnitude = (q & 6u) != 0u ? above : 0.5f * float(q & 1u);
  return (q & 8u) != 0u ? -magnitude : magnitude;
}

/**
 * The same without a shift: the number times a power of two, of which `unit_in_place` is the
 * reciprocal. Of a word it is taken from the half that holds it.
 */
template <uint BITS, bool FP4>
METAL_FUNC float number_in_place(uint field, uint index) {
  if (FP4) {
    return number<BITS, FP4>(field, index);
  }
  const uint mask = (1u << BITS) - 1u;
  if (BITS == 3 || BITS == 6) {
    return float(field & (mask << (index * BITS)));
  }
  const ushort2 halves = as_type<ushort2>(field);
  const ushort half_field = index * BITS < 16 ? halves[0] : halves[1];
  return float(ushort(half_field & ushort(mask << (index * BITS % 16))));
}

template <uint BITS, bool FP4>
METAL_FUNC float unit_in_place(uint index) {
  if (FP4) {
    return 1.0f;
  }
  const uint shift = BITS == 3 || BITS == 6 ? index * BITS : index * BITS % 16;
  return 1.0f / float(1u << shift);
}

/** Six bytes as two fields of 24 bits. */
METAL_FUNC void load_halves(const device ushort* halves, thread uint* fields) {
  const uint middle = halves[1];
  fields[0] = uint(halves[0]) | ((middle & 0xffu) << 16);
  fields[1] = (middle >> 8) | (uint(halves[2]) << 8);
}

/** The fields of the lane of this number, counted from the beginning of a row. */
template <uint BITS>
METAL_FUNC void load_fields(const device uchar* row, uint lane, thread uint* fields) {
  if (BITS == 2) {
    fields[0] = ((const device uint*)row)[lane];
  } else if (BITS == 3) {
    load_halves((const device ushort*)row + lane * 3, fields);
  } else if (BITS == 6) {
    const device uint* words = (const device uint*)row + lane * 3;
    const uint a = words[0];
    const uint b = words[1];
    const uint c = words[2];
    fields[0] = a & 0xffffffu;
    fields[1] = (a >> 24) | ((b & 0xffffu) << 8);
    fields[2] = (b >> 16) | ((c & 0xffu) << 16);
    fields[3] = c >> 8;
  } else {
    const packed_uint2 words = ((const device packed_uint2*)row)[lane];
    fields[0] = words[0];
    fields[1] = words[1];
  }
}

/** One matrix. Scales are of T, or bytes that stand for powers of two. */
template <typename T>
struct Part {
  const device uchar* packed;
  const device uchar* scales;
  const device T* biases;
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
  return FP4 ? 0.0f : float(part.biases[index]);
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
