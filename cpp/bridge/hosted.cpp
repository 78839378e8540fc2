#include "bridge/hosted.h"

#include "mlx-primitives/src/ffi/hosted.rs.h"
#include "ops/hosted.h"

namespace mlx_primitives::bridge {

ListHandle hosted(
    rust::Box<HostedOp> op,
    const ArrayList& inputs,
    rust::Slice<const bool> any_layout,
    rust::Slice<const HostedOutput> outputs) {
  std::vector<mx::Shape> shapes;
  std::vector<mx::Dtype> dtypes;
  for (const auto& output : outputs) {
    shapes.emplace_back(output.shape.begin(), output.shape.end());
    dtypes.push_back(to_mlx(output.dtype));
    require_memory("hosted", {output.shape.data(), output.shape.size()}, dtypes.back());
  }
  return handle(mlx_primitives::hosted(
      std::make_shared<rust::Box<HostedOp>>(std::move(op)),
      inputs,
      {any_layout.begin(), any_layout.end()},
      std::move(shapes),
      dtypes,
      here()));
}

rust::Slice<const int64_t> hosted_strides(const MlxArray& array) {
  const auto& strides = array.strides();
  return {strides.begin(), strides.size()};
}

} // namespace mlx_primitives::bridge
