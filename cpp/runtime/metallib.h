#pragma once

#include <string>
#include <vector>

namespace mlx_primitives {

/** Where the kernels come from; an empty path means the embedded source. */
struct Metallib {
  std::string path;
  std::string origin;
};

/**
 * The first of the following that exists: $MLX_PRIMITIVES_METALLIB (an error if it is not a
 * metallib), mlx_primitives.metallib beside this binary, the metallib that this build compiled, the
 * one that scripts/build_metal.sh compiled, the embedded source. Throws if it was compiled from
 * other sources than the embedded ones.
 */
Metallib find_metallib();

/** Describes the result of `find_metallib` for a person. */
std::string metallib_description();

/** A kernel of metal/<stem>.metal. */
struct MetalKernel {
  std::string stem;
  std::string name;
};

// cmake/embed_metal.cmake generates these.

/** All kernels of metal/. */
std::vector<MetalKernel> embedded_metal_kernels();

/**
 * metal/<stem>.metal and its includes as one file. It instantiates only this kernel, or all kernels
 * of the stem if the name is empty.
 */
std::string embedded_metal_source(const std::string& stem, const std::string& kernel);

/** SHA-256 of all of metal/, in hexadecimal digits. */
std::string metal_sources_hash();

} // namespace mlx_primitives
