#include "ops/rope.h"

#include <cmath>

#include "gpu/launch.h"
#include "mlx/backend/metal/utils.h"
#include "plan/rope.h"

namespace mlx_primitives {

void Rope::eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  auto& x = inputs[0];
  auto& offset = inputs[1];
  auto& out = outputs[0];
  for (auto& input : inputs) {
    require_row_contiguous("rope", input);
  }
  donate_or_allocate(x, out);
  if (out.size() == 0) {
    return;
  }
  bool explicit_freqs = inputs.size() > 2;
  bool in_place = out.buffer().ptr() == x.buffer().ptr();

  RopeParams params{};
  params.batch = x.shape(0);
  params.length = x.shape(-2);
  params.features = x.shape(-1);
  params.heads = static_cast<uint32_t>(x.size() / x.shape(0) / x.shape(-2) / x.shape(-1));
  params.pairs = dims_ / 2;
  params.columns = rope_columns(params.features, params.pairs, in_place);
  params.offset_stride = offset.size() > 1 ? 1 : 0;
  params.scale = scale_;
  params.log2_base = explicit_freqs ? 0.0f : std::log2(base_);
  params.direction = forward_ ? 1.0f : -1.0f;

  auto dtype = mx::type_to_name(x);
  auto fitted = pipeline(stream(), "rope", [&](uint32_t max_threads) {
    return plan_rope(params, dtype, traditional_, explicit_freqs, max_threads);
  });
  auto& freqs = explicit_freqs ? inputs[2] : offset; // something has to be bound
  encode(stream(), fitted, {x, offset, freqs}, {out}, params);
}

} // namespace mlx_primitives
