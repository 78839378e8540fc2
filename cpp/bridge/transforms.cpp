// Function transforms of Rust closures. src/transforms/bridge.rs declares them.
#include <algorithm>
#include <map>
#include <unordered_set>

#include "bridge/transforms.h"
#include "mlx-primitives/src/transforms/bridge.rs.h"
#include "mlx/compile.h"
#include "mlx/primitives.h"
#include "ops/stored.h"
#include "runtime/barrier.h"
#include "runtime/evaluate.h"
#include "runtime/process.h"
#include "runtime/sums.h"

namespace mlx_primitives::bridge {

namespace {

using Function = std::function<ArrayList(const ArrayList&)>;

thread_local int traced = 0; // the depth of traced functions on this thread

/** While this object exists, this thread builds a graph that MLX may fuse. */
struct Tracing {
  Tracing() {
    ++traced;
  }
  ~Tracing() {
    --traced;
  }
  Tracing(const Tracing&) = delete;
  Tracing& operator=(const Tracing&) = delete;
};

// The closure outlives the returned function, because MLX keeps no copy of the function after the
// call.
Function borrowed(const Closure& f) {
  return [&f](const ArrayList& inputs) { return *f.call(inputs); };
}

// Returns a function that owns the closure. Copies share the closure, because std::function must be
// copyable and a Box is not.
Function owned(rust::Box<Closure> f) {
  auto shared = std::make_shared<rust::Box<Closure>>(std::move(f));
  return [shared](const ArrayList& inputs) { return *(*shared)->call(inputs); };
}

ListPair pair(std::pair<ArrayList, ArrayList> lists) {
  return ListPair{handle(std::move(lists.first)), handle(std::move(lists.second))};
}

/**
 * MLX writes a fused function for a CPU as C++ source, and compiles it with `g++` if that is
 * installed. If `g++` rejects the source, every later function is compiled without fusion.
 */
void fuse_where_possible() {
  auto here = mlx_primitives::bridge::here();
  if (mx::to_stream(here).device != mx::Device::cpu) {
    return;
  }
  [[maybe_unused]] static const bool once = [here] {
    auto two_ops = [here](const ArrayList& x) {
      return ArrayList{mx::square(mx::exp(x[0], here), here)};
    };
    try {
      evaluate(mx::compile(two_ops)({mx::array({1.0f})}));
    } catch (const std::exception&) {
      mx::set_compile_mode(mx::CompileMode::no_fuse);
    }
    return true;
  }();
}

/** Calls `visit` with each lazy array of a graph. */
template <typename Visit>
void each_lazy(ArrayList arrays, Visit visit) {
  std::unordered_set<std::uintptr_t> seen;
  while (!arrays.empty()) {
    auto array = std::move(arrays.back());
    arrays.pop_back();
    if (array.has_primitive() && seen.insert(array.id()).second) {
      visit(array);
      arrays.insert(arrays.end(), array.inputs().begin(), array.inputs().end());
    }
  }
}

/** Returns whether a graph contains a reduction whose axes all have length 0 or 1. */
bool reduces_short_axes(const ArrayList& arrays) {
  bool found = false;
  each_lazy(arrays, [&](mx::array& array) {
    if (auto* reduce = dynamic_cast<mx::Reduce*>(&array.primitive())) {
      auto axes = reduce->state().second;
      auto is_short = [&](int axis) { return array.inputs()[0].shape(axis) <= 1; };
      found = found || std::all_of(axes.begin(), axes.end(), is_short);
    }
  });
  return found;
}

/**
 * Returns a function that MLX can trace. The closure may capture arrays whose data is still in a
 * file, and this function reads them during tracing. Otherwise each call would read them again,
 * because MLX turns only the results of its `Load` op into constants.
 */
Function traceable(rust::Box<Closure> f) {
  return [function = owned(std::move(f))](const ArrayList& inputs) {
    Tracing tracing;
    auto outputs = function(inputs);
    ArrayList stored;
    each_lazy(outputs, [&](mx::array& array) {
      if (array.status() == mx::array::Status::unscheduled &&
          dynamic_cast<const Read*>(&array.primitive())) {
        stored.push_back(array);
      }
    });
    if (!stored.empty()) {
      evaluate(stored);
    }
    return outputs;
  };
}

/**
 * Compiles a function for any shape, once for each combination of types, numbers of axes, and axes
 * of length 0 or 1. A function that reduces only over such axes is compiled for each shape instead,
 * because MLX would read strides that do not exist (docs/upstream, section 9).
 */
Function compile_for_any_shape(Function function) {
  auto compiled = std::make_shared<std::map<std::vector<int>, Function>>();
  return [function = std::move(function), compiled](const ArrayList& inputs) {
    std::vector<int> short_axes;
    for (auto& input : inputs) {
      short_axes.push_back(static_cast<int>(input.dtype().val()));
      short_axes.push_back(static_cast<int>(input.ndim()));
      for (auto size : input.shape()) {
        short_axes.push_back(std::min(size, 2));
      }
    }
    if (auto found = compiled->find(short_axes); found != compiled->end()) {
      return found->second(inputs);
    }
    auto unsafe = std::make_shared<bool>(false);
    Function watched = [function, unsafe](const ArrayList& inputs) {
      auto outputs = function(inputs);
      *unsafe = *unsafe || reduces_short_axes(outputs);
      return outputs;
    };
    auto chosen = mx::compile(std::move(watched), true);
    auto outputs = chosen(inputs); // traced, not evaluated
    if (*unsafe) {
      chosen = mx::compile(function);
      outputs = chosen(inputs);
    }
    (*compiled)[std::move(short_axes)] = std::move(chosen);
    return outputs;
  };
}

} // namespace

bool tracing() {
  return traced > 0;
}

ListPair vjp(const Closure& f, const ArrayList& primals, const ArrayList& cotangents) {
  prepare();
  Differentiating differentiating;
  auto lists = mx::vjp(borrowed(f), primals, cotangents);
  merge_sums(lists.first, lists.second);
  return pair(std::move(lists));
}

ListPair jvp(const Closure& f, const ArrayList& primals, const ArrayList& tangents) {
  prepare();
  return pair(mx::jvp(borrowed(f), primals, tangents));
}

ListPair value_and_grad(const Closure& f, Ints argnums, const ArrayList& inputs) {
  prepare();
  Differentiating differentiating;
  auto lists = mx::value_and_grad(borrowed(f), to_ints(argnums))(inputs);
  merge_sums(lists.first, lists.second);
  return pair(std::move(lists));
}

ListHandle vmap(const Closure& f, const ArrayList& inputs, Ints in_axes, Ints out_axes) {
  prepare();
  return handle(mx::vmap(borrowed(f), to_ints(in_axes), to_ints(out_axes))(inputs));
}

std::unique_ptr<Compiled> compile(rust::Box<Closure> f, bool shapeless) {
  prepare();
  fuse_where_possible();
  auto function = traceable(std::move(f));
  return std::make_unique<Compiled>(Compiled{
      shapeless ? compile_for_any_shape(std::move(function)) : mx::compile(std::move(function))});
}

ListHandle checkpoint(rust::Box<Closure> f, const ArrayList& inputs) {
  prepare();
  auto function = owned(std::move(f));
  // mx::checkpoint lets the second run of the function begin when the first run is over. Here the
  // second run begins after the cotangents are computed. So in a chain of functions, only one
  // function at a time has intermediate results in memory.
  auto derivative = [function](
                        const ArrayList& primals, const ArrayList& cotangents, const ArrayList&) {
    ArrayList late;
    for (const auto& primal : primals) {
      late.push_back(mlx_primitives::after(primal, cotangents, here()));
    }
    Differentiating differentiating;
    return mx::vjp(function, late, cotangents).second;
  };
  return handle(mx::custom_vjp(function, std::move(derivative))(inputs));
}

ListHandle with_vjp(rust::Box<Closure> f, rust::Box<Closure> vjp, const ArrayList& inputs) {
  prepare();
  auto derivative = [function = owned(std::move(vjp))](
                        const ArrayList& primals, const ArrayList& cotangents, const ArrayList&) {
    auto all = primals;
    all.insert(all.end(), cotangents.begin(), cotangents.end());
    return function(all);
  };
  return handle(mx::custom_vjp(owned(std::move(f)), std::move(derivative))(inputs));
}

Handle after(const MlxArray& array, const ArrayList& others) {
  return view(mlx_primitives::after(array, others, here()));
}

bool is_tracer(const MlxArray& array) {
  return !refusal() && array.is_tracer();
}

size_t nesting(const ArrayList& inputs, const ArrayList& outputs) {
  // Visits arrays in the order of MLX's recursion: inputs from first to last, each array once.
  std::unordered_set<std::uintptr_t> seen;
  for (const auto& input : inputs) {
    seen.insert(input.id());
  }
  struct At {
    const mx::array* array;
    size_t next; // index of the next input
  };
  std::vector<At> path;
  size_t most = 0;
  auto enter = [&](const mx::array& array) {
    if (seen.insert(array.id()).second) {
      for (const auto& sibling : array.siblings()) {
        seen.insert(sibling.id());
      }
      path.push_back({&array, 0});
      most = std::max(most, path.size());
    }
  };
  for (const auto& output : outputs) {
    enter(output);
    while (!path.empty()) {
      auto& at = path.back();
      if (at.next < at.array->inputs().size()) {
        enter(at.array->inputs()[at.next++]);
      } else {
        path.pop_back();
      }
    }
  }
  return most;
}

ListHandle call_compiled(const Compiled& f, const ArrayList& inputs) {
  prepare();
  return handle(f.function(inputs));
}

} // namespace mlx_primitives::bridge
