#include "ops/allocator.h"

#include <mlx/allocator.h>
#include <mlx/mlx.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>

namespace mlx_primitives {

namespace mx = mlx::core;

namespace {

using mx::allocator::Allocator;
using mx::allocator::Buffer;
using Malloc = Buffer (*)(Allocator*, size_t);

/** Requests from this size on are tried first: MLX counts those that it was refused as active. */
constexpr size_t counted = 1 << 20;

/** What the vtable of MLX's allocator had for `malloc`. */
Malloc original;

Buffer checked_malloc(Allocator* allocator, size_t bytes) {
  auto refused = [bytes]() -> Buffer {
    throw std::runtime_error("[malloc] no memory for " + std::to_string(bytes) + " bytes");
  };
  if (bytes >= counted) {
    void* volatile trial = std::malloc(bytes + sizeof(size_t)); // volatile, so that it takes place
    if (!trial) {
      return refused();
    }
    std::free(trial);
  }
  auto buffer = original(allocator, bytes);
  return buffer.ptr() || bytes == 0 ? buffer : refused();
}

/**
 * MLX has no hook for its allocator, and the object is its own. The C++ ABI of Linux and macOS puts a
 * pointer to the vtable first in it: the offset to the whole object, the type, then the virtual
 * functions in the order of their declaration, `malloc` first. The object gets a copy of the vtable
 * with another `malloc`; nothing of MLX calls that function but through the vtable.
 */
void replace_malloc(Allocator& allocator) {
  constexpr size_t before = 2;
  constexpr size_t functions = 7; // malloc, free, size, make_buffer, release, two destructors
  static std::array<void*, before + functions> vtable;
  void** old = nullptr;
  std::memcpy(&old, static_cast<void*>(&allocator), sizeof(old));
  std::memcpy(vtable.data(), old - before, sizeof(vtable));
  original = reinterpret_cast<Malloc>(vtable[before]);
  vtable[before] = reinterpret_cast<void*>(&checked_malloc);
  void** replaced = vtable.data() + before;
  std::memcpy(static_cast<void*>(&allocator), &replaced, sizeof(replaced));
}

} // namespace

void check_allocations() {
  [[maybe_unused]] static const bool once = [] {
    if (!mx::is_available(mx::Device::gpu)) {
      replace_malloc(mx::allocator::allocator());
    }
    return true;
  }();
}

} // namespace mlx_primitives
