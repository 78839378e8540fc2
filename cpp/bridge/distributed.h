// The C++ side of src/collectives.rs.
#pragma once

#include "bridge/core.h"
#include "mlx/distributed/distributed.h"
#include "runtime/exchange.h"

namespace mlx_primitives::bridge {

// Defined by cxx in mlx-primitives/src/collectives.rs.h.
enum class Reduction : uint8_t;

struct Ranks {
  mx::distributed::Group group;
  bool gpu; // whether the collectives run on a GPU's streams
};

/**
 * GPU memory through which ranks exchange small arrays; null if the ranks cannot exchange arrays
 * this way.
 */
struct Peers {
  std::shared_ptr<PeerMemory> memory;
};

bool ranks_available(rust::Str backend);
int32_t gpu_count();
rust::String gpu_uuid();
std::unique_ptr<Ranks> join_ranks(rust::Str backend);
int32_t rank_of(const Ranks& ranks);
int32_t size_of(const Ranks& ranks);
Handle all_reduce(const Ranks& ranks, Reduction reduction, const MlxArray& x);
Handle all_gather(const Ranks& ranks, const MlxArray& x);
std::unique_ptr<Peers> share_memory(const Ranks& ranks);
rust::Vec<uint8_t> handle_of(const Peers& peers);
void reach_peers(const Peers& peers, rust::Slice<const uint8_t> handles);
Handle all_gather_by(const Peers& peers, const Ranks& ranks, const MlxArray& x);
Handle send_to(const Ranks& ranks, const MlxArray& x, int32_t to);
Handle receive_from(const Ranks& ranks, Ints shape, Dtype dtype, int32_t from);

} // namespace mlx_primitives::bridge
