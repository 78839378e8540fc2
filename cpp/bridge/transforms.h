// The C++ side of src/transforms/bridge.rs.
#pragma once

#include "bridge/core.h"

namespace mlx_primitives::bridge {

// Defined by cxx in mlx-primitives/src/transforms/bridge.rs.h.
struct Closure;
struct ListPair;

struct Compiled {
  std::function<ArrayList(const ArrayList&)> function;
};

ListPair vjp(const Closure& f, const ArrayList& primals, const ArrayList& cotangents);
ListPair jvp(const Closure& f, const ArrayList& primals, const ArrayList& tangents);
ListPair value_and_grad(const Closure& f, Ints argnums, const ArrayList& inputs);
ListHandle vmap(const Closure& f, const ArrayList& inputs, Ints in_axes, Ints out_axes);
std::unique_ptr<Compiled> compile(rust::Box<Closure> f, bool shapeless);
ListHandle checkpoint(rust::Box<Closure> f, const ArrayList& inputs);
ListHandle with_vjp(rust::Box<Closure> f, rust::Box<Closure> vjp, const ArrayList& inputs);
Handle after(const MlxArray& array, const ArrayList& others);
bool is_tracer(const MlxArray& array);
size_t nesting(const ArrayList& inputs, const ArrayList& outputs);
ListHandle call_compiled(const Compiled& f, const ArrayList& inputs);

} // namespace mlx_primitives::bridge
