#include "ops/stored.h"

#include <cstring>

#include "mlx-primitives/src/ffi/io.rs.h"
#include "runtime/evaluate.h"

namespace mlx_primitives {

mx::array stored(StoredHandle from, mx::Shape shape, mx::Dtype dtype) {
  auto stream = mx::default_stream(mx::Device::cpu);
  return mx::array(std::move(shape), dtype, std::make_shared<Read>(stream, std::move(from)), {});
}

void Read::eval_cpu(const Arrays&, mx::array& out) {
  allocate(out);
  auto* data = out.data<uint8_t>();
  size_t bytes = out.nbytes();
  queue(
      stream(),
      out.id(),
      [from = from_, data, bytes] { (*from)->read({data, bytes}); },
      [data, bytes] { std::memset(data, 0, bytes); });
}

void Read::eval_gpu(const Arrays&, mx::array&) {
  refuse("stored", "expected a stream of the CPU, got one of a GPU");
}

} // namespace mlx_primitives
