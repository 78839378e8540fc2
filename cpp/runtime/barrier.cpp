#include "runtime/barrier.h"

#include <algorithm>
#include <future>
#include <memory>

#include "mlx-primitives/src/ffi/mod.rs.h"
#include "mlx/mlx.h"
#include "mlx/primitives.h"
#include "mlx/scheduler.h"
#include "runtime/batch.h"
#include "runtime/primitive.h"

namespace mlx_primitives {

namespace {

/**
 * Waits until a CPU stream has run its queued tasks. While this thread waits, it runs parts of the
 * CPU kernels.
 */
void wait_for(mx::Stream stream) {
  if (auto* batch = Batch::current()) {
    batch->flush();
  }
  auto reached = std::make_shared<std::promise<void>>();
  bridge::Signal signal{reached->get_future().share()};
  mx::scheduler::enqueue(stream, [reached] { reached->set_value(); });
  bridge::lend_thread_until(signal);
  signal.reached.wait();
}

class Barrier : public mx::Primitive {
 public:
  using mx::Primitive::Primitive;

  void eval_cpu(const Arrays& inputs, Arrays& outputs) override {
    // With a GPU, this stream may depend on GPU work that MLX commits only after this call returns.
    // So wait only without a GPU.
    if (!mx::is_available(mx::Device::gpu)) {
      wait_for(stream());
    }
    outputs[0].copy_shared_buffer(inputs[0]);
  }

  // No wait is needed on a GPU, because MLX limits the total size of the arrays in the work that it
  // commits at a time.
  void eval_gpu(const Arrays& inputs, Arrays& outputs) override {
    outputs[0].copy_shared_buffer(inputs[0]);
  }

  Arrays vjp(
      const Arrays& primals,
      const Arrays& cotangents,
      const std::vector<int>& argnums,
      const Arrays&) override {
    Arrays result;
    for (int argnum : argnums) {
      result.push_back(argnum == 0 ? cotangents[0] : mx::zeros_like(primals[argnum], stream()));
    }
    return result;
  }

  Arrays jvp(
      const Arrays& primals, const Arrays& tangents, const std::vector<int>& argnums) override {
    auto at = std::find(argnums.begin(), argnums.end(), 0);
    return {
        at == argnums.end() ? mx::zeros_like(primals[0], stream())
                            : tangents[at - argnums.begin()]};
  }

  std::pair<Arrays, std::vector<int>> vmap(
      const Arrays& inputs, const std::vector<int>& axes) override {
    auto x = batch_first(inputs[0], axes[0], batch_size(inputs, axes), stream());
    return {{after(x, Arrays(inputs.begin() + 1, inputs.end()), stream())}, {0}};
  }

  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override {
    return {inputs[0].shape()};
  }

  const char* name() const override {
    return "Barrier";
  }
};

} // namespace

mx::array after(const mx::array& x, const Arrays& others, mx::StreamOrDevice s) {
  Arrays inputs{x};
  inputs.insert(inputs.end(), others.begin(), others.end());
  return mx::array(
      x.shape(), x.dtype(), std::make_shared<Barrier>(mx::to_stream(s)), std::move(inputs));
}

} // namespace mlx_primitives
