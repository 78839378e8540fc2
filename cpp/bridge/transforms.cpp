// Function transforms over Rust closures, as src/ffi/mod.rs declares them.
#include <algorithm>
#include <map>
#include <unordered_set>

#include "bridge/core.h"
#include "mlx-primitives/src/ffi/mod.rs.h"
#include "mlx/compile.h"
#include "mlx/primitives.h"
#include "runtime/barrier.h"
#include "runtime/evaluate.h"
#include "runtime/process.h"

namespace mlx_primitives::bridge {

namespace {

using Function = std::function<ArrayList(const ArrayList&)>;

// The closure outlives the function, because MLX keeps no copy after the call returns.
Function borrowed(const Closure& f) {
  return [&f](const ArrayList& inputs) { return *f.call(inputs); };
}

// A closure that the function owns: std::function must be copyable and a Box is not.
Function owned(rust::Box<Closure> f) {
  auto shared = std::make_shared<rust::Box<Closure>>(std::move(f));
  return [shared](const ArrayList& inputs) { return *(*shared)->call(inputs); };
}

ListPair pair(std::pair<ArrayList, ArrayList> lists) {
  return ListPair{handle(std::move(lists.first)), handle(std::move(lists.second))};
}

/**
 * For a CPU, MLX writes a fused function as C++ source and runs `g++` on it, if it is installed. If
 * that `g++` rejects the source, every later function is compiled without fusion.
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

/** Returns whether a graph has a reduction over axes that are all of length 0 or 1. */
bool reduces_short_axes(ArrayList arrays) {
  std::unordered_set<std::uintptr_t> seen;
  while (!arrays.empty()) {
    auto array = std::move(arrays.back());
    arrays.pop_back();
    if (!array.has_primitive() || !seen.insert(array.id()).second) {
      continue;
    }
    auto& inputs = array.inputs();
    if (auto* reduce = dynamic_cast<mx::Reduce*>(&array.primitive())) {
      auto axes = reduce->state().second;
      auto is_short = [&](int axis) { return inputs[0].shape(axis) <= 1; };
      if (std::all_of(axes.begin(), axes.end(), is_short)) {
        return true;
      }
    }
    arrays.insert(arrays.end(), inputs.begin(), inputs.end());
  }
  return false;
}

/**
 * Compiles a function for any shape, once for each combination of types and of axes of length 0 or
 * 1. A function that reduces over such axes only is compiled for each shape instead, because MLX
 * would read strides that do not exist (docs/upstream, section 9).
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

ListPair vjp(const Closure& f, const ArrayList& primals, const ArrayList& cotangents) {
  return pair(mx::vjp(borrowed(f), primals, cotangents));
}

ListPair jvp(const Closure& f, const ArrayList& primals, const ArrayList& tangents) {
  return pair(mx::jvp(borrowed(f), primals, tangents));
}

ListPair value_and_grad(const Closure& f, Ints argnums, const ArrayList& inputs) {
  return pair(mx::value_and_grad(borrowed(f), to_ints(argnums))(inputs));
}

ListHandle vmap(const Closure& f, const ArrayList& inputs, Ints in_axes, Ints out_axes) {
  return handle(mx::vmap(borrowed(f), to_ints(in_axes), to_ints(out_axes))(inputs));
}

std::unique_ptr<Compiled> compile(rust::Box<Closure> f, bool shapeless) {
  prepare();
  fuse_where_possible();
  auto function = owned(std::move(f));
  return std::make_unique<Compiled>(Compiled{
      shapeless ? compile_for_any_shape(std::move(function)) : mx::compile(std::move(function))});
}

ListHandle checkpoint(rust::Box<Closure> f, const ArrayList& inputs) {
  auto function = owned(std::move(f));
  // mx::checkpoint lets the second run begin once the first is over. Here it begins when the
  // cotangents are computed, so that only one function of a chain has intermediate results.
  auto derivative = [function](
                        const ArrayList& primals, const ArrayList& cotangents, const ArrayList&) {
    ArrayList late;
    for (const auto& primal : primals) {
      late.push_back(mlx_primitives::after(primal, cotangents, here()));
    }
    return mx::vjp(function, late, cotangents).second;
  };
  return handle(mx::custom_vjp(function, std::move(derivative))(inputs));
}

ListHandle with_vjp(rust::Box<Closure> f, rust::Box<Closure> vjp, const ArrayList& inputs) {
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
  return array.is_tracer();
}

ListHandle call_compiled(const Compiled& f, const ArrayList& inputs) {
  return handle(f.function(inputs));
}

} // namespace mlx_primitives::bridge
