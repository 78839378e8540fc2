#pragma once

#include "runtime/dispatch.h"

namespace mlx_primitives {

/**
 * Plans a launch of rows for an NVIDIA GPU. Its cores run several threadgroups at a time, therefore
 * a launch with many rows gets small threadgroups, and 16-bit elements are read eight at a time.
 * The numbers were measured on an H200: benches/results.
 */
void plan_cuda_rows(Launch& launch, uint32_t most_threads);

} // namespace mlx_primitives
