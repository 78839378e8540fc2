// Stands in for the header that cxx writes. No group of ranks is joined.
#pragma once

#include <cstdint>

namespace mlx_primitives::bridge {

inline uint64_t begin_wait() {
  return 0;
}
inline void end_wait(uint64_t, bool) {}

} // namespace mlx_primitives::bridge
