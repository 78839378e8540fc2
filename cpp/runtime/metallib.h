#pragma once

#include <string>

namespace mlx_primitives {

/** Where the kernels come from; an empty path means the embedded source. */
struct Metallib {
  std::string path;
  std::string origin;
};

/**
 * The first of: $MLX_PRIMITIVES_METALLIB (an error if it is not one),
 * mlx_primitives.metallib beside this binary, the one this build made, the embedded source.
 */
Metallib find_metallib();

/** The same as a sentence for a person. */
std::string metallib_description();

/** metal/<stem>.metal and what it includes as one file; written by cmake/embed_metal.cmake. */
std::string embedded_metal_source(const std::string& stem);

} // namespace mlx_primitives
