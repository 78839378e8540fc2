#include "runtime/recording.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "runtime/failure.h"

namespace mlx_primitives {

/** One run of a recording. Inputs are its parameters, outputs its results. */
class Replay final : public ComposedPrimitive {
 public:
  Replay(mx::Stream stream, std::shared_ptr<const Recording> recording, int positions)
      : ComposedPrimitive(stream), recording_(std::move(recording)), positions_(positions) {}

  COMPOSED_METHODS(Replay)
  std::vector<mx::Shape> output_shapes(const Arrays&) override {
    return recording_->shapes_;
  }
  size_t updates() const override {
    return recording_->shapes_.size() - 1;
  }

 private:
  using Source = Recording::Source;
  struct Step {
    std::shared_ptr<FusedPrimitive> primitive;
    Arrays inputs;
    Arrays outputs;
    Arrays positions; // inputs that `later` made
  };

  /** A stage for these parameters and results. */
  Step step(const Recording::Stage& stage, const Arrays& inputs, const Arrays& outputs) const;

  std::shared_ptr<const Recording> recording_;
  int positions_;
};

namespace {

bool is_constant(const mx::array& x) {
  return x.is_available() && x.data_shared_ptr() && !x.is_tracer();
}

/** The index of an array in a list, or the list's length. */
size_t find(const Arrays& arrays, const mx::array& x) {
  auto found = std::find_if(
      arrays.begin(), arrays.end(), [&](const mx::array& other) { return other.id() == x.id(); });
  return static_cast<size_t>(found - arrays.begin());
}

/** The index of the parameter that x is, or is made row-contiguous from. */
size_t find_parameter(const Arrays& parameters, const mx::array& x) {
  bool copy = x.has_primitive() && x.primitive().name() == std::string_view("Contiguous");
  return find(parameters, copy ? x.inputs()[0] : x);
}

} // namespace

std::shared_ptr<Recording> Recording::of(
    const Arrays& parameters, const Arrays& results, bool& pending) {
  pending = false;
  if (results.empty() || results.size() != parameters.size() || !results.back().has_primitive()) {
    return nullptr;
  }
  std::shared_ptr<Recording> recording(new Recording(results.back().primitive().stream()));
  for (const auto& parameter : parameters) {
    recording->given_.emplace_back(parameter.shape(), parameter.dtype());
  }
  std::unordered_set<uintptr_t> seen;
  std::unordered_set<uintptr_t> depending;        // on parameters
  std::vector<std::pair<mx::array, size_t>> path; // with the index of the next input
  auto enter = [&](const mx::array& x) {
    if (find_parameter(parameters, x) == parameters.size() && x.has_primitive() &&
        !is_constant(x) && seen.insert(x.id()).second) {
      for (const auto& sibling : x.siblings()) {
        seen.insert(sibling.id());
      }
      path.emplace_back(x, 0);
    }
  };
  for (const auto& result : results) {
    enter(result);
    while (!path.empty()) {
      auto [x, next] = path.back(); // a copy, because the path may move
      if (next < x.inputs().size()) {
        ++path.back().second;
        enter(x.inputs()[next]);
      } else {
        path.pop_back();
        bool depends =
            std::any_of(x.inputs().begin(), x.inputs().end(), [&](const mx::array& input) {
              return find_parameter(parameters, input) < parameters.size() ||
                     depending.contains(input.id());
            });
        if (!depends) {
          pending = true; // a weight
        }
        if (pending || !recording->add(x, parameters, results)) {
          return nullptr;
        }
        for (const auto& output : x.outputs()) {
          depending.insert(output.id());
        }
      }
    }
    recording->shapes_.push_back(result.shape());
    recording->dtypes_.push_back(result.dtype());
  }
  recording->reuse_memory();
  return recording;
}

bool Recording::add(const mx::array& node, const Arrays& parameters, const Arrays& results) {
  auto primitive = std::dynamic_pointer_cast<FusedPrimitive>(node.primitive_ptr());
  bool fails = dynamic_cast<const Fallible*>(primitive.get()); // and belongs to one evaluation
  if (!primitive || fails || !(primitive->stream() == stream_) || node.is_tracer()) {
    return false;
  }
  Stage stage{primitive, node.inputs(), node.outputs(), {}, {}, false, {}};
  for (const auto& input : stage.inputs) {
    auto parameter = find_parameter(parameters, input);
    bool given = parameter < parameters.size();
    if (!given && !input.has_primitive() && !is_constant(input)) {
      return false;
    }
    stage.from.push_back({given ? Source::parameter : Source::kept, parameter});
    if (auto result = find(results, input); result < results.size() && !given) {
      stage.from.back() = {Source::result, result};
    }
  }
  for (size_t i = 0; i < stage.outputs.size(); ++i) {
    auto result = find(results, stage.outputs[i]);
    bool given = result < results.size();
    stage.to.push_back({given ? Source::result : Source::kept, result});
    // Only parameters may be changed in place, and become the result of the same number.
    bool updated = i < primitive->updates();
    bool same = given && stage.from[i].source == Source::parameter && stage.from[i].index == result;
    if (updated != (given && result + 1 < results.size()) || (updated && !same)) {
      return false;
    }
  }
  auto moved = stage.inputs;
  stage.moves = primitive->updates() > 0;
  if (stage.moves && !primitive->later(0, moved)) {
    return false;
  }
  stages_.push_back(std::move(stage));
  return true;
}

/** Gives arrays memory that only stages read, and shares it among those never needed together. */
void Recording::reuse_memory() {
  std::unordered_map<uintptr_t, size_t> last; // the last stage that reads an array
  for (size_t at = 0; at < stages_.size(); ++at) {
    for (const auto& input : stages_[at].inputs) {
      last[input.id()] = at;
    }
  }
  std::multimap<size_t, mx::array> free; // by bytes
  std::unordered_map<uintptr_t, mx::array> placed;
  for (size_t at = 0; at < stages_.size(); ++at) {
    auto& stage = stages_[at];
    for (size_t i = 0; i < stage.outputs.size(); ++i) {
      auto id = stage.outputs[i].id();
      mx::array kept(stage.outputs[i].shape(), stage.outputs[i].dtype(), nullptr, {});
      if (stage.to[i].source == Source::kept) {
        if (auto found = free.find(kept.nbytes()); found != free.end()) {
          auto strides = kept.strides();
          kept.copy_shared_buffer(found->second, strides, {true, true, false}, kept.size());
          free.erase(found);
        } else {
          allocate(kept);
        }
        kept.set_status(mx::array::Status::available);
        placed.insert_or_assign(id, kept);
      }
      stage.outputs[i] = kept;
    }
    std::unordered_set<uintptr_t> ended;
    bool dynamic = stage.moves;
    for (size_t i = 0; i < stage.inputs.size(); ++i) {
      auto id = stage.inputs[i].id();
      auto found = placed.find(id);
      if (found != placed.end()) {
        stage.inputs[i] = found->second;
        if (last[id] == at && ended.insert(id).second) {
          free.emplace(found->second.nbytes(), found->second);
        }
      } else if (stage.from[i].source != Source::kept) {
        // Only the shape and the type of a parameter stay.
        auto& input = stage.inputs[i];
        input = mx::array(input.shape(), input.dtype(), nullptr, {});
      }
      dynamic = dynamic || stage.from[i].source != Source::kept;
    }
    for (const auto& place : stage.to) {
      dynamic = dynamic || place.source != Source::kept;
    }
    if (!dynamic) {
      stage.call = stage.primitive->cpu_call(stage.inputs, stage.outputs);
    }
  }
}

Arrays Recording::run(const Arrays& parameters, int positions) const {
  bool fit = parameters.size() == given_.size();
  Arrays inputs;
  for (size_t i = 0; fit && i < parameters.size(); ++i) {
    fit = parameters[i].shape() == given_[i].first && parameters[i].dtype() == given_[i].second;
    inputs.push_back(row_contiguous(parameters[i], stream_));
  }
  if (!fit) {
    refuse("replay", "expected parameters like those recorded, got others");
  }
  auto replay = std::make_shared<Replay>(stream_, shared_from_this(), positions);
  return mx::array::make_arrays(shapes_, dtypes_, std::move(replay), inputs);
}

Replay::Step Replay::step(
    const Recording::Stage& stage, const Arrays& inputs, const Arrays& outputs) const {
  Step step{stage.primitive, stage.inputs, stage.outputs, {}};
  auto place = [&](const Recording::Place& from, mx::array& to) {
    if (from.source != Source::kept) {
      to = from.source == Source::parameter ? inputs[from.index] : outputs[from.index];
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
  std::vector<CpuCall> calls; // of the stages that have none
  Arrays kept;                // what MLX does not keep until they have run
  for (const auto& stage : recording_->stages_) {
    if (!stage.call) {
      auto [primitive, from, to, positions] = step(stage, inputs, outputs);
      calls.push_back(stage_call(*primitive, from, to));
      kept.insert(kept.end(), positions.begin(), positions.end());
    }
  }
  return [recording = recording_, calls = std::move(calls), kept = std::move(kept)] {
    auto next = calls.begin();
    for (const auto& stage : recording->stages_) {
      stage.call ? stage.call() : (*next++)();
    }
  };
}

std::vector<Dispatch> Replay::dispatches(
    const Arrays& inputs, const Arrays& outputs, uint32_t max_threads) {
  std::vector<Dispatch> all;
  for (const auto& stage : recording_->stages_) {
    auto [primitive, from, to, positions] = step(stage, inputs, outputs);
    auto more = primitive->dispatches(from, to, max_threads);
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

Arrays Replay::compose(const Arrays& inputs) {
  std::unordered_map<uintptr_t, mx::array> values; // of arrays in memory of the recording
  Arrays results(recording_->shapes_.size(), inputs[0]);
  for (const auto& stage : recording_->stages_) {
    auto [primitive, from, to, positions] = step(stage, inputs, results);
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
