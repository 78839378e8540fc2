#pragma once

#include "mlx-primitives/src/ffi/mod.rs.h"
#include "runtime/failure.h"
#include "runtime/primitive.h"

namespace mlx_primitives::bridge {
struct Stored;
} // namespace mlx_primitives::bridge

namespace mlx_primitives {

/** The storage of the elements; shared by the graph's node and the task made from it. */
using StoredHandle = std::shared_ptr<rust::Box<bridge::Stored>>;

/** A lazy array whose elements are read from storage on the CPU when it is evaluated. */
mx::array stored(StoredHandle from, mx::Shape shape, mx::Dtype dtype);

/**
 * Elements `start` to `end` of an axis, in a row-contiguous array. If the array has not been read
 * yet and these elements are whole blocks of its storage, only these elements are read.
 */
mx::array part_of(const mx::array& whole, size_t axis, int start, int end);

/**
 * Reads elements from storage. It replaces MLX's Load, which throws in a task if the file has
 * become shorter; MLX would report that error to the next caller that waits.
 */
class Read : public mx::UnaryPrimitive, public Fallible {
 public:
  Read(mx::Stream stream, StoredHandle from, mx::Shape shape)
      : UnaryPrimitive(stream), from_(std::move(from)), shape_(std::move(shape)) {}

  void eval_cpu(const Arrays& inputs, mx::array& out) override;
  void eval_gpu(const Arrays& inputs, mx::array& out) override;
  const char* name() const override {
    return "Read";
  }
  const StoredHandle& from() const {
    return from_;
  }
  bool is_equivalent(const mx::Primitive& other) const override {
    const auto& o = static_cast<const Read&>(other);
    return from_ == o.from_ && shape_ == o.shape_;
  }
  std::vector<mx::Shape> output_shapes(const Arrays&) override {
    return {shape_};
  }

 private:
  StoredHandle from_;
  mx::Shape shape_;
};

/** The `Read` primitive of an array whose data is still in storage, or null for other arrays. */
const Read* reader(const mx::array& a);

} // namespace mlx_primitives
