#include "bridge/custom.h"

#include "mlx-primitives/src/custom/bridge.rs.h"
#include "ops/custom.h"

namespace mlx_primitives::bridge {

ListHandle custom(
    rust::Box<CustomOp> op,
    const ArrayList& inputs,
    rust::Slice<const bool> any_layout,
    rust::Slice<const CustomOutput> outputs) {
  std::vector<mx::Shape> shapes;
  std::vector<mx::Dtype> dtypes;
  for (const auto& output : outputs) {
    shapes.emplace_back(output.shape.begin(), output.shape.end());
    dtypes.push_back(to_mlx(output.dtype));
    require_memory("custom", {output.shape.data(), output.shape.size()}, dtypes.back());
  }
  return handle(mlx_primitives::custom(
      std::make_shared<rust::Box<CustomOp>>(std::move(op)),
      inputs,
      std::vector<bool>(any_layout.data(), any_layout.data() + any_layout.size()),
      std::move(shapes),
      dtypes,
      here()));
}

rust::Slice<const int64_t> custom_strides(const MlxArray& array) {
  const auto& strides = array.strides();
  return {strides.begin(), strides.size()};
}

} // namespace mlx_primitives::bridge
