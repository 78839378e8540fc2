#pragma once

#include "mlx-primitives/src/ffi/mod.rs.h"
#include "ops/common.h"
#include "runtime/failure.h"

namespace mlx_primitives::bridge {
struct HostedOp;
} // namespace mlx_primitives::bridge

namespace mlx_primitives {

/** A primitive written in Rust; shared by the graph's node and the tasks made from it. */
using HostedHandle = std::shared_ptr<rust::Box<bridge::HostedOp>>;

/** One node that computes the outputs; inputs of no `any_layout` are made row-contiguous. */
std::vector<mx::array> hosted(
    HostedHandle op,
    const std::vector<mx::array>& inputs,
    const std::vector<bool>& any_layout,
    std::vector<mx::Shape> shapes,
    const std::vector<mx::Dtype>& dtypes,
    mx::StreamOrDevice s = {});

/**
 * Carries every primitive that a user of the crate wrote. Its outputs have memory of their own, but
 * for the first of one that works in place.
 */
class Hosted : public FusedPrimitive, public Fallible {
 public:
  Hosted(mx::Stream stream, HostedHandle op, std::vector<mx::Dtype> dtypes);

  void run_on_cpu(const std::vector<mx::array>&, std::vector<mx::array>&) override;
  void eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) override;
  std::vector<mx::array> compose(const std::vector<mx::array>&) override;
  const char* name() const override {
    return name_.c_str();
  }
  bool is_equivalent(const mx::Primitive& other) const override;
  std::vector<mx::Shape> output_shapes(const std::vector<mx::array>& inputs) override;
  std::vector<mx::array> jvp(
      const std::vector<mx::array>& primals,
      const std::vector<mx::array>& tangents,
      const std::vector<int>& argnums) override;
  std::vector<mx::array> vjp(
      const std::vector<mx::array>& primals,
      const std::vector<mx::array>& cotangents,
      const std::vector<int>& argnums,
      const std::vector<mx::array>& outputs) override;
  std::pair<std::vector<mx::array>, std::vector<int>> vmap(
      const std::vector<mx::array>& inputs, const std::vector<int>& axes) override;

 private:
  /** Returns how many elements there are to compute. */
  size_t allocate_outputs(
      const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) const;

  HostedHandle op_;
  std::string name_;
  std::vector<mx::Dtype> dtypes_; // of the outputs
  int in_place_;                  // the input whose memory the first output takes over, or -1
};

} // namespace mlx_primitives
