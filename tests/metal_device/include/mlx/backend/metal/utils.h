// Replaces MLX 0.32.4's mlx/backend/metal/utils.h.
#pragma once

#include <string>

#include "mlx/array.h"
#include "mlx/backend/metal/device.h"

namespace mlx::core {

std::string type_to_name(const Dtype& t);
std::string type_to_name(const array& a);

} // namespace mlx::core
