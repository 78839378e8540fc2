// Loads rows of unquantized weights in the register layout of fragments.h.
#pragma once

#include "linear.h"
#include "nvidia/fragments.h"

/** The elements of two rows of weights that a lane multiplies at a time. */
struct TileWeights {
  uint4 words[2][LINEAR_TILE_LOADS];
};

/** Loads a lane's weights of two rows: LINEAR_TILE_LOADS times eight elements, beginning at k, at
 * k + 32 and so on, with zeros past the end of the rows. */
template <typename T>
METAL_FUNC void load_tile_weights(
    thread TileWeights& weights, const device T* const thread* rows, uint k, uint axis) {
  for (uint r = 0; r < 2; r++) {
    for (uint i = 0; i < LINEAR_TILE_LOADS; i++) {
      const uint at = k + 32 * i;
      weights.words[r][i] = uint4(0);
      if (at < axis) {
        weights.words[r][i] = load_once((const device uint*)(rows[r] + at));
      }
    }
  }
}
