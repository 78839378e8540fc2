// The orders in which products and attention add the terms of a row, as `RowOrder` of
// crates/kernels/src/row_order.rs describes them.
#pragma once

#include <cstdint>

namespace mlx_primitives {

enum class RowOrder : uint8_t { by_count, tokens, prompt };

/** The `RowOrder` of the ops that this thread builds. */
inline RowOrder& row_order() {
  thread_local RowOrder order = RowOrder::by_count;
  return order;
}

/** While this object exists, this thread builds ops with the given `RowOrder`. */
class WithRowOrder {
 public:
  explicit WithRowOrder(RowOrder order) : before_(row_order()) {
    row_order() = order;
  }
  ~WithRowOrder() {
    row_order() = before_;
  }
  WithRowOrder(const WithRowOrder&) = delete;
  WithRowOrder& operator=(const WithRowOrder&) = delete;

 private:
  RowOrder before_;
};

} // namespace mlx_primitives
