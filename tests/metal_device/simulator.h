// Declarations that both source files of the simulated Metal device use.
#pragma once

#include "mlx-primitives/src/simulate.rs.h"
#include "mlx/backend/metal/device.h"

namespace bridge = mlx_primitives::bridge;

struct MTL::ComputePipelineState::Kernel {
  rust::Box<bridge::SimulatedKernel> simulated;
};
