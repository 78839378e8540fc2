#include "ops/reduce.h"

#include "gpu/launch.h"
#include "mlx/backend/metal/utils.h"
#include "plan/reduce.h"

namespace mlx_primitives {

namespace {

/** One dispatch: each piece of `from` to a number of `to`. */
void fold(
    const mx::Stream& stream,
    const char* kind,
    const mx::array& from,
    mx::array& to,
    const ReduceParams& params) {
  auto from_type = mx::type_to_name(from);
  auto to_type = mx::type_to_name(to);
  auto fitted = pipeline(stream, "reduce", [&](uint32_t max_threads) {
    uint64_t pieces = uint64_t(params.rows) * params.pieces;
    return plan_reduce(pieces, params.piece, kind, from_type, to_type, max_threads);
  });
  // Metal has no buffer of no bytes; of those bound then, nothing is read.
  encode(stream, fitted, {from.size() ? from : to}, {to}, params);
}

} // namespace

void Reduction::eval_gpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  auto& x = inputs[0];
  auto& out = outputs[0];
  require_row_contiguous("reduce", x);
  allocate(out);
  if (out.size() == 0) {
    return;
  }
  uint64_t axis = x.size() / out.size();
  auto rows = grid_count("reduce", "rows", out.size());
  bool squared = kind_ == ReductionKind::SumOfSquares || kind_ == ReductionKind::Norm;
  auto merge = kind_ == ReductionKind::Max ? "max" : "sum";
  auto kind = squared ? "squares" : merge;
  // MLX multiplies by this rounded reciprocal.
  float scale = kind_ == ReductionKind::Mean ? static_cast<float>(1.0 / axis) : 1.0f;
  uint32_t root = kind_ == ReductionKind::Norm;

  auto [pieces, piece] = split_reduce(rows, axis);
  if (pieces == 1) {
    fold(stream(), kind, x, out, {axis, rows, 1, piece, scale, root});
    return;
  }
  mx::array partial({static_cast<int>(rows), static_cast<int>(pieces)}, mx::float32, nullptr, {});
  allocate(partial);
  mx::metal::get_command_encoder(stream()).add_temporary(partial);
  fold(stream(), kind, x, partial, {axis, rows, pieces, piece, 1.0f, 0});
  fold(stream(), merge, partial, out, {pieces, rows, 1, pieces, scale, root});
}

} // namespace mlx_primitives
