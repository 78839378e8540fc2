// The C++ side of src/custom/bridge.rs.
#pragma once

#include "mlx-primitives/src/ffi/mod.rs.h"

namespace mlx_primitives::bridge {

struct CustomOp;
struct CustomOutput;

ListHandle custom(
    rust::Box<CustomOp> op,
    const ArrayList& inputs,
    rust::Slice<const bool> any_layout,
    rust::Slice<const CustomOutput> outputs);
rust::Slice<const int64_t> custom_strides(const MlxArray& array);

} // namespace mlx_primitives::bridge
