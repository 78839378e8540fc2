#include "ops/custom.h"

#include <cstring>

#include "bridge/core.h"
#include "mlx-primitives/src/custom/bridge.rs.h"
#include "runtime/evaluate.h"
#include "runtime/kernels.h"
#include "runtime/process.h"

namespace mlx_primitives {

namespace {

/**
 * While this object exists, the ops that Rust builds on this thread run on the primitive's stream.
 */
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

Arrays custom(
    CustomHandle op,
    const Arrays& inputs,
    const std::vector<bool>& any_layout,
    std::vector<mx::Shape> shapes,
    const std::vector<mx::Dtype>& dtypes,
    mx::StreamOrDevice s_) {
  auto s = mx::to_stream(s_);
  Arrays arranged;
  arranged.reserve(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    arranged.push_back(any_layout.at(i) ? inputs[i] : row_contiguous(inputs[i], s));
  }
  auto primitive = std::make_shared<Custom>(s, std::move(op), dtypes);
  if (shapes.size() == 1) {
    return {
        mx::array(std::move(shapes[0]), dtypes.at(0), std::move(primitive), std::move(arranged))};
  }
  return mx::array::make_arrays(std::move(shapes), dtypes, primitive, arranged);
}

Custom::Custom(mx::Stream stream, CustomHandle op, std::vector<mx::Dtype> dtypes)
    : FusedPrimitive(stream),
      op_(std::move(op)),
      name_(bridge::custom_name(**op_)),
      dtypes_(std::move(dtypes)),
      in_place_(bridge::custom_in_place(**op_)) {}

Arrays Custom::compose(const Arrays&) {
  refuse(name(), "expected a primitive with a composition of MLX's ops, got a custom one");
}

bool Custom::is_equivalent(const mx::Primitive& other) const {
  return bridge::custom_is_equivalent(**op_, **static_cast<const Custom&>(other).op_);
}

std::vector<mx::Shape> Custom::output_shapes(const Arrays& inputs) {
  std::vector<mx::Shape> shapes;
  std::vector<mx::Dtype> dtypes;
  for (const auto& output : bridge::custom_shapes(**op_, inputs)) {
    shapes.emplace_back(output.shape.begin(), output.shape.end());
    dtypes.push_back(bridge::to_mlx(output.dtype));
  }
  // Only the shapes may differ from the first call, because MLX takes nothing else from this
  // function.
  if (dtypes != dtypes_) {
    refuse(name(), "expected outputs of the same number and types whenever asked, got others");
  }
  return shapes;
}

Arrays Custom::vjp(
    const Arrays& primals,
    const Arrays& cotangents,
    const std::vector<int>& argnums,
    const Arrays& outputs) {
  OnStream on(stream());
  return *bridge::custom_vjp(**op_, primals, cotangents, slice(argnums), outputs);
}

Arrays Custom::jvp(const Arrays& primals, const Arrays& tangents, const std::vector<int>& argnums) {
  OnStream on(stream());
  return *bridge::custom_jvp(**op_, primals, tangents, slice(argnums));
}

std::pair<Arrays, std::vector<int>> Custom::vmap(
    const Arrays& inputs, const std::vector<int>& axes) {
  OnStream on(stream());
  auto batch = bridge::custom_vmap(**op_, inputs, slice(axes));
  return {*batch.arrays, {batch.axes.begin(), batch.axes.end()}};
}

namespace {

/** A Metal library of a custom primitive. Rust holds its metallib or its source. */
class CustomLibrary : public KernelLibrary {
 public:
  explicit CustomLibrary(std::shared_ptr<const bridge::LibraryHandle> handle)
      : handle_(std::move(handle)) {}

  std::string name() const override {
    return std::string(handle_->name());
  }
  std::string metallib() const override {
    return std::string(handle_->metallib());
  }
  std::string source() const override {
    return std::string(handle_->source());
  }
  void loaded() const override {
    handle_->loaded();
  }

 private:
  std::shared_ptr<const bridge::LibraryHandle> handle_;
};

Binding binding_of(const bridge::CustomBinding& from, const Arrays& inputs, const Arrays& outputs) {
  switch (from.buffer) {
    case bridge::CustomBuffer::Input:
      return {from.index, inputs.at(from.array), false, 0, {}};
    case bridge::CustomBuffer::Output:
      return {from.index, outputs.at(from.array), true, 0, {}};
    case bridge::CustomBuffer::Written:
      return {from.index, outputs.at(from.array), false, 0, {}};
    default:
      return {from.index, std::nullopt, false, 0, {from.bytes.begin(), from.bytes.end()}};
  }
}

} // namespace

std::vector<Dispatch> Custom::dispatches(
    const Arrays& inputs, const Arrays& outputs, uint32_t max_threads) {
  std::vector<Dispatch> all;
  // The vector holds the library of each launch in a Box, which cannot be moved out of it. So each
  // CustomLibrary keeps the whole vector alive.
  auto launches = std::make_shared<rust::Vec<bridge::CustomLaunch>>(
      bridge::custom_launches(**op_, inputs, outputs, max_threads));
  for (const auto& launch : *launches) {
    Dispatch dispatch;
    dispatch.launch = {std::string(launch.kernel), launch.grid, launch.group};
    dispatch.library = std::make_shared<CustomLibrary>(
        std::shared_ptr<const bridge::LibraryHandle>(launches, &*launch.library));
    dispatch.pipeline = std::string(launch.pipeline);
    dispatch.grid_is_threads = launch.grid_is_threads;
    for (const auto& binding : launch.bindings) {
      dispatch.bindings.push_back(binding_of(binding, inputs, outputs));
    }
    for (const auto& constant : launch.constants) {
      dispatch.constants.push_back({constant.index, constant.data_type, constant.bits});
    }
    for (const auto& memory : launch.threadgroup) {
      dispatch.memory.push_back({memory.index, memory.bytes});
    }
    all.push_back(std::move(dispatch));
  }
  return all;
}

Cost Custom::cost(const Arrays& inputs, const Arrays& outputs) {
  Cost cost{1, 0};
  for (auto* arrays : {&inputs, &outputs}) {
    for (const auto& array : *arrays) {
      cost.device_bytes += array.nbytes();
    }
  }
  return cost;
}

namespace {

/**
 * One call of eval_cpu. It holds no arrays, because MLX keeps their memory until the task has run.
 * It allocates few blocks of memory, because another thread frees them.
 */
struct Call {
  CustomHandle op;
  std::vector<bridge::CustomView> arrays; // the inputs, then the outputs
  size_t inputs;
  std::vector<int32_t> shapes;
  std::vector<int64_t> strides;
  int in_place;

  Call(
      CustomHandle op_,
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
    arrays.push_back(bridge::CustomView{
        a.size() > 0 ? const_cast<uint8_t*>(bytes(a)) : nullptr,
        a.nbytes(),
        a.ndim(),
        static_cast<bridge::Dtype>(a.dtype().val()),
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
    bridge::custom_eval(
        **op,
        {arrays.data(), arrays.size()},
        inputs,
        {shapes.data(), shapes.size()},
        {strides.data(), strides.size()});
  }

  /**
   * After a failure, fills the outputs with NaN, or with zeros for integers, because queued ops
   * still read them.
   */
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

CpuCall Custom::cpu_call(const Arrays& inputs, Arrays& outputs) const {
  return [call = std::make_shared<Call>(op_, inputs, outputs, in_place_)] { call->run(); };
}

void Custom::queue_on_cpu(const Arrays& inputs, Arrays& outputs) {
  auto call = std::make_shared<Call>(op_, inputs, outputs, in_place_);
  queue(stream(), outputs[0].id(), [call] { call->run(); }, [call] { call->spoil(); });
}

} // namespace mlx_primitives
