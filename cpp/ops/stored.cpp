#include "ops/stored.h"

#include <cstring>

#include "mlx-primitives/src/io/bridge.rs.h"
#include "runtime/evaluate.h"

namespace mlx_primitives {

mx::array stored(StoredHandle from, mx::Shape shape, mx::Dtype dtype) {
  auto stream = mx::default_stream(mx::Device::cpu);
  auto read = std::make_shared<Read>(stream, std::move(from), shape);
  return mx::array(std::move(shape), dtype, std::move(read), {});
}

const Read* reader(const mx::array& a) {
  bool waiting = a.status() == mx::array::Status::unscheduled && a.has_primitive();
  return waiting ? dynamic_cast<const Read*>(&a.primitive()) : nullptr;
}

mx::array part_of(const mx::array& whole, size_t axis, int start, int end) {
  if (axis >= whole.ndim() || start < 0 || start > end || end > whole.shape(axis)) {
    refuse("part", "expected elements of an axis of the array");
  }
  auto shape = whole.shape();
  // With the indices of the earlier axes fixed, the elements at one index of the axis have `unit`
  // bytes, and the elements at all its indices have `pitch` bytes.
  size_t unit = whole.itemsize();
  for (size_t i = axis + 1; i < shape.size(); ++i) {
    unit *= shape[i];
  }
  size_t pitch = unit * shape[axis];
  shape[axis] = end - start;
  auto* read = reader(whole);
  if (read && (*read->from())->divides(unit * start) && (*read->from())->divides(unit * end)) {
    auto runs = (*read->from())->runs(unit * start, unit * end, axis == 0 ? 0 : pitch);
    auto from = std::make_shared<rust::Box<bridge::Stored>>(std::move(runs));
    return stored(std::move(from), std::move(shape), whole.dtype());
  }
  auto from = mx::Shape(shape.size(), 0);
  auto to = shape;
  from[axis] = start;
  to[axis] = end;
  auto part = mx::slice(whole, std::move(from), std::move(to));
  return axis == 0 ? part : row_contiguous(part, mx::to_stream({}));
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
