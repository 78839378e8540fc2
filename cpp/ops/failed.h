#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ops/common.h"

namespace mlx_primitives {

/** Memory that arrays share. */
using Memory = mx::array::Data;

/**
 * Remembers that what lies in `memory` is no result. MLX says each failure of a task once, to
 * whoever asks first; that must not make a result of what the task left behind.
 */
void remember_failure(const std::weak_ptr<Memory>& memory, const std::string& why);

/** What was remembered of memory that is still there, if anything. */
std::string failure_of(const Memory* memory);

/** One of the arrays that failed, or one that failed of what they are to be computed from. */
const mx::array* find_failed(const std::vector<mx::array>& arrays);

} // namespace mlx_primitives
