// The built-in values that give a thread its position.
#pragma once

#include "msl/types.h"

namespace msl {

typedef ::metal::vec<unsigned, 3> Three;

/** The number of threads of a grid along each axis. */
struct Grid {
  unsigned x, y, z;
};

template <typename T>
struct From {
  static METAL_FUNC T three(Three from) {
    return T(from.x);
  }
};
template <typename T>
struct From<::metal::vec<T, 2>> {
  static METAL_FUNC ::metal::vec<T, 2> three(Three from) {
    return ::metal::vec<T, 2>(T(from.x), T(from.y));
  }
};
template <typename T>
struct From<::metal::vec<T, 3>> {
  static METAL_FUNC ::metal::vec<T, 3> three(Three from) {
    return ::metal::vec<T, 3>(T(from.x), T(from.y), T(from.z));
  }
};

/**
 * Converts a position to the type that the kernel declares: a scalar, or a vector of the first
 * components.
 */
template <typename T>
METAL_FUNC T as(Three from) {
  return From<T>::three(from);
}
template <typename T>
METAL_FUNC T as(unsigned from) {
  return T(from);
}

// A SIMD group of Metal is a warp of CUDA. In a source that uses simdgroup_matrix, a lane's Metal
// number differs from its CUDA number. With this numbering, a lane's elements in Metal's matrix
// layout are its elements in the accumulator of CUDA's mma instruction. In Metal, row bits 2, 1, 0
// of an element are lane bits 4, 2, 1, and column bits 2, 1 are lane bits 3, 0. In CUDA, the row
// bits are lane bits 4, 3, 2, and column bits 2, 1 are lane bits 1, 0.
#ifdef MSL_MATRIX_LANES
METAL_FUNC unsigned metal_lane(unsigned cuda) {
  return (cuda & 17) | (cuda & 8) >> 1 | (cuda & 4) >> 1 | (cuda & 2) << 2;
}
METAL_FUNC unsigned cuda_lane(unsigned metal) {
  return (metal & 17) | (metal & 4) << 1 | (metal & 2) << 1 | (metal & 8) >> 2;
}
#else
METAL_FUNC unsigned metal_lane(unsigned cuda) {
  return cuda;
}
METAL_FUNC unsigned cuda_lane(unsigned metal) {
  return metal;
}
#endif

/** The thread's number in its block, in CUDA's order. */
METAL_FUNC unsigned cuda_index() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}

struct Places {
  METAL_FUNC Three threadgroup_position_in_grid() const {
    return Three(blockIdx.x, blockIdx.y, blockIdx.z);
  }
  METAL_FUNC Three threads_per_threadgroup() const {
    return Three(blockDim.x, blockDim.y, blockDim.z);
  }
  METAL_FUNC Three dispatch_threads_per_threadgroup() const {
    return Three(blockDim.x, blockDim.y, blockDim.z);
  }
  METAL_FUNC Three threadgroups_per_grid() const {
    return Three(gridDim.x, gridDim.y, gridDim.z);
  }
  METAL_FUNC Three threads_per_grid() const {
    return threads_per_threadgroup() * threadgroups_per_grid();
  }
  METAL_FUNC Three grid_size() const {
    return threads_per_grid();
  }
  METAL_FUNC Three grid_origin() const {
    return Three(0u);
  }
  METAL_FUNC unsigned thread_index_in_simdgroup() const {
    return metal_lane(cuda_index() & 31);
  }
  METAL_FUNC unsigned thread_index_in_threadgroup() const {
    return (cuda_index() & ~31u) | thread_index_in_simdgroup();
  }
  METAL_FUNC Three thread_position_in_threadgroup() const {
#ifdef MSL_MATRIX_LANES
    const unsigned index = thread_index_in_threadgroup();
    const unsigned line = index / blockDim.x;
    return Three(index % blockDim.x, line % blockDim.y, line / blockDim.y);
#else
    return Three(threadIdx.x, threadIdx.y, threadIdx.z);
#endif
  }
  METAL_FUNC Three thread_position_in_grid() const {
    return threadgroup_position_in_grid() * dispatch_threads_per_threadgroup() +
           thread_position_in_threadgroup();
  }
  METAL_FUNC unsigned simdgroup_index_in_threadgroup() const {
    return cuda_index() / 32;
  }
  METAL_FUNC unsigned simdgroups_per_threadgroup() const {
    return (blockDim.x * blockDim.y * blockDim.z + 31) / 32;
  }
  METAL_FUNC unsigned dispatch_simdgroups_per_threadgroup() const {
    return simdgroups_per_threadgroup();
  }
  METAL_FUNC unsigned threads_per_simdgroup() const {
    return 32;
  }
  METAL_FUNC unsigned thread_execution_width() const {
    return 32;
  }
  METAL_FUNC unsigned thread_index_in_quadgroup() const {
    return thread_index_in_simdgroup() & 3;
  }
  METAL_FUNC unsigned quadgroup_index_in_threadgroup() const {
    return thread_index_in_threadgroup() / 4;
  }
  METAL_FUNC unsigned quadgroups_per_threadgroup() const {
    return (blockDim.x * blockDim.y * blockDim.z + 3) / 4;
  }
};

/**
 * The positions in a grid of any number of threads. The last threadgroups of such a grid are
 * smaller.
 */
struct PartialPlaces : Places {
  Grid grid;

  explicit METAL_FUNC PartialPlaces(Grid grid_) : grid(grid_) {}

  METAL_FUNC bool is_outside() const {
    const Three at = thread_position_in_grid();
    return at.x >= grid.x || at.y >= grid.y || at.z >= grid.z;
  }
  METAL_FUNC Three threads_per_grid() const {
    return Three(grid.x, grid.y, grid.z);
  }
  METAL_FUNC Three grid_size() const {
    return threads_per_grid();
  }
  METAL_FUNC Three threads_per_threadgroup() const {
    return Three(
        min(blockDim.x, grid.x - blockIdx.x * blockDim.x),
        min(blockDim.y, grid.y - blockIdx.y * blockDim.y),
        min(blockDim.z, grid.z - blockIdx.z * blockDim.z));
  }
  METAL_FUNC unsigned simdgroups_per_threadgroup() const {
    const Three threads = threads_per_threadgroup();
    return (threads.x * threads.y * threads.z + 31) / 32;
  }
};

} // namespace msl
