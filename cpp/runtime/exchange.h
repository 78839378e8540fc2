// How ranks on one machine exchange small arrays: each writes to the memory of the others' GPUs.
#pragma once

#include <memory>
#include <string>

#include "mlx/array.h"
#include "mlx/stream.h"

namespace mlx_primitives {

namespace mx = mlx::core;

/** The memory that one rank shares, and that of the others once it is reached. */
struct PeerMemory;

/** Memory of the GPU of this rank, which `ranks` write to. Null without CUDA, and for many ranks.
 */
std::shared_ptr<PeerMemory> share_memory(uint32_t rank, uint32_t ranks);

/** The bytes by which another process on this machine reaches the memory. */
std::string handle_of(const PeerMemory& memory);

/** Reaches the memory of all ranks by their handles, one after the other. */
void reach_peers(PeerMemory& memory, const std::string& handles);

/** Whether ranks exchange an array of this shape and type through their memory. */
bool exchanges(const mx::array& x);

/** Whether each of several GPUs of this machine reaches the memory of the others. */
bool gpus_reach_each_other();

/**
 * The arrays of all ranks, joined along the first axis. Exchanges come one after the other, in the
 * order in which they are evaluated, which is the same on all ranks.
 */
mx::array exchange(const std::shared_ptr<PeerMemory>& memory, const mx::array& x, mx::Stream s);

} // namespace mlx_primitives
