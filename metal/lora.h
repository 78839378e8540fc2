#pragma once

#include "shared.h"

namespace mlx_primitives {

enum : unsigned {
  LORA_ROWS = 8,      // rows of the result that share a reading of B
  LORA_THREADS = 128, // of a threadgroup, one for each column
};

struct LoraParams {
  unsigned rows;
  unsigned columns;
  unsigned rank;
  float scale;
};

} // namespace mlx_primitives
