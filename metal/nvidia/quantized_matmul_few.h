// Products of few rows of x with packed weights on NVIDIA GPUs. A weight is packed as a code of a
// few bits; groups of codes share a scale and a bias. A band is a block of rows of x that a kernel
// computes together.
#pragma once

#include "nvidia/fragments.h"
#include "nvidia/quantized_matmul_few_stage.h"

/** The number that `few_numbers` adds to each weight. */
template <typename T, uint BITS, uint FLOATS>
METAL_FUNC float few_added() {
  return FLOATS || (is_same_v<T, bfloat> && BITS == 8) ? 0.0f : float(1u << BITS);
}

/** The exponent bits of two elements. `few_numbers` puts weights into the mantissas. */
template <typename T, uint BITS>
METAL_FUNC uint few_exponents() {
  if (is_same_v<T, bfloat> && BITS == 8) {
    return 0x43004300u; // 128
  }
  return (is_same_v<T, half> ? (15 + BITS) << 10 : (127 + BITS) << 7) * 0x10001u;
}

/** The codes at an index of both halves of a word, plus `few_added`, as two elements. */
template <typename T, uint BITS, uint FLOATS>
METAL_FUNC uint few_numbers(uint word, uint index, uint exponents) {
  if (FLOATS) {
    const half2 both = two_floats<BITS>(word, index);
    return is_same_v<T, half> ? as_type<uint>(both)
                              : two_elements<T>(float(both[0]), float(both[1]));
  }
  const uint bit = index * BITS;
  if (is_same_v<T, bfloat> && BITS == 8) {
    // Seven bits of a code fit into the mantissa, which makes the element 128 plus these bits. The
    // eighth bit is also worth 128. If it is 0, subtract 128.
    const uint both = word >> bit;
    const uint none = (~both & 0x00800080u) * 0x86u; // 128, or 0
    return minus_two<T>(masked_or<0x007f007fu>(both, exponents), none);
  }
  constexpr uint MANTISSA = is_same_v<T, half> ? 10 : 7;
  constexpr uint PLACE = BITS < MANTISSA ? MANTISSA - BITS : 0;
  const uint placed =
      bit < PLACE ? word << (PLACE - min(bit, PLACE)) : word >> (bit - min(bit, PLACE));
  return masked_or<(((1u << BITS) - 1u) << PLACE) * 0x10001u>(placed, exponents);
}

/** The packed weights of two rows that a lane multiplies with a block of x. */
template <typename T, uint BITS, uint FLOATS>
struct FewWeights {
  enum : uint {
    pieces_of_row = FEW_UNITS * Pieces<BITS>::count,
    scales_of_row = FLOATS == NV_FLOATS ? 2 : 1,
  };
  piece_t<BITS> pieces[2 * pieces_of_row];
  typename Scales<T, BITS, FLOATS>::stored scales[2 * scales_of_row];
  T biases[2];
};

/**
 * Loads the weights of the block at k, and the scale and the bias for the lane's columns of
 * results. If the block has several groups, of SPAN chunks each, the lane selects its group.
 */
template <typename T, uint BITS, uint FLOATS, uint SPAN>
METAL_FUNC void load_few(
    thread FewWeights<T, BITS, FLOATS>& weights,
    const thread Part<T>* parts,
    uint k,
    uint t,
    constant QuantizedMatmulParams& params) {
  typedef FewWeights<T, BITS, FLOATS> W;
  const uint last = params.axis - FEW_CHUNK;
  const uint chunk = min(k + t * FEW_CHUNK, last) / FEW_CHUNK;
  const uint group = min(k + t % (4 / SPAN) * SPAN * FEW_CHUNK, last) >> params.group_shift;
  for (uint r = 0; r < 2; r++) {
    thread piece_t<BITS>* to = weights.pieces + r * W::pieces_of_row;
    if (BITS == 4 || BITS == 8) { // a chunk is a multiple of 16 bytes
      const device uint* from = (const device uint*)parts[r].packed + chunk * BITS;
      for (uint i = 0; i < BITS / 4; i++) {
        const uint4 all = load_once(from + 4 * i);
        for (uint j = 0; j < 4; j++) {
          to[(4 * i + j) % W::pieces_of_row] = all[j];
        }
      }
    } else {
      for (uint u = 0; u < FEW_UNITS; u++) {
        load_pieces<BITS>(parts[r].packed, chunk * FEW_UNITS + u, to + u * Pieces<BITS>::count);
      }
    }
    for (uint i = 0; i < W::scales_of_row; i++) {
      weights.scales[r * W::scales_of_row + i] = Scales<T, BITS, FLOATS>::load(parts[r], group + i);
    }
    if (FLOATS == INTEGERS) {
      weights.biases[r] = ((const device T*)parts[r].biases)[group];
    }
  }
}

/** The addresses of a lane's staged values in each pass, and of the totals for its columns. */
template <uint PASSES>
struct FewPlaces {
  const threadgroup uint4* x[PASSES]; // zeros in the passes for the columns of other lanes
  uint steps[PASSES];                 // from one block to the next, 0 for zeros
  const threadgroup float* totals;
};

/** Adds the products with a block of x. A total is the sum of x over OF_TOTAL units of
 * QUANTIZED_VALUES columns. */
template <typename T, uint BITS, uint FLOATS, uint BAND, uint SPAN, uint OF_TOTAL>
METAL_FUNC void add_few(
    thread float* sums, // of two rows of weights and two rows of x, in each pass
    const thread FewWeights<T, BITS, FLOATS>& weights,
    FewPlaces<BAND == 2 ? 1 : 4 / SPAN> places,
    bool live, // whether the lane's columns are columns of x
    uint exponents,
    uint lane) {
  typedef Format<BITS> F;
  typedef FewWeights<T, BITS, FLOATS> W;
  constexpr uint PASSES = BAND == 2 ? 1 : 4 / SPAN;
  constexpr uint PARTS = W::scales_of_row; // of a block, each with its own sums
  uint words[2][FEW_UNITS * F::words];
  for (uint r = 0; r < 2; r++) {
    for (uint u = 0; u < FEW_UNITS; u++) {
      unpack<BITS>(
          weights.pieces + r * W::pieces_of_row + u * Pieces<BITS>::count, words[r] + u * F::words);
    }
  }
  for (uint part = 0; part < PARTS; part++) {
    float products[PASSES * 4];
    for (uint i = 0; i < PASSES * 4; i++) {
      products[i] = 0.0f;
    }
    for (uint u = part * FEW_UNITS / PARTS; u < (part + 1) * FEW_UNITS / PARTS; u++) {
      for (uint h = 0; h < 2; h++) {
        uint4 x[PASSES];
        for (uint p = 0; p < PASSES; p++) {
          x[p] = places.x[p][(u * 2 + h) * 4];
        }
        for (uint j = 0; j < 2; j++) {
          uint left[4];
          for (uint i = 0; i < 4; i++) {
            const uint pair = h * 4 + j * 2 + i / 2;
            const uint word = words[i % 2][u * F::words + pair / F::per_half];
            left[i] = few_numbers<T, BITS, FLOATS>(word, pair % F::per_half, exponents);
          }
          for (uint p = 0; p < PASSES; p++) {
            const uint right[2] = {x[p][j * 2], x[p][j * 2 + 1]};
            multiply_add<T>(products + p * 4, left, right, lane);
          }
        }
      }
    }
    float scale[2];
    float offset[2];
    for (uint r = 0; r < 2; r++) {
      const auto stored = weights.scales[r * PARTS + part];
      scale[r] = live ? Scales<T, BITS, FLOATS>::number(stored) : 0.0f;
      offset[r] = live ? Scales<T, BITS, FLOATS>::bias(stored, weights.biases[r]) : 0.0f;
      offset[r] = fma(-few_added<T, BITS, FLOATS>(), scale[r], offset[r]);
    }
    for (uint p = 0; p < PASSES; p++) {
      float total[2] = {0.0f, 0.0f};
      if (!FLOATS) {
        constexpr uint COUNT = SPAN * FEW_UNITS / OF_TOTAL;
        for (uint j = 0; j < COUNT; j++) {
          for (uint i = 0; i < 2; i++) {
            total[i] += places.totals[(p * COUNT + j) * BAND + i];
          }
        }
      }
      for (uint i = 0; i < 4; i++) {
        float of_row = scale[i / 2];
        float added = offset[i / 2];
        if (BAND != 2) {
          of_row = simd_shuffle(of_row, ushort(lane / 4 * 4 + p));
          added = simd_shuffle(added, ushort(lane / 4 * 4 + p));
        }
        float sum = sums[p * 4 + i];
        sum = FLOATS ? sum : fma(added, total[i % 2], sum);
        sums[p * 4 + i] = fma(of_row, products[p * 4 + i], sum);
      }
    }
  }
}

/** Stores sums of rows of weights. The order of adding groups does not depend on BAND. */
template <uint BAND, uint SPAN>
METAL_FUNC void store_sums(thread float* sums, threadgroup float* to, uint lane) {
  constexpr uint PASSES = BAND == 2 ? 1 : 4 / SPAN;
  const uint g = lane / 4;
  const uint t = lane % 4;
  for (uint i = 0; i < 4; i++) {
    float sum = sums[i];
    if (BAND == 2) {
      for (uint p = 1; p < 4 / SPAN; p *= 2) {
        sum += simd_shuffle_xor(sum, ushort(p));
      }
    } else {
      for (uint p = 1; p < PASSES; p *= 2) { // as the lanes do
        for (uint q = 0; q + p < PASSES; q += 2 * p) {
          sums[q * 4 + i] += sums[(q + p) * 4 + i];
        }
      }
      sum = sums[i];
    }
    if (BAND != 2 || t == 0) {
      to[(g + i / 2 * 8) * BAND + (BAND == 2 ? i % 2 : t * 2 + i % 2)] = sum;
    }
  }
}

/** Adds the splits of a block of `tiles` times FEW_ROWS rows of weights, and writes the sums. */
template <typename T, uint BAND>
METAL_FUNC void write_few(
    const threadgroup float* partial,
    Where where,
    uint tiles,
    uint top,
    uint texts,
    const device T* bias,
    const device T* residual,
    device T* out,
    Place place,
    constant QuantizedMatmulParams& params) {
  const uint together = params.swiglu != 0 ? FEW_ROWS / 2 : FEW_ROWS;
  const uint last = params.part_columns[where.part] - 1;
  for (uint i = place.index; i < tiles * together * texts; i += place.threads) {
    const uint text = i % texts;
    const uint r = i / texts % together;
    const uint tile = i / texts / together;
    float y[2] = {0.0f, 0.0f};
    for (uint part = 0; part < params.splits; part++) {
      const threadgroup float* from =
          partial + (tile * params.splits + part) * FEW_ROWS * BAND + text;
      y[0] += from[r * BAND];
      y[1] += from[(r + 8) % FEW_ROWS * BAND];
    }
    float value = float(T(y[0]));
    if (params.swiglu != 0) {
      value = swiglu<T>(value, float(T(y[1])));
    }
    const uint at = (where.block * tiles + tile) * together + r;
    if (at <= last && top + text < params.rows) {
      write_result(value, top + text, where.columns_before + at, bias, residual, out, params);
    }
  }
}

/** The position of the weights that a SIMD group loads next. */
template <typename T>
struct FewCursor {
  Part<T> parts[2];
  uint block; // of rows of weights
  uint k;
};

/** Moves the cursor to the beginning of its block of rows of weights. */
template <typename T, uint BITS, uint FLOATS>
METAL_FUNC void begin_block(
    thread FewCursor<T>& cursor,
    const thread Part<T>* all,
    uint ways, // SIMD groups that share rows
    Place place,
    constant QuantizedMatmulParams& params) {
  const uint groups = params.axis >> params.group_shift;
  // For swiglu, half of the rows belong to the gate, and half to the matrix that the gate
  // multiplies.
  const uint together = params.swiglu != 0 ? FEW_ROWS / 2 : FEW_ROWS;
  const Where where = find_part(cursor.block, params);
  const uint column = (where.block * (place.simds / ways) + place.simd / ways) * together;
  const uint last = params.part_columns[where.part] - 1;
  for (uint r = 0; r < 2; r++) {
    const uint row = min(column + place.lane / 4 + (params.swiglu != 0 ? 0 : r * 8), last);
    Part<T> part = part_of(where.part + (params.swiglu != 0 ? r : 0), all[0], all[1], all[2]);
    part.packed += size_t(row) * (params.axis / 8 * BITS);
    skip_groups<T, BITS, FLOATS>(part, size_t(row) * groups);
    cursor.parts[r] = part;
  }
}

/** Loads the weights at the cursor. Moves the cursor along the rows, then `stride` blocks ahead. */
template <typename T, uint BITS, uint FLOATS, uint SPAN>
METAL_FUNC void load_next(
    thread FewWeights<T, BITS, FLOATS>& weights,
    thread FewCursor<T>& cursor,
    const thread Part<T>* all,
    uint stride,
    Place place,
    constant QuantizedMatmulParams& params) {
  if (cursor.block >= params.blocks) {
    return;
  }
  load_few<T, BITS, FLOATS, SPAN>(weights, cursor.parts, cursor.k, place.lane % 4, params);
  cursor.k += params.splits * FEW_BLOCK;
  if (cursor.k >= params.axis) {
    cursor.k = place.simd % params.splits * FEW_BLOCK;
    cursor.block += stride;
    begin_block<T, BITS, FLOATS>(cursor, all, params.splits, place, params);
  }
}
