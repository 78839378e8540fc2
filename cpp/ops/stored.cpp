#include "ops/stored.h"

#include <cstring>

#include "mlx-primitives/src/ffi/io.rs.h"
#include "runtime/evaluate.h"

namespace mlx_primitives {

mx::array stored(StoredHandle from, mx::Shape shape, mx::Dtype dtype) {
  auto stream = mx::default_stream(mx::Device::cpu);
  return mx::array(std::move(shape), dtype, std::make_shared<Read>(stream, std::move(from)), {});
}

namespace {

/** The primitive of an array that waits to be read, or null. */
const Read* reader(const mx::array& a) {
  bool waiting = a.status() == mx::array::Status::unscheduled && a.has_primitive();
  return waiting ? dynamic_cast<const Read*>(&a.primitive()) : nullptr;
}

} // namespace

bool read_into(const mx::array& waiting, rust::Slice<uint8_t> bytes) {
  auto* read = reader(waiting);
  if (read && bytes.size() == waiting.nbytes()) {
    (*read->from())->read(bytes);
    return true;
  }
  return false;
}

mx::array rows_of(const mx::array& whole, int start, int end) {
  if (whole.ndim() == 0 || start < 0 || start > end || end > whole.shape(0)) {
    refuse("rows", "expected rows within the array");
  }
  auto shape = whole.shape();
  shape[0] = end - start;
  auto* read = reader(whole);
  if (!read) {
    auto from = mx::Shape(shape.size(), 0);
    auto to = shape;
    from[0] = start;
    to[0] = end;
    return mx::slice(whole, std::move(from), std::move(to));
  }
  size_t skipped = whole.shape(0) == 0 ? 0 : whole.nbytes() / whole.shape(0) * start;
  auto rest = std::make_shared<rust::Box<bridge::Stored>>((*read->from())->after(skipped));
  return stored(std::move(rest), std::move(shape), whole.dtype());
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
