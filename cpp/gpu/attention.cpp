#include "ops/attention.h"

#include "gpu/launch.h"
#include "mlx/backend/metal/utils.h"
#include "plan/attention.h"

namespace mlx_primitives {

namespace {

/** What the strides of x reach, as a flat array that begins at the lowest address. */
mx::array reached(const mx::array& x, AttentionView& view) {
  int64_t lowest = 0;
  int64_t highest = 0;
  for (int i = 0; i < 4; ++i) {
    view.strides[i] = x.strides(i);
    (x.strides(i) < 0 ? lowest : highest) += (x.shape(i) - 1) * x.strides(i);
  }
  view.start = -lowest;
  auto size = static_cast<size_t>(highest - lowest + 1);
  mx::array flat({1}, x.dtype(), nullptr, {}); // an extent of 32 bits would not do
  flat.copy_shared_buffer(x, {1}, {true, true, true}, size, lowest);
  return flat;
}

} // namespace

void Attention::eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  auto& q = inputs[0];
  auto& out = outputs[0];
  allocate(out);
  if (out.size() == 0) {
    return;
  }
  auto params = plan(inputs);
  auto flat_q = reached(q, params.q);
  std::vector<mx::array> k;
  std::vector<mx::array> v;
  for (int i = 0; i < parts(); ++i) {
    k.push_back(reached(inputs[1 + i], params.k[i]));
    v.push_back(reached(inputs[values() + i], params.v[i]));
  }
  // Something has to be bound where there is nothing.
  auto part = [](const std::vector<mx::array>& of, size_t i) -> const mx::array& {
    return i < of.size() ? of[i] : of[0];
  };
  auto flat_mask = masked_ ? reached(inputs[mask()], params.mask) : flat_q;
  auto& sink = sinks_ ? inputs[sinks()] : flat_q;

  auto dtype = mx::type_to_name(out);
  auto itemsize = static_cast<uint32_t>(out.itemsize());
  auto fitted = pipeline(stream(), "attention", [&](uint32_t max_threads) {
    return plan_attention(params, bits_, dtype, itemsize, max_threads);
  });
  auto run = [&](mx::array& to) {
    encode(
        stream(),
        fitted,
        {flat_q,
         part(k, 0),
         part(k, 1),
         part(k, 2),
         part(v, 0),
         part(v, 1),
         part(v, 2),
         flat_mask,
         sink},
        {to},
        params);
  };
  if (params.splits == 1) {
    return run(out);
  }
  auto rows = out.size() / params.dim;
  mx::array partials(
      {static_cast<int>(params.splits), static_cast<int>(rows * (params.dim + 2))},
      mx::float32,
      nullptr,
      {});
  allocate(partials);
  run(partials);
  auto combine = pipeline(stream(), "attention", [&](uint32_t max_threads) {
    return plan_attention_combine(params, dtype, max_threads);
  });
  encode(stream(), combine, {partials, sink}, {out}, params);
  mx::metal::get_command_encoder(stream()).add_temporary(partials);
}

} // namespace mlx_primitives
