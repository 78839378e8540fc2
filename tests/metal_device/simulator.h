// Shared by the two source files of the stand-in for Metal's device.
#pragma once

#include "mlx-primitives/src/simulate.rs.h"
#include "mlx/backend/metal/device.h"

namespace bridge = mlx_primitives::bridge;

struct MTL::ComputePipelineState::Kernel {
  rust::Box<bridge::SimulatedKernel> simulated;
};
