#include "bridge/distributed.h"

#include <stdexcept>
#include <variant>

#include "mlx-primitives/src/collectives.rs.h"
#include "mlx/distributed/ops.h"
#include "runtime/process.h"

namespace mlx_primitives::bridge {

namespace {

/** The CPU stream that this thread's ops go to: MLX has no collectives on a GPU's streams. */
mx::StreamOrDevice link_stream() {
  auto place = here();
  auto stream = std::get_if<mx::Stream>(&place);
  return stream && stream->device == mx::Device::cpu ? place : mx::Device::cpu;
}

} // namespace

bool ranks_available(rust::Str backend) {
  return mx::distributed::is_available(std::string(backend));
}

std::unique_ptr<Ranks> join_ranks(rust::Str backend) {
  prepare();
  return std::make_unique<Ranks>(Ranks{mx::distributed::init(true, std::string(backend))});
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
      return handle(mx::distributed::all_sum(x, ranks.group, link_stream()));
    case Reduction::Max:
      return handle(mx::distributed::all_max(x, ranks.group, link_stream()));
    case Reduction::Min:
      return handle(mx::distributed::all_min(x, ranks.group, link_stream()));
  }
  throw std::invalid_argument("[all_reduce] expected a known reduction");
}

Handle all_gather(const Ranks& ranks, const MlxArray& x) {
  return handle(mx::distributed::all_gather(x, ranks.group, link_stream()));
}

Handle send_to(const Ranks& ranks, const MlxArray& x, int32_t to) {
  return handle(mx::distributed::send(x, to, ranks.group, link_stream()));
}

Handle receive_from(const Ranks& ranks, Ints shape, Dtype dtype, int32_t from) {
  require_memory("recv", shape, to_mlx(dtype));
  return handle(
      mx::distributed::recv(to_shape(shape), to_mlx(dtype), from, ranks.group, link_stream()));
}

} // namespace mlx_primitives::bridge
