#include "ops/hosted.h"

#include <cstring>

#include "bridge/core.h"
#include "cpu/dispatch.h"
#include "mlx-primitives/src/ffi/hosted.rs.h"
#include "runtime/evaluate.h"
#include "runtime/process.h"

namespace mlx_primitives {

namespace {

/**
 * One call of eval_cpu. It owns no array, whose memory MLX keeps until the task has run, and as few
 * blocks of its own as may be: they are freed on another thread than made them.
 */
struct Call {
  HostedHandle op;
  std::vector<bridge::HostedView> arrays; // the inputs, then the outputs
  size_t inputs;
  std::vector<int32_t> shapes;
  std::vector<int64_t> strides;
  int in_place;

  Call(
      HostedHandle op_,
      const std::vector<mx::array>& from,
      const std::vector<mx::array>& to,
      int in_place_)
      : op(std::move(op_)), inputs(from.size()), in_place(in_place_) {
    size_t rank = 0;
    for (auto* all : {&from, &to}) {
      for (const auto& array : *all) {
        rank += array.ndim();
      }
    }
    arrays.reserve(from.size() + to.size());
    shapes.reserve(rank);
    strides.reserve(rank);
    for (auto* all : {&from, &to}) {
      for (const auto& array : *all) {
        add(array);
      }
    }
  }

  void add(const mx::array& a) {
    shapes.insert(shapes.end(), a.shape().begin(), a.shape().end());
    strides.insert(strides.end(), a.strides().begin(), a.strides().end());
    arrays.push_back(bridge::HostedView{
        a.size() > 0 ? const_cast<uint8_t*>(bytes(a)) : nullptr,
        a.nbytes(),
        a.ndim(),
        kernel_dtype(a),
        a.flags().row_contiguous});
  }

  void run() {
    if (in_place >= 0) {
      const auto& from = arrays[in_place];
      const auto& to = arrays[inputs];
      if (to.data != from.data) {
        std::memcpy(to.data, from.data, to.bytes);
      }
    }
    InUserTask running;
    bridge::hosted_eval(
        **op,
        {arrays.data(), arrays.size()},
        inputs,
        {shapes.data(), shapes.size()},
        {strides.data(), strides.size()});
  }

  /** What others made of these outputs already waits for them: NaN, not half a result. */
  void spoil() {
    for (size_t i = inputs; i < arrays.size(); ++i) {
      bool floating = mx::issubdtype(bridge::to_mlx(arrays[i].dtype), mx::inexact);
      if (arrays[i].bytes > 0) {
        std::memset(arrays[i].data, floating ? 0xff : 0, arrays[i].bytes);
      }
    }
  }
};

} // namespace

void Hosted::run_on_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  if (allocate_outputs(inputs, outputs) > 0) {
    auto call = std::make_shared<Call>(op_, inputs, outputs, in_place_);
    queue(stream(), outputs[0].id(), [call] { call->run(); }, [call] { call->spoil(); });
  }
}

} // namespace mlx_primitives
