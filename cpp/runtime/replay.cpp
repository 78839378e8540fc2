#include "runtime/replay.h"

#include <cstring>
#include <string_view>
#include <unordered_map>

#include "runtime/evaluate.h"

namespace mlx_primitives {

mx::array view_of(mx::Primitive& op, const mx::array& from, const mx::array& like) {
  mx::array part(like.shape(), like.dtype(), nullptr, {});
  if (op.name() == std::string_view("Contiguous")) {
    part.copy_shared_buffer(from);
  } else {
    std::vector<mx::array> parts = {part};
    op.eval_cpu({from}, parts);
    part = parts[0];
  }
  part.set_status(mx::array::Status::available);
  return part;
}

void FallibleReplay::queue_on_cpu(const Arrays& inputs, Arrays& outputs) {
  auto& last = outputs.back();
  auto spoil = [data = last.data<uint8_t>(), bytes = last.nbytes()] {
    std::memset(data, 0xff, bytes); // NaN
  };
  queue(stream(), outputs[0].id(), cpu_call(inputs, outputs), spoil);
}

Arrays Replay::views(const Arrays& inputs) const {
  Arrays all;
  for (const auto& [primitive, from, shape] : recording_->views_) {
    const auto& whole = from.source == Source::view ? all[from.index] : inputs[from.index];
    all.push_back(whole.data_shared_ptr() ? view_of(*primitive, whole, shape) : shape);
  }
  return all;
}

Replay::Step Replay::step(
    const Recording::Stage& stage,
    const Arrays& inputs,
    const Arrays& views,
    const Arrays& outputs) const {
  Step step{stage.primitive, stage.inputs, stage.outputs, {}};
  auto place = [&](const Recording::Place& from, mx::array& to) {
    if (from.source != Source::kept) {
      const auto& all = from.source == Source::parameter ? inputs
                        : from.source == Source::view    ? views
                                                         : outputs;
      to = all[from.index];
    }
  };
  for (size_t i = 0; i < step.inputs.size(); ++i) {
    place(stage.from[i], step.inputs[i]);
  }
  for (size_t i = 0; i < step.outputs.size(); ++i) {
    place(stage.to[i], step.outputs[i]);
  }
  if (stage.moves) {
    auto before = step.inputs;
    step.primitive = stage.primitive->later(positions_, step.inputs);
    if (!step.primitive) {
      refuse(name(), "expected a position within the capacity, got one beyond it");
    }
    for (size_t i = 0; i < before.size(); ++i) {
      if (before[i].id() != step.inputs[i].id()) {
        step.positions.push_back(step.inputs[i]);
      }
    }
  }
  return step;
}

CpuCall Replay::cpu_call(const Arrays& inputs, Arrays& outputs) const {
  auto run = std::make_shared<Recording::Calls>();
  auto parts = views(inputs);
  for (const auto& stage : recording_->stages_) {
    if (!stage.call) {
      auto [primitive, from, to, positions] = step(stage, inputs, parts, outputs);
      run->calls.push_back(stage_call(*primitive, from, to));
      run->kept.insert(run->kept.end(), positions.begin(), positions.end());
    }
  }
  recording_->keep(run);
  return [recording = recording_, run = std::move(run)] {
    auto next = run->calls.begin();
    for (const auto& stage : recording->stages_) {
      stage.call ? stage.call() : (*next++)();
    }
  };
}

std::vector<Dispatch> Replay::dispatches(
    const Arrays& inputs, const Arrays& outputs, uint32_t max_threads) {
  std::vector<Dispatch> all;
  auto parts = views(inputs);
  for (const auto& stage : recording_->stages_) {
    auto [primitive, from, to, positions] = step(stage, inputs, parts, outputs);
    auto more = primitive->dispatches(from, to, max_threads);
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

Arrays Replay::compose(const Arrays& inputs) {
  if (recording_->has_views_) {
    refuse(name(), "expected a graph without views of intermediate results, got one with some");
  }
  std::unordered_map<uintptr_t, mx::array> values; // of arrays in memory of the recording
  Arrays results(recording_->shapes_.size(), inputs[0]);
  Arrays parts;
  for (const auto& [view, from, shape] : recording_->views_) {
    auto& whole = from.source == Source::view ? parts[from.index] : inputs[from.index];
    parts.push_back(mx::array(shape.shape(), shape.dtype(), view, {whole}));
  }
  for (const auto& stage : recording_->stages_) {
    auto [primitive, from, to, positions] = step(stage, inputs, parts, results);
    for (auto& input : from) {
      if (auto value = values.find(input.id()); value != values.end()) {
        input = value->second;
      }
    }
    auto computed = primitive->compose(from);
    for (size_t i = 0; i < computed.size(); ++i) {
      if (stage.to[i].source == Source::result) {
        results[stage.to[i].index] = computed[i];
      } else {
        values.insert_or_assign(to[i].id(), computed[i]);
      }
    }
  }
  return results;
}

bool Replay::is_equivalent(const mx::Primitive& other) const {
  const auto& o = static_cast<const Replay&>(other);
  return recording_ == o.recording_ && positions_ == o.positions_;
}

} // namespace mlx_primitives
