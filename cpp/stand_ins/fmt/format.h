// Stands in for {fmt}: MLX's header lru_cache.h includes it, and MLX's CUDA wheel does not contain
// it.
#pragma once

#include <string>

namespace fmt {

/** Returns the pattern without arguments. MLX's headers use it only for the texts of errors. */
template <typename... Arguments>
std::string format(const char* pattern, const Arguments&...) {
  return pattern;
}

} // namespace fmt
