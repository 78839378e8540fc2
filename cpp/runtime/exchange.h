// Exchanges small arrays between ranks on one machine. Each rank writes to the GPU memory of the
// other ranks.
#pragma once

#include <memory>
#include <string>

#include "mlx/array.h"
#include "mlx/stream.h"

namespace mlx_primitives {

namespace mx = mlx::core;

/** The GPU memory that one rank shares, and the other ranks' GPU memory after it is mapped. */
struct PeerMemory;

/**
 * Allocates memory on this rank's GPU to which all `ranks` ranks write. Returns null without CUDA,
 * or if there are too many ranks.
 */
std::shared_ptr<PeerMemory> share_memory(uint32_t rank, uint32_t ranks);

/** A handle that lets another process on this machine map the memory. */
std::string handle_of(const PeerMemory& memory);

/** Maps the memory of all ranks. `handles` contains their handles in the order of the ranks. */
void reach_peers(PeerMemory& memory, const std::string& handles);

/** Whether ranks can exchange an array of this shape and type through their memory. */
bool exchanges(const mx::array& x);

/**
 * Joins the arrays of all ranks along the first axis. Exchanges run one after the other, in the
 * order of their evaluation. All ranks must evaluate them in the same order.
 */
mx::array exchange(const std::shared_ptr<PeerMemory>& memory, const mx::array& x, mx::Stream s);

} // namespace mlx_primitives
