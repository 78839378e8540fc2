// Products of few rows with packed weights on NVIDIA GPUs.
#pragma once

#include "nvidia/fragments.h"
#include "quantized_matmul_stage.h"

enum : uint {
  FEW_BLOCK = 128, // columns of x that a SIMD group multiplies at a time
  FEW_CHUNK = 32,  // of them for each of four lanes
  FEW_UNITS = FEW_CHUNK / QUANTIZED_VALUES,
  FEW_ROWS = 16, // of weights for a SIMD group
};

/** What `few_numbers` adds to each number. */
template <typename T, uint BITS, uint FLOATS>
METAL_FUNC float few_added() {
  return FLOATS || (is_same_v<T, bfloat> && BITS == 8) ? 0.0f : float(1u << BITS);
}

/** The bits of both elements that `few_numbers` adds a number to. */
template <typename T, uint BITS>
METAL_FUNC uint few_exponents() {
  if (is_same_v<T, bfloat> && BITS == 8) {
    return 0x43004300u; // 128
  }
  return (is_same_v<T, half> ? (15 + BITS) << 10 : (127 + BITS) << 7) * 0x10001u;
}

/** The numbers at an index in both halves of a word, plus `few_added`, as two elements. */
template <typename T, uint BITS, uint FLOATS>
METAL_FUNC uint few_numbers(uint word, uint index, uint exponents) {
  if (FLOATS) {
    const half2 both = two_floats<BITS>(word, index);
    return is_same_v<T, half> ? as_type<uint>(both)
                              : two_elements<T>(float(both[0]), float(both[1]));
  }
  const uint bit = index * BITS;
  if (is_same_v<T, bfloat> && BITS == 8) {
    // Seven bits in a mantissa are the number plus 128, which is taken away where the eighth bit,
    // worth as much, is 0.
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

/** The weights of two rows that a lane multiplies with a block of x, as they are loaded. */
template <typename T, uint BITS, uint FLOATS>
struct FewWeights {
  enum : uint {
    pieces_of_row = FEW_UNITS * Pieces<BITS>::count,
    scales_of_row = FLOATS == NV_FLOATS ? 2 : 1,
  };
  piece_t<BITS> pieces[2 * pieces_of_row];
  scale_t<T, FLOATS> scales[2 * scales_of_row];
  T biases[2];
};

/**
 * Loads the weights of the block at k, and the scale and the bias of the lane's columns of results:
 * of the groups, which have SPAN chunks in the block, the one with the number of the lane.
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
    if (BITS == 4 || BITS == 8) { // whose chunks are multiples of 16 bytes
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
      weights.scales[r * W::scales_of_row + i] = stored_scale<T, FLOATS>(parts[r], group + i);
    }
    if (!FLOATS) {
      weights.biases[r] = ((const device T*)parts[r].biases)[group];
    }
  }
}

/** Where the columns of `texts` rows of x from k0 on are staged, `count` of each. */
template <typename T>
struct FewStage {
  threadgroup T* values;
  threadgroup float* totals; // of QUANTIZED_VALUES columns, for all rows of x
  uint k0;
  uint count;
  uint texts;

  METAL_FUNC uint pitch() const {
    return count + QUANTIZED_FEW_PAD;
  }
};

/**
 * Stages the values of `index`, QUANTIZED_VALUES columns of a row, in the order in which
 * `few_numbers` gives the weights: eight for a lane, of the lanes of a block one after the other.
 */
template <typename T, uint BITS, uint BAND>
METAL_FUNC void stage_few(
    const device T* x,
    const device T* norm,
    uint top,
    FewStage<T> stage,
    uint index,
    const threadgroup float* inverses,
    constant QuantizedMatmulParams& params) {
  typedef Format<BITS> F;
  const uint units = stage.count / QUANTIZED_VALUES;
  const uint text = index / units;
  const uint unit = index % units;
  const uint k = stage.k0 + unit * QUANTIZED_VALUES;
  const bool live = top + text < params.rows && k < params.axis;
  T values[QUANTIZED_VALUES];
  float total = 0.0f;
  for (uint i = 0; i < QUANTIZED_VALUES; i += READS) {
    const uint row = top + text < params.rows ? top + text : top;
    Values<T> loaded = load_values(x + size_t(row) * params.axis, norm, k + i, live, params);
    if (params.normed != 0) {
      loaded.x = normalized(loaded, inverses[text]);
    }
    for (uint j = 0; j < READS; j++) {
      values[i + j] = loaded.x[j];
      total += float(values[i + j]);
    }
  }
  stage.totals[unit * BAND + text] = total;
  if (text == stage.texts - 1) {
    for (uint other = stage.texts; other < BAND; other++) {
      stage.totals[unit * BAND + other] = 0.0f;
    }
  }
  constexpr uint UNITS = FEW_BLOCK / QUANTIZED_VALUES; // of a block
  threadgroup T* to = stage.values + text * stage.pitch() + unit / UNITS * FEW_BLOCK +
                      unit % FEW_UNITS * (FEW_BLOCK / FEW_UNITS) + unit % UNITS / FEW_UNITS * 8;
  for (uint half_of_unit = 0; half_of_unit < 2; half_of_unit++) {
    uint4 pairs;
    for (uint i = 0; i < 4; i++) {
      const uint p = half_of_unit * 4 + i;
      const uint from = p / F::per_half * 2 * F::per_half + p % F::per_half;
      pairs[i] = as_type<uint>(vec<T, 2>(values[from], values[from + F::per_half]));
    }
    *(threadgroup uint4*)(to + half_of_unit * FEW_CHUNK) = pairs;
  }
}

/** The staged values that a lane multiplies in each pass, and the sums of its columns. */
template <uint PASSES>
struct FewPlaces {
  const threadgroup uint4* x[PASSES]; // zeros in the passes for the columns of other lanes
  uint steps[PASSES];                 // from one block to the next, 0 for zeros
  const threadgroup float* totals;
};

/** Adds the products with a block of x. */
template <typename T, uint BITS, uint FLOATS, uint BAND, uint SPAN>
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
      scale[r] = live ? scale_number<T, FLOATS>(weights.scales[r * PARTS + part]) : 0.0f;
      offset[r] = FLOATS || !live ? 0.0f : float(weights.biases[r]);
      offset[r] = fma(-few_added<T, BITS, FLOATS>(), scale[r], offset[r]);
    }
    for (uint p = 0; p < PASSES; p++) {
      float total[2] = {0.0f, 0.0f};
      if (!FLOATS) {
        for (uint unit = 0; unit < SPAN * FEW_UNITS; unit++) {
          for (uint i = 0; i < 2; i++) {
            total[i] += places.totals[(p * SPAN * FEW_UNITS + unit) * BAND + i];
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
