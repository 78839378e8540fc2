// How weights are packed, and the steps after products. All kernels that multiply with packed
// weights use this file. A weight is packed as a code of BITS bits; groups of codes share a scale
// and, in some formats, a bias.
#pragma once

#include "common.h"
#include "quantized_matmul.h"

// A row of packed weights is a little-endian stream of codes of BITS bits. A lane loads
// QUANTIZED_VALUES codes into words. Each 16-bit half of a word begins with a code and holds
// `per_half` codes.

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

/** The numbers that codes represent: integers, or floats with scales of one byte. */
enum : uint {
  INTEGERS = 0, // scaled by numbers of the model's type, with biases
  MX_FLOATS,    // scaled by powers of two
  NV_FLOATS,    // scaled by floats of 8 bits
  K_QUANTS,     // integers with scales and biases in blocks
};

constexpr bool are_floats(uint kind) {
  return kind == MX_FLOATS || kind == NV_FLOATS;
}

/** Converts the codes at an index of both halves of a word, which are floats of 4 or 8 bits. */
template <uint BITS>
METAL_FUNC half2 two_floats(uint word, uint index) {
  // Shift exponent and mantissa to their fields in a half, and the sign to its bit. The result is
  // too small by a power of two, which is equal for normal and subnormal numbers.
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
 * Returns the number that `two_numbers` adds to each code. To avoid a conversion, `two_numbers`
 * writes a code into the mantissa of a half. The value of this half is a power of two plus the
 * code.
 */
template <typename T, uint BITS, uint FLOATS>
METAL_FUNC float added_number() {
  return are_floats(FLOATS) || sizeof(T) == sizeof(float) ? 0.0f : float(1u << BITS);
}

/** Returns the codes at an index of both halves of a word, each increased by `added_number`. */
template <typename T, uint BITS, uint FLOATS>
METAL_FUNC float2 two_numbers(uint word, uint index) {
  if (are_floats(FLOATS)) {
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

/** The type of the pieces in which a lane loads packed codes. */
template <uint BITS>
using piece_t = conditional_t<BITS == 3 || BITS == 5, ushort, uint>;

template <uint BITS>
struct Pieces {
  enum : uint { count = BITS == 3 || BITS == 5 ? BITS : BITS / 2 };
};

/** Loads the pieces of the lane with this index. Indices count from the beginning of a row. */
template <uint BITS>
METAL_FUNC void load_pieces(const device uchar* row, uint lane, thread piece_t<BITS>* pieces) {
  if (BITS == 4) {
    const packed_uint2 both = ((const device packed_uint2*)row)[lane];
    pieces[0] = both[0];
    pieces[1] = both[1];
  } else if (BITS == 8) {
    const packed_uint4 all = ((const device packed_uint4*)row)[lane];
    for (uint i = 0; i < 4; i++) {
      pieces[i] = all[i];
    }
  } else {
    constexpr uint COUNT = Pieces<BITS>::count;
    const device piece_t<BITS>* from = (const device piece_t<BITS>*)row + lane * COUNT;
    for (uint i = 0; i < COUNT; i++) {
      pieces[i] = from[i];
    }
  }
}

/** Converts the pieces of a lane to words. */
template <uint BITS>
METAL_FUNC void unpack(const thread piece_t<BITS>* pieces, thread uint* words) {
  uint at[5]; // as integers of 32 bits
  for (uint i = 0; i < 5; i++) {
    at[i] = pieces[min(i, Pieces<BITS>::count - 1)];
  }
  if (BITS == 3) {
    words[0] = as_type<uint>(ushort2(ushort(at[0]), ushort(at[0] >> 12 | at[1] << 4)));
    words[1] = as_type<uint>(ushort2(ushort(at[1] >> 8 | at[2] << 8), ushort(at[2] >> 4)));
  } else if (BITS == 5) {
    words[0] = as_type<uint>(ushort2(ushort(at[0]), ushort(at[0] >> 10 | at[1] << 6)));
    words[1] = as_type<uint>(ushort2(ushort(at[1] >> 4), ushort(at[1] >> 14 | at[2] << 2)));
    words[2] = as_type<uint>(ushort2(ushort(at[2] >> 8 | at[3] << 8), ushort(at[3] >> 2)));
    words[3] = as_type<uint>(ushort2(ushort(at[3] >> 12 | at[4] << 4), ushort(at[4] >> 6)));
  } else if (BITS == 6) {
    words[0] = as_type<uint>(ushort2(ushort(at[0]), ushort(at[0] >> 12)));
    words[1] = as_type<uint>(ushort2(ushort(at[0] >> 24 | at[1] << 8), ushort(at[1] >> 4)));
    words[2] = as_type<uint>(ushort2(ushort(at[1] >> 16), ushort(at[1] >> 28 | at[2] << 4)));
    words[3] = as_type<uint>(ushort2(ushort(at[2] >> 8), ushort(at[2] >> 20)));
  } else {
    for (uint w = 0; w < Format<BITS>::words; w++) {
      words[w] = at[w];
    }
  }
}

/** One packed matrix. `Scales` below says how the scales and biases are stored. */
template <typename T>
struct Part {
  const device uchar* packed;
  const device uchar* scales;
  const device uchar* biases;
};

/** The scales of groups as they are stored, and their biases if the format is affine. */
template <typename T, uint BITS, uint KIND>
struct Scales {
  typedef conditional_t<KIND == INTEGERS, T, uchar> stored;

  template <typename I>
  METAL_FUNC static stored load(Part<T> part, I index) {
    return ((const device stored*)part.scales)[index];
  }
  METAL_FUNC static float number(stored scale) {
    if (KIND == INTEGERS) {
      return float(scale);
    }
    const uint e = uint(scale);
    if (KIND == NV_FLOATS) {
      return float(two_floats<8>(e, 0)[0]);
    }
    return float(T(as_type<float>(e == 0u ? 0x00400000u : e << 23)));
  }
  METAL_FUNC static float bias(stored, T bias) {
    return KIND == INTEGERS ? float(bias) : 0.0f;
  }
  /** The number of bytes that the scales of these groups take. */
  METAL_FUNC static size_t bytes(size_t groups) {
    return groups * (KIND == INTEGERS ? sizeof(T) : 1);
  }
};

/** The stored scale data of a group in a format with K-quants, read from its block. */
struct OfBlock {
  uint steps; // two halves
  uchar scale;
  uchar bias;
};

/**
 * The groups of a block of 256 weights share 20 bytes: two floats of 16 bits, which multiply the
 * scales and the biases, then sixteen integers. With 6 bits, these integers are the scales of
 * sixteen groups, plus 128, and the codes have the offset 32. With other bits, the integers are the
 * scales, then the biases, of eight groups.
 */
template <typename T, uint BITS>
struct Scales<T, BITS, K_QUANTS> {
  enum : uint { GROUPS = BITS == 6 ? 16 : 8, BYTES = 20 };
  typedef OfBlock stored;

  template <typename I>
  METAL_FUNC static stored load(Part<T> part, I index) {
    const device uchar* block = part.scales + index / GROUPS * BYTES;
    const uint within = uint(index % GROUPS);
    stored of_group;
    of_group.steps = *(const device uint*)block;
    of_group.scale = block[4 + within];
    of_group.bias = BITS == 6 ? uchar(0) : block[4 + GROUPS + within];
    return of_group;
  }
  METAL_FUNC static float number(stored of_group) {
    const float integer = float(of_group.scale) - (BITS == 6 ? 128.0f : 0.0f);
    return float(as_type<half2>(of_group.steps)[0]) * integer;
  }
  METAL_FUNC static float bias(stored of_group, T) {
    return BITS == 6 ? -32.0f * number(of_group)
                     : float(as_type<half2>(of_group.steps)[1]) * float(of_group.bias);
  }
  METAL_FUNC static size_t bytes(size_t groups) {
    return groups / GROUPS * BYTES;
  }
};

/** The stored bias of a group, if there is one. */
template <typename T, uint KIND, typename I>
METAL_FUNC T stored_bias(Part<T> part, I index) {
  return KIND == INTEGERS ? ((const device T*)part.biases)[index] : T(0.0f);
}

/** Moves the pointers to the scales and biases of a part by a number of groups. */
template <typename T, uint BITS, uint KIND>
METAL_FUNC void skip_groups(thread Part<T>& part, size_t groups) {
  part.scales += Scales<T, BITS, KIND>::bytes(groups);
  part.biases += KIND == INTEGERS ? groups * sizeof(T) : 0;
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

/**
 * The part (one of up to three matrices) that a threadgroup computes, the block in this part, and
 * the first column of the part in the output.
 */
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

/** silu(gate) * up, with each operation rounded to T as in separate ops. */
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
