// Replaces the header that cxx generates. The program joins no group of ranks, so nothing waits.
#pragma once

#include <cstdint>

namespace mlx_primitives::bridge {

inline uint64_t begin_wait() {
  return 0;
}
inline void end_wait(uint64_t, bool) {}

} // namespace mlx_primitives::bridge
