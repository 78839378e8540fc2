// The bridge's functions for the nodes of a lazy graph, which src/ffi/mod.rs declares.
#include <unordered_set>

#include "bridge/core.h"
#include "mlx-primitives/src/ffi/mod.rs.h"
#include "runtime/primitive.h"
#include "runtime/process.h"

namespace mlx_primitives::bridge {

namespace {

size_t total_bytes(const ArrayList& arrays) {
  size_t bytes = 0;
  for (const auto& array : arrays) {
    bytes += array.nbytes();
  }
  return bytes;
}

GraphNode describe(mx::array& array) {
  auto& primitive = array.primitive();
  auto outputs = array.outputs();
  GraphNode node{};
  node.name = primitive.name();
  node.input_bytes = total_bytes(array.inputs());
  node.output_bytes = total_bytes(outputs);
  for (const auto& input : array.inputs()) {
    node.last_input_bytes = input.nbytes();
  }
  if (auto* fused = dynamic_cast<FusedPrimitive*>(&primitive)) {
    auto cost = fused->cost(array.inputs(), outputs);
    node.ours = true;
    node.dispatches = cost.dispatches;
    node.device_bytes = cost.device_bytes;
  }
  return node;
}

} // namespace

rust::Vec<GraphNode> graph_nodes(const ArrayList& arrays) {
  prepare();
  rust::Vec<GraphNode> nodes;
  std::unordered_set<std::uintptr_t> seen;
  std::vector<mx::array> left(arrays.begin(), arrays.end());
  while (!left.empty()) {
    auto array = left.back();
    left.pop_back();
    if (array.status() != mx::array::Status::unscheduled || !array.has_primitive()) {
      continue;
    }
    bool known = false;
    for (const auto& output : array.outputs()) {
      known = !seen.insert(output.id()).second || known;
    }
    if (!known) {
      nodes.push_back(describe(array));
      left.insert(left.end(), array.inputs().begin(), array.inputs().end());
    }
  }
  return nodes;
}

rust::Vec<LaunchPlan> dispatches(const MlxArray& of, uint32_t max_threads) {
  prepare();
  auto array = of;
  auto* ours = array.has_primitive() ? dynamic_cast<FusedPrimitive*>(&array.primitive()) : nullptr;
  if (!ours) {
    refuse("dispatches", "expected a lazy result of one of our ops, got another array");
  }
  auto outputs = array.outputs();
  rust::Vec<LaunchPlan> plans;
  if (std::all_of(outputs.begin(), outputs.end(), [](auto& out) { return out.size() == 0; })) {
    return plans;
  }
  for (const auto& dispatch : ours->dispatches(array.inputs(), outputs, max_threads)) {
    const auto& launch = dispatch.launch;
    plans.push_back({launch.kernel, launch.grid, launch.group, launch.threadgroup_bytes});
  }
  return plans;
}

} // namespace mlx_primitives::bridge
