// Function transforms over Rust closures, as src/ffi/mod.rs declares them.
#include "bridge/core.h"
#include "mlx-primitives/src/ffi/mod.rs.h"
#include "mlx/compile.h"
#include "runtime/evaluate.h"
#include "runtime/process.h"

namespace mlx_primitives::bridge {

namespace {

using Function = std::function<ArrayList(const ArrayList&)>;

// The closure outlives the function: MLX keeps none of these after the call returns.
Function borrowed(const Closure& f) {
  return [&f](const ArrayList& inputs) { return *f.call(inputs); };
}

ListPair pair(std::pair<ArrayList, ArrayList> lists) {
  return ListPair{handle(std::move(lists.first)), handle(std::move(lists.second))};
}

/**
 * For a CPU, MLX writes what it fuses as a C++ source and runs `g++` on it, if there is one. Where
 * that `g++` refuses the source, every later function is compiled without fusion.
 */
void fuse_where_possible() {
  [[maybe_unused]] static const bool once = [] {
    if (mx::default_device() == mx::Device::cpu) {
      auto two_ops = [](const ArrayList& x) { return ArrayList{mx::square(mx::exp(x[0]))}; };
      try {
        evaluate(mx::compile(two_ops)({mx::array({1.0f})}));
      } catch (const std::exception&) {
        mx::set_compile_mode(mx::CompileMode::no_fuse);
      }
    }
    return true;
  }();
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
  // std::function must be copyable and a Box is not.
  auto owned = std::make_shared<rust::Box<Closure>>(std::move(f));
  Function function = [owned](const ArrayList& inputs) { return *(*owned)->call(inputs); };
  return std::make_unique<Compiled>(Compiled{mx::compile(std::move(function), shapeless)});
}

ListHandle call_compiled(const Compiled& f, const ArrayList& inputs) {
  return handle(f.function(inputs));
}

} // namespace mlx_primitives::bridge
