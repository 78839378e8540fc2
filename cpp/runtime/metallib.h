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
 * mlx_primitives.metallib beside this binary, the one that this build compiled, the one that
 * scripts/build_metal.sh compiled, the embedded source. An error if the first was compiled from
 * other sources than those that are embedded.
 */
Metallib find_metallib();

/** The same as a sentence for a person. */
std::string metallib_description();

// cmake/embed_metal.cmake writes what follows.

/**
 * metal/<stem>.metal and what it includes as one file, which instantiates this kernel alone, or all
 * of the stem's where the name is empty.
 */
std::string embedded_metal_source(const std::string& stem, const std::string& kernel);

/** SHA-256 of all of metal/, in hexadecimal digits. */
std::string metal_sources_hash();

} // namespace mlx_primitives
