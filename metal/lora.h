#pragma once

#include "shared.h"

namespace mlx_primitives {

enum : unsigned {
  LORA_ROWS = 8,      // rows of the result for which B is read once
  LORA_THREADS = 128, // threads of a threadgroup, one for each column
};

struct LoraParams {
  unsigned rows;
  unsigned columns;
  unsigned rank;
  float scale;
};

} // namespace mlx_primitives
