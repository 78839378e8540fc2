#include "runtime/node.h"

namespace mlx_primitives {

namespace {

/** This works because an explicit instantiation may name private members. */
template <auto Member>
struct NodeAccess {
  friend std::shared_ptr<const void> private_node_of(const mx::array& array) {
    return array.*Member;
  }
};
std::shared_ptr<const void> private_node_of(const mx::array& array);
template struct NodeAccess<&mx::array::array_desc_>;

} // namespace

std::shared_ptr<const void> node_of(const mx::array& array) {
  return private_node_of(array);
}

} // namespace mlx_primitives
