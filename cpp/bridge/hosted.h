// The C++ side of src/ffi/hosted.rs.
#pragma once

#include "mlx-primitives/src/ffi/mod.rs.h"

namespace mlx_primitives::bridge {

struct HostedOp;
struct HostedOutput;

ListHandle hosted(
    rust::Box<HostedOp> op,
    const ArrayList& inputs,
    rust::Slice<const bool> any_layout,
    rust::Slice<const HostedOutput> outputs);
rust::Slice<const int64_t> hosted_strides(const MlxArray& array);

} // namespace mlx_primitives::bridge
