// The C++ side of src/collectives.rs.
#pragma once

#include "bridge/core.h"
#include "mlx/distributed/distributed.h"

namespace mlx_primitives::bridge {

// Defined by cxx in mlx-primitives/src/collectives.rs.h.
enum class Reduction : uint8_t;

struct Ranks {
  mx::distributed::Group group;
  bool gpu; // whether the collectives run on a GPU's streams
};

bool ranks_available(rust::Str backend);
int32_t gpu_count();
rust::String gpu_uuid();
std::unique_ptr<Ranks> join_ranks(rust::Str backend);
int32_t rank_of(const Ranks& ranks);
int32_t size_of(const Ranks& ranks);
Handle all_reduce(const Ranks& ranks, Reduction reduction, const MlxArray& x);
Handle all_gather(const Ranks& ranks, const MlxArray& x);
Handle send_to(const Ranks& ranks, const MlxArray& x, int32_t to);
Handle receive_from(const Ranks& ranks, Ints shape, Dtype dtype, int32_t from);

} // namespace mlx_primitives::bridge
