#pragma once

#include <string>
#include <vector>

namespace mlx_primitives {

/** The source of the kernels. If the path is empty, the program uses the embedded Metal source. */
struct Metallib {
  std::string path;
  std::string origin;
};

/**
 * Returns the first of these that exists: $MLX_PRIMITIVES_METALLIB (throws if it is not a
 * metallib), mlx_primitives.metallib beside this binary, the metallib of this build, the metallib
 * that scripts/build_metal.sh compiled, the embedded source. Throws if the metallib was compiled
 * from sources that differ from the embedded source.
 */
Metallib find_metallib();

/** Describes the result of `find_metallib` for the user. */
std::string metallib_description();

/** A kernel of metal/<stem>.metal. */
struct MetalKernel {
  std::string stem;
  std::string name;
};

// cmake/embed_metal.cmake generates the definitions of the functions below.

/** All kernels of metal/. */
std::vector<MetalKernel> embedded_metal_kernels();

/**
 * Returns metal/<stem>.metal and its includes as one source text. The text instantiates only this
 * kernel, or all kernels of the file if `kernel` is empty.
 */
std::string embedded_metal_source(const std::string& stem, const std::string& kernel);

/** The SHA-256 hash of the files in metal/, without metal/nvidia/, in hexadecimal. */
std::string metal_sources_hash();

} // namespace mlx_primitives
