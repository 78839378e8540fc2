// The C++ side of src/ffi/attention.rs.
#pragma once

#include "mlx-primitives/src/ffi/mod.rs.h"

namespace mlx_primitives::bridge {

struct AttentionRules;
struct AttentionShape;

Handle attention(
    const MlxArray& q,
    const MlxArray& k,
    const MlxArray& v,
    const AttentionRules& rules,
    const MlxArray* mask,
    const MlxArray* sinks);
Handle attention_quantized(
    const MlxArray& q,
    const ArrayList& k,
    const ArrayList& v,
    int32_t bits,
    int32_t group_size,
    const AttentionRules& rules,
    const MlxArray* mask,
    const MlxArray* sinks);
LaunchPlan attention_plan(
    const AttentionShape& shape,
    bool joining,
    uint32_t bits,
    rust::Str dtype,
    uint32_t max_threads);

} // namespace mlx_primitives::bridge
