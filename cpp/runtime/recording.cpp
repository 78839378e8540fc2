#include "runtime/recording.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "runtime/failure.h"
#include "runtime/replay.h"

namespace mlx_primitives {

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

bool is_named(const mx::array& x, std::string_view name) {
  return x.has_primitive() && x.primitive().name() == name;
}

/** The index of the parameter that x is, or is made row-contiguous from. */
size_t find_parameter(const Arrays& parameters, const mx::array& x) {
  return find(parameters, is_named(x, "Contiguous") ? x.inputs()[0] : x);
}

/**
 * MLX's op that makes a part of one row, or makes it row-contiguous, which it is; otherwise null.
 */
std::shared_ptr<mx::Primitive> view_of_row(const mx::array& x) {
  bool named = is_named(x, "Slice") || is_named(x, "Contiguous");
  auto one_row = [](const mx::array& a) {
    return a.ndim() > 0 && a.size() == static_cast<size_t>(a.shape(-1));
  };
  bool row = named && x.inputs().size() == 1 && one_row(x) && one_row(x.inputs()[0]);
  return row ? x.primitive_ptr() : nullptr;
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
  return recording->reuse_memory() ? recording : nullptr;
}

bool Recording::add(const mx::array& node, const Arrays& parameters, const Arrays& results) {
  auto primitive = std::dynamic_pointer_cast<FusedPrimitive>(node.primitive_ptr());
  auto view = primitive ? nullptr : view_of_row(node);
  bool here = node.primitive().stream() == stream_;
  if ((!primitive && !view) || !here || node.is_tracer()) {
    return false;
  }
  can_fail_ = can_fail_ || dynamic_cast<const Fallible*>(primitive.get());
  Stage stage{primitive, view, node.inputs(), node.outputs(), {}, {}, false, {}};
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
  const size_t updates = primitive ? primitive->updates() : 0;
  for (size_t i = 0; i < stage.outputs.size(); ++i) {
    auto result = find(results, stage.outputs[i]);
    bool given = result < results.size();
    stage.to.push_back({given ? Source::result : Source::kept, result});
    // Only parameters may be changed in place, and become the result of the same number.
    bool updated = i < updates;
    bool same = given && stage.from[i].source == Source::parameter && stage.from[i].index == result;
    if (updated != (given && result + 1 < results.size()) || (updated && !same) ||
        (view && given)) {
      return false;
    }
  }
  auto moved = stage.inputs;
  stage.moves = updates > 0;
  if (stage.moves && !primitive->later(0, moved)) {
    return false;
  }
  stages_.push_back(std::move(stage));
  return true;
}

/**
 * Gives arrays memory that only stages read, and shares it among those never needed together.
 * Returns false for views that cannot be made.
 */
bool Recording::reuse_memory() {
  std::unordered_map<uintptr_t, uintptr_t> owners; // the arrays whose memory views have
  auto owner = [&](const mx::array& x) {
    auto found = owners.find(x.id());
    return found == owners.end() ? x.id() : found->second;
  };
  std::unordered_map<uintptr_t, size_t> last; // the last stage that reads an array or a view of it
  for (size_t at = 0; at < stages_.size(); ++at) {
    auto& stage = stages_[at];
    for (const auto& input : stage.inputs) {
      last[owner(input)] = at;
    }
    if (stage.view) {
      owners[stage.outputs[0].id()] = owner(stage.inputs[0]);
    }
  }
  std::multimap<size_t, mx::array> free; // by bytes
  std::unordered_map<uintptr_t, mx::array> placed;
  std::unordered_map<uintptr_t, size_t> views; // the numbers of views of parameters
  auto place = [&](mx::array& input, Place& from) {
    if (auto found = placed.find(input.id()); found != placed.end()) {
      input = found->second;
    } else if (auto view = views.find(input.id()); view != views.end()) {
      from = {Source::view, view->second};
    }
    if (from.source != Source::kept) {
      input = mx::array(input.shape(), input.dtype(), nullptr, {}); // the memory is not kept
    }
  };
  for (size_t at = 0; at < stages_.size(); ++at) {
    auto& stage = stages_[at];
    std::unordered_set<uintptr_t> ended;
    for (const auto& input : stage.inputs) {
      if (last[owner(input)] == at) {
        ended.insert(owner(input));
      }
    }
    for (size_t i = 0; i < stage.inputs.size(); ++i) {
      place(stage.inputs[i], stage.from[i]);
    }
    if (stage.view) {
      auto& [source, index] = stage.from[0];
      if (source == Source::result) {
        return false;
      }
      auto& node = stage.outputs[0];
      if (source == Source::kept) {
        placed.insert_or_assign(node.id(), view_of(*stage.view, stage.inputs[0], node));
        has_views_ = true;
      } else {
        views[node.id()] = views_.size();
        views_.push_back(
            {stage.view, stage.from[0], mx::array(node.shape(), node.dtype(), nullptr, {})});
      }
      continue;
    }
    bool dynamic = stage.moves;
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
      dynamic = dynamic || stage.to[i].source != Source::kept;
    }
    for (auto id : ended) {
      if (auto found = placed.find(id); found != placed.end()) {
        free.emplace(found->second.nbytes(), found->second);
      }
    }
    for (const auto& from : stage.from) {
      dynamic = dynamic || from.source != Source::kept;
    }
    if (!dynamic) {
      stage.call = stage.primitive->cpu_call(stage.inputs, stage.outputs);
    }
  }
  std::erase_if(stages_, [](const Stage& stage) { return stage.view != nullptr; });
  return true;
}

void Recording::keep(std::shared_ptr<const Calls> calls) const {
  std::vector<std::shared_ptr<const Calls>> ended; // freed after the lock
  std::scoped_lock lock(mutex_);
  auto used = [](const auto& run) { return run.use_count() > 1; };
  auto first = std::partition(runs_.begin(), runs_.end(), used);
  ended.assign(std::move_iterator(first), std::move_iterator(runs_.end()));
  runs_.erase(first, runs_.end());
  runs_.push_back(std::move(calls));
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
  std::shared_ptr<Replay> replay;
  if (can_fail_) {
    replay = std::make_shared<FallibleReplay>(stream_, shared_from_this(), positions);
  } else {
    replay = std::make_shared<Replay>(stream_, shared_from_this(), positions);
  }
  return mx::array::make_arrays(shapes_, dtypes_, std::move(replay), inputs);
}

} // namespace mlx_primitives
