#include "runtime/sums.h"

#include <optional>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "runtime/contiguous.h"

namespace mlx_primitives {

namespace {

using Id = std::uintptr_t;

bool is_lazy(const mx::array& x) {
  return x.has_primitive() && x.status() == mx::array::Status::unscheduled;
}

bool is(const mx::array& x, std::string_view name) {
  return x.primitive().name() == name;
}

/**
 * Lists the lazy nodes that `arrays` depend on, each after its inputs. An output stands for its
 * node. Leaves out the nodes in `seen`.
 */
Arrays in_order(const Arrays& arrays, std::unordered_set<Id>& seen) {
  Arrays all;
  std::vector<std::pair<mx::array, size_t>> path; // with the index of the next input
  auto enter = [&](const mx::array& x) {
    if (is_lazy(x) && seen.insert(x.id()).second) {
      for (auto& sibling : x.siblings()) {
        seen.insert(sibling.id());
      }
      path.emplace_back(x, 0);
    }
  };
  for (auto& array : arrays) {
    enter(array);
    while (!path.empty()) {
      auto& [x, next] = path.back();
      if (next < x.inputs().size()) {
        enter(x.inputs()[next++]);
      } else {
        all.push_back(std::move(path.back().first));
        path.pop_back();
      }
    }
  }
  return all;
}

class Merge {
 public:
  Merge(const Arrays& values, const Arrays& gradients)
      : stream_(mx::default_stream(mx::default_device())) {
    in_order(values, known_);
    auto seen = known_;
    nodes_ = in_order(gradients, seen);
    for (size_t i = 0; i < nodes_.size(); ++i) {
      for (auto& output : nodes_[i].outputs()) {
        places_[output.id()] = i;
      }
      for (auto& input : nodes_[i].inputs()) {
        ++uses_[input.id()];
      }
    }
    for (auto& gradient : gradients) {
      ++uses_[gradient.id()];
    }
  }

  void run(Arrays& gradients) {
    for (auto& node : nodes_) {
      renew(node);
      if (is(node, "Add")) {
        place_ = places_.at(node.id());
        stream_ = node.primitive().stream();
        auto terms = node.inputs();
        if (!merge(node, terms[1], terms[0])) {
          merge(node, terms[0], terms[1]);
        }
      }
    }
    if (instead_.empty()) {
      return;
    }
    // Other nodes may have outputs of replaced nodes as inputs. So replace these inputs too.
    renew(gradients);
    auto left = gradients;
    while (!left.empty()) {
      auto x = std::move(left.back());
      left.pop_back();
      if (is_lazy(x) && known_.insert(x.id()).second) {
        renew(x);
        left.insert(left.end(), x.inputs().begin(), x.inputs().end());
      }
    }
  }

 private:
  void renew(Arrays& arrays) {
    for (auto& array : arrays) {
      if (auto found = instead_.find(array.id()); found != instead_.end()) {
        array = found->second;
      }
    }
  }

  /** Replaces the inputs of a node. Each output has a separate list of the inputs. */
  void renew(const mx::array& node) {
    for (auto& output : node.outputs()) {
      renew(output.inputs());
    }
  }

  void replace(const mx::array& before, const mx::array& now) {
    instead_.insert_or_assign(before.id(), now);
    uses_[now.id()] = uses_[before.id()];
  }

  bool merge(const mx::array& node, const mx::array& part, const mx::array& term) {
    auto found = places_.find(term.id());
    behind_ = found == places_.end() ? 0 : found->second + 1;
    auto merged = sum(part, term);
    if (merged) {
      replace(node, *merged);
    }
    return merged.has_value();
  }

  /** Records that x replaces the sum that `merge` is working on, and returns x. */
  mx::array placed(const mx::array& x) {
    places_[x.id()] = place_;
    uses_.try_emplace(x.id(), 1);
    return x;
  }

  /**
   * Returns `part` + `term` if the node of `part` can compute this sum. Nothing else may use
   * `part`, and its kernel must be able to add `term`.
   */
  std::optional<mx::array> sum(mx::array part, const mx::array& term) {
    auto found = places_.find(part.id());
    if (found == places_.end() || uses_[part.id()] != 1 || !is_lazy(part)) {
      return {};
    }
    auto place = found->second;
    auto& primitive = part.primitive();
    auto s = primitive.stream();
    auto outputs = part.outputs();
    // If the term comes before the node in `nodes_`, it cannot depend on the node's other outputs.
    bool apart = outputs.size() == 1 || behind_ <= place;
    if (s != stream_ || part.id() != outputs[0].id() || !apart) {
      return {};
    }
    auto view = view_kind(primitive);
    if (view == View::of_rows || view == View::contiguous) {
      auto& viewed = part.inputs()[0];
      auto inner = sum(viewed, mx::reshape(term, viewed.shape(), s));
      if (!inner) {
        return {};
      }
      return placed(
          view == View::contiguous ? row_contiguous(*inner, s)
                                   : mx::reshape(*inner, part.shape(), s));
    }
    if (auto sums = plus(part, term); !sums.empty()) {
      for (size_t i = 1; i < outputs.size(); ++i) {
        replace(outputs[i], sums[i]);
        places_[sums[i].id()] = place;
      }
      return placed(sums[0]);
    }
    // The kernel already adds another array. The node of that array may be able to add the term
    // instead.
    if (outputs.size() == 1 && adds(primitive)) {
      if (auto inner = sum(part.inputs().back(), term)) {
        auto inputs = part.inputs(); // for a new node, because others may hold this one
        inputs.back() = *inner;
        return placed(mx::array(part.shape(), part.dtype(), part.primitive_ptr(), inputs));
      }
    }
    return {};
  }

  /**
   * The outputs of a new node that also adds `term` to the first output; empty if the kernel cannot
   * add it.
   */
  static Arrays plus(const mx::array& node, const mx::array& term) {
    auto& inputs = node.inputs();
    auto& primitive = node.primitive();
    if (auto* ours = dynamic_cast<FusedPrimitive*>(&primitive)) {
      return ours->plus(inputs, term);
    }
    if (is(node, "Matmul")) {
      return {mx::addmm(term, inputs[0], inputs[1], 1.0f, 1.0f, primitive.stream())};
    }
    return {};
  }

  /** Whether a primitive adds its last input to its first output. */
  static bool adds(const mx::Primitive& primitive) {
    if (auto* ours = dynamic_cast<const FusedPrimitive*>(&primitive)) {
      return ours->adds();
    }
    // In graphs of gradients, both factors of AddMM are 1.
    return std::string_view(primitive.name()) == "AddMM";
  }

  std::unordered_set<Id> known_; // lazy arrays that the values depend on
  Arrays nodes_;                 // an output of each node of the gradients, after its inputs
  std::unordered_map<Id, size_t> places_;
  std::unordered_map<Id, size_t> uses_; // counts nodes that use an array, and gradients
  std::unordered_map<Id, mx::array> instead_;
  // For the sum that `merge` is working on: the position of its node in `nodes_`.
  size_t place_ = 0;
  size_t behind_ = 0; // the position after its term in `nodes_`; 0 if the term is not there
  mx::Stream stream_;
};

} // namespace

void merge_sums(const Arrays& values, Arrays& gradients) {
  Merge(values, gradients).run(gradients);
}

} // namespace mlx_primitives
