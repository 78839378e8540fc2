// Replaces the {fmt} library. MLX's header lru_cache.h includes {fmt}, but MLX's CUDA wheel does
// not contain it.
#pragma once

#include <string>

namespace fmt {

/**
 * Returns the pattern without filling in the arguments. MLX's headers use this function only for
 * error messages.
 */
template <typename... Arguments>
std::string format(const char* pattern, const Arguments&...) {
  return pattern;
}

} // namespace fmt
