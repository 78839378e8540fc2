#include "bridge/distributed.h"

#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

#include "mlx-primitives/src/collectives.rs.h"
#include "mlx/device.h"
#include "mlx/distributed/ops.h"
#include "runtime/process.h"

namespace mlx_primitives::bridge {

namespace {

/** The stream on which this thread's collectives run: of a GPU for NCCL, else of a CPU. */
mx::StreamOrDevice link_stream(const Ranks& ranks) {
  mx::Device device(ranks.gpu ? mx::Device::gpu : mx::Device::cpu);
  auto place = here();
  auto stream = std::get_if<mx::Stream>(&place);
  return stream && stream->device == device ? place : mx::StreamOrDevice(device);
}

} // namespace

bool ranks_available(rust::Str backend) {
  return mx::distributed::is_available(std::string(backend));
}

int32_t gpu_count() {
  return mx::device_count(mx::Device::gpu);
}

rust::String gpu_uuid() {
  const auto& info = mx::device_info(mx::Device::gpu);
  auto found = info.find("uuid");
  auto* text = found == info.end() ? nullptr : std::get_if<std::string>(&found->second);
  return text ? rust::String::lossy(*text) : rust::String();
}

std::unique_ptr<Ranks> join_ranks(rust::Str backend) {
  prepare();
  std::string name(backend);
  return std::make_unique<Ranks>(Ranks{mx::distributed::init(true, name), name == "nccl"});
}

int32_t rank_of(const Ranks& ranks) {
  return ranks.group.rank();
}

int32_t size_of(const Ranks& ranks) {
  return ranks.group.size();
}

Handle all_reduce(const Ranks& ranks, Reduction reduction, const MlxArray& x) {
  switch (reduction) {
    case Reduction::Sum:
      return handle(mx::distributed::all_sum(x, ranks.group, link_stream(ranks)));
    case Reduction::Max:
      return handle(mx::distributed::all_max(x, ranks.group, link_stream(ranks)));
    case Reduction::Min:
      return handle(mx::distributed::all_min(x, ranks.group, link_stream(ranks)));
  }
  throw std::invalid_argument("[all_reduce] expected a known reduction");
}

Handle all_gather(const Ranks& ranks, const MlxArray& x) {
  return handle(mx::distributed::all_gather(x, ranks.group, link_stream(ranks)));
}

std::unique_ptr<Peers> share_memory(const Ranks& ranks) {
  auto rank = static_cast<uint32_t>(ranks.group.rank());
  auto size = static_cast<uint32_t>(ranks.group.size());
  auto memory = ranks.gpu ? mlx_primitives::share_memory(rank, size) : nullptr;
  return std::make_unique<Peers>(Peers{std::move(memory)});
}

rust::Vec<uint8_t> handle_of(const Peers& peers) {
  rust::Vec<uint8_t> bytes;
  if (peers.memory) {
    for (char byte : mlx_primitives::handle_of(*peers.memory)) {
      bytes.push_back(static_cast<uint8_t>(byte));
    }
  }
  return bytes;
}

void reach_peers(const Peers& peers, rust::Slice<const uint8_t> handles) {
  if (peers.memory) {
    mlx_primitives::reach_peers(*peers.memory, {handles.begin(), handles.end()});
  }
}

Handle all_gather_by(const Peers& peers, const Ranks& ranks, const MlxArray& x) {
  if (!peers.memory || !exchanges(x)) {
    return all_gather(ranks, x);
  }
  return handle(exchange(peers.memory, x, mx::to_stream(link_stream(ranks))));
}

Handle send_to(const Ranks& ranks, const MlxArray& x, int32_t to) {
  return handle(mx::distributed::send(x, to, ranks.group, link_stream(ranks)));
}

Handle receive_from(const Ranks& ranks, Ints shape, Dtype dtype, int32_t from) {
  require_memory("recv", shape, to_mlx(dtype));
  return handle(
      mx::distributed::recv(to_shape(shape), to_mlx(dtype), from, ranks.group, link_stream(ranks)));
}

} // namespace mlx_primitives::bridge
