#include "ops/hosted.h"

#include "bridge/core.h"
#include "mlx-primitives/src/ffi/hosted.rs.h"

namespace mlx_primitives {

namespace {

/** Ops that Rust builds meanwhile go to the primitive's own stream. */
class OnStream {
 public:
  explicit OnStream(const mx::Stream& s) : before_(bridge::current_place()) {
    bridge::set_place({true, s.device == mx::Device::gpu, s.index});
  }
  ~OnStream() {
    bridge::set_place(before_);
  }
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

 private:
  bridge::Place before_;
};

rust::Slice<const int32_t> slice(const std::vector<int>& values) {
  return {values.data(), values.size()};
}

} // namespace

std::vector<mx::array> hosted(
    HostedHandle op,
    const std::vector<mx::array>& inputs,
    const std::vector<bool>& any_layout,
    std::vector<mx::Shape> shapes,
    const std::vector<mx::Dtype>& dtypes,
    mx::StreamOrDevice s_) {
  auto s = mx::to_stream(s_);
  std::vector<mx::array> arranged;
  arranged.reserve(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    arranged.push_back(any_layout.at(i) ? inputs[i] : row_contiguous(inputs[i], s));
  }
  auto primitive = std::make_shared<Hosted>(s, std::move(op), dtypes);
  if (shapes.size() == 1) {
    return {
        mx::array(std::move(shapes[0]), dtypes.at(0), std::move(primitive), std::move(arranged))};
  }
  return mx::array::make_arrays(std::move(shapes), dtypes, primitive, arranged);
}

Hosted::Hosted(mx::Stream stream, HostedHandle op, std::vector<mx::Dtype> dtypes)
    : FusedPrimitive(stream),
      op_(std::move(op)),
      name_(bridge::hosted_name(**op_)),
      dtypes_(std::move(dtypes)),
      in_place_(bridge::hosted_in_place(**op_)) {}

size_t Hosted::allocate_outputs(
    const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) const {
  size_t elements = 0;
  for (size_t i = 0; i < outputs.size(); ++i) {
    elements += outputs[i].size();
    if (i == 0 && in_place_ >= 0) {
      require_row_contiguous(name_.c_str(), inputs.at(in_place_));
      donate_or_allocate(inputs[in_place_], outputs[0]);
    } else {
      allocate(outputs[i]);
    }
  }
  return elements;
}

std::vector<mx::array> Hosted::compose(const std::vector<mx::array>&) {
  refuse(name(), "expected a primitive with a composition of MLX's ops, got a hosted one");
}

bool Hosted::is_equivalent(const mx::Primitive& other) const {
  return bridge::hosted_is_equivalent(**op_, **static_cast<const Hosted&>(other).op_);
}

std::vector<mx::Shape> Hosted::output_shapes(const std::vector<mx::array>& inputs) {
  std::vector<mx::Shape> shapes;
  std::vector<mx::Dtype> dtypes;
  for (const auto& output : bridge::hosted_shapes(**op_, inputs)) {
    shapes.emplace_back(output.shape.begin(), output.shape.end());
    dtypes.push_back(bridge::to_mlx(output.dtype));
  }
  // Shapes are all that MLX asks for: the rest stays as it was.
  if (dtypes != dtypes_) {
    refuse(name(), "expected outputs of the same number and types whenever asked, got others");
  }
  return shapes;
}

std::vector<mx::array> Hosted::vjp(
    const std::vector<mx::array>& primals,
    const std::vector<mx::array>& cotangents,
    const std::vector<int>& argnums,
    const std::vector<mx::array>& outputs) {
  OnStream on(stream());
  return *bridge::hosted_vjp(**op_, primals, cotangents, slice(argnums), outputs);
}

std::vector<mx::array> Hosted::jvp(
    const std::vector<mx::array>& primals,
    const std::vector<mx::array>& tangents,
    const std::vector<int>& argnums) {
  OnStream on(stream());
  return *bridge::hosted_jvp(**op_, primals, tangents, slice(argnums));
}

std::pair<std::vector<mx::array>, std::vector<int>> Hosted::vmap(
    const std::vector<mx::array>& inputs, const std::vector<int>& axes) {
  OnStream on(stream());
  auto batch = bridge::hosted_vmap(**op_, inputs, slice(axes));
  return {*batch.arrays, {batch.axes.begin(), batch.axes.end()}};
}

} // namespace mlx_primitives
