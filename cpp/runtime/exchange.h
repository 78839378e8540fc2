// Exchanges small arrays between ranks on one machine: each rank writes to the memory of the other
// ranks' GPUs.
#pragma once

#include <memory>
#include <string>

#include "mlx/array.h"
#include "mlx/stream.h"

namespace mlx_primitives {

namespace mx = mlx::core;

/** The memory that one rank shares, and the other ranks' memory, once it is mapped. */
struct PeerMemory;

/** Memory of this rank's GPU, to which all `ranks` write. Null without CUDA, or if there are too
 * many ranks. */
std::shared_ptr<PeerMemory> share_memory(uint32_t rank, uint32_t ranks);

/** A handle with which another process on this machine can map the memory. */
std::string handle_of(const PeerMemory& memory);

/** Maps the memory of all ranks. `handles` are their handles, one after the other. */
void reach_peers(PeerMemory& memory, const std::string& handles);

/** Whether ranks exchange an array of this shape and type through their memory. */
bool exchanges(const mx::array& x);

/**
 * The arrays of all ranks, joined along the first axis. Exchanges run one after the other, in the
 * order of their evaluation, which must be the same on all ranks.
 */
mx::array exchange(const std::shared_ptr<PeerMemory>& memory, const mx::array& x, mx::Stream s);

} // namespace mlx_primitives
