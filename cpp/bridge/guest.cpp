#include "bridge/core.h"
#include "mlx-primitives/src/ffi/mod.rs.h"
#include "runtime/process.h"

namespace mlx_primitives::bridge {

void be_guest() {
  mlx_primitives::be_guest();
}

std::array<size_t, 2> shape_words(const MlxArray& array) {
  const auto& dims = array.shape();
  return {reinterpret_cast<size_t>(dims.begin()), dims.size()};
}

void assign(MlxArray& place, const MlxArray& array) {
  place = array;
}

} // namespace mlx_primitives::bridge
