#pragma once

#include "mlx-primitives/src/ffi/mod.rs.h"
#include "runtime/failure.h"
#include "runtime/primitive.h"

namespace mlx_primitives::bridge {
struct CustomOp;
} // namespace mlx_primitives::bridge

namespace mlx_primitives {

/** A primitive written in Rust; shared by the graph's node and the tasks made from it. */
using CustomHandle = std::shared_ptr<rust::Box<bridge::CustomOp>>;

/** One node that computes the outputs. Inputs without `any_layout` are made row-contiguous. */
Arrays custom(
    CustomHandle op,
    const Arrays& inputs,
    const std::vector<bool>& any_layout,
    std::vector<mx::Shape> shapes,
    const std::vector<mx::Dtype>& dtypes,
    mx::StreamOrDevice s = {});

/**
 * The node of every primitive that a user of the crate wrote. Each output gets a new buffer, except
 * the first output of an in-place primitive.
 */
class Custom : public FusedPrimitive, public Fallible {
 public:
  Custom(mx::Stream stream, CustomHandle op, std::vector<mx::Dtype> dtypes);

  std::vector<Dispatch> dispatches(
      const Arrays& inputs, const Arrays& outputs, uint32_t max_threads) override;
  /** Counts one dispatch, because the user's launches are known only at evaluation. */
  Cost cost(const Arrays& inputs, const Arrays& outputs) override;
  Arrays compose(const Arrays&) override;
  const char* name() const override {
    return name_.c_str();
  }
  bool is_equivalent(const mx::Primitive& other) const override;
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override;
  DERIVATIVE_METHODS

 protected:
  bool takes_strides(size_t input) const override {
    return static_cast<int>(input) != in_place_;
  }
  std::vector<size_t> donors(const Arrays&) const override {
    return in_place_ >= 0 ? std::vector<size_t>{static_cast<size_t>(in_place_)}
                          : std::vector<size_t>{};
  }
  void queue_on_cpu(const Arrays& inputs, Arrays& outputs) override;
  /** Throws if the user's code fails. */
  CpuCall cpu_call(const Arrays& inputs, Arrays& outputs) const override;

 private:
  CustomHandle op_;
  std::string name_;
  std::vector<mx::Dtype> dtypes_; // of the outputs
  int in_place_;                  // the input whose memory the first output takes over, or -1
};

} // namespace mlx_primitives
