#pragma once

namespace mlx_primitives {

/**
 * Makes MLX's CPU allocator throw where the system refuses memory. As MLX 0.32 is, its own ops then
 * write to a null pointer; its GPU allocators throw by themselves. The first call does the work, which
 * has to be before MLX's first allocation on another thread.
 */
void check_allocations();

} // namespace mlx_primitives
