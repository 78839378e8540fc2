#include "runtime/metallib.h"

#include <dlfcn.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>

#ifndef MLX_PRIMITIVES_BUILT_METALLIB
#define MLX_PRIMITIVES_BUILT_METALLIB "" // no metallib was compiled with this code
#define MLX_PRIMITIVES_SCRIPT_METALLIB ""
#endif

namespace mlx_primitives {

namespace fs = std::filesystem;

namespace {

constexpr const char* VARIABLE = "MLX_PRIMITIVES_METALLIB";

/** MLX treats a path with any other extension as a folder to search. */
bool is_metallib(const fs::path& path) {
  std::error_code ignored;
  return path.extension() == ".metallib" && fs::is_regular_file(path, ignored);
}

/** The executable or dylib that contains this function. */
fs::path binary_path() {
  Dl_info info;
  bool known = dladdr(reinterpret_cast<const void*>(&binary_path), &info) != 0;
  return known && info.dli_fname ? fs::path(info.dli_fname) : fs::path();
}

/**
 * Throws unless the metallib was compiled from the embedded sources. cmake/compile_metal.cmake adds
 * an empty kernel whose name has the hash of the sources, and a metallib contains the names of its
 * kernels.
 */
Metallib checked(const fs::path& path, const std::string& origin) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  if (bytes.str().find("mlxp_sources_" + metal_sources_hash()) == std::string::npos) {
    throw std::runtime_error(
        "[mlx_primitives] " + path.string() + " (" + origin +
        ") was compiled from other Metal sources than this program's: run scripts/build_metal.sh "
        "to "
        "compile them again, or remove the file.");
  }
  return {path.string(), origin};
}

} // namespace

Metallib find_metallib() {
  if (const char* named = std::getenv(VARIABLE); named && *named) {
    if (!is_metallib(named)) {
      throw std::runtime_error(
          std::string("[mlx_primitives] ") + VARIABLE + " names " + named +
          ", which is not a .metallib file.");
    }
    return checked(named, std::string("named by ") + VARIABLE);
  }
  if (auto beside = binary_path().replace_filename("mlx_primitives.metallib");
      is_metallib(beside)) {
    return checked(beside, "beside this binary");
  }
  if (is_metallib(MLX_PRIMITIVES_BUILT_METALLIB)) {
    return checked(MLX_PRIMITIVES_BUILT_METALLIB, "compiled by the build");
  }
  if (is_metallib(MLX_PRIMITIVES_SCRIPT_METALLIB)) {
    return checked(MLX_PRIMITIVES_SCRIPT_METALLIB, "compiled by scripts/build_metal.sh");
  }
  return {"", "source embedded in this binary, compiled at first use"};
}

std::string metallib_description() {
  Metallib found = find_metallib();
  return found.path.empty() ? found.origin : found.path + " (" + found.origin + ")";
}

} // namespace mlx_primitives
