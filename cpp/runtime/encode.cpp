#include "runtime/encode.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <typeinfo>
#include <unordered_map>

#include "runtime/encoder.h"
#include "runtime/primitive.h"

namespace mlx_primitives {

namespace {

/** Allocates a temporary array when it is first bound. Returns false for other arrays. */
bool provide(Encoder& encoder, mx::array& array) {
  if (array.has_primitive() || array.data_shared_ptr()) {
    return false;
  }
  allocate(array);
  encoder.keep(array);
  return true;
}

void begin(
    Encoder& encoder,
    const Kernel& kernel,
    const Launch& launch,
    const std::vector<ThreadgroupMemory>& memory) {
  encoder.begin(kernel);
  if (launch.threadgroup_bytes > 0) {
    encoder.reserve_threadgroup_memory(0, launch.threadgroup_bytes);
  }
  for (const auto& of_index : memory) {
    encoder.reserve_threadgroup_memory(of_index.index, of_index.bytes);
  }
}

void bind(Encoder& encoder, mx::array& array, bool written, uint32_t index, int64_t offset) {
  if (written) {
    encoder.bind_output(array, index, offset);
  } else {
    encoder.bind_input(array, index, offset);
  }
}

/**
 * Binds an array's only element by value. If the host might have to wait for the value, binds it as
 * unknown.
 */
void bind_known(Encoder& encoder, const mx::array& array, uint32_t index) {
  KnownInteger integer{0, 0};
  if (array.size() == 1 && array.dtype() == mx::int32 && array.data_shared_ptr() &&
      array.status() == mx::array::Status::available && array.buffer().ptr() &&
      encoder.is_on_host(array)) {
    integer = {1, array.data<int32_t>()[0]};
  }
  std::vector<uint8_t> bytes(sizeof(integer));
  std::memcpy(bytes.data(), &integer, sizeof(integer));
  encoder.bind_bytes(bytes, index);
}

void encode_one(Encoder& encoder, Dispatch& dispatch, const Kernel& kernel) {
  begin(encoder, kernel, dispatch.launch, dispatch.memory);
  for (auto& binding : dispatch.bindings) {
    auto& source = binding.unread ? dispatch.bindings[0] : binding;
    if (binding.known) {
      bind_known(encoder, *binding.array, binding.index);
    } else if (source.array) {
      provide(encoder, *source.array);
      bind(encoder, *source.array, source.written, binding.index, source.offset);
    } else {
      encoder.bind_bytes(binding.bytes, binding.index);
    }
  }
  encoder.run(dispatch.launch, dispatch.grid_is_threads);
}

struct Planned {
  std::vector<Dispatch> dispatches;
  std::vector<Kernel> kernels; // the kernels of the dispatches
};

Planned planned(Encoder& encoder, const char* op, const Plan& plan) {
  for (uint32_t limit = encoder.most_threads();;) {
    Planned all{plan(limit), {}};
    uint32_t allowed = limit;
    uint32_t refused = 0; // the most threads per group that were planned but not allowed
    for (auto& dispatch : all.dispatches) {
      encoder.plan_anew(dispatch.launch, limit);
      all.kernels.push_back(encoder.kernel(dispatch));
      uint32_t most = all.kernels.back().max_threads;
      if (uint32_t threads = dispatch.launch.threads_per_group(); threads > most) {
        allowed = std::min(allowed, most);
        refused = std::max(refused, threads);
      }
    }
    if (refused == 0) {
      return all;
    }
    if (allowed >= limit) {
      refuse(op, "expected a launch of at most ", allowed, " threads a group, got ", refused);
    }
    limit = allowed;
  }
}

std::unique_ptr<Encoder> encoder_of(const mx::Stream& stream, const char* op) {
  auto encoder = cuda_encoder(stream);
  return encoder ? std::move(encoder) : metal_encoder(stream, op); // defined in metal_encoder.cpp
}

/** The properties of arrays that an op's plan may depend on. They are stored as a list of words. */
class Key {
 public:
  std::vector<int64_t> words;

  /**
   * Appends arrays. Returns false if an array has no memory, because the key compares addresses in
   * memory.
   */
  bool add(const Arrays& arrays) {
    for (const auto& array : arrays) {
      if (!array.data_shared_ptr() || !array.buffer().ptr()) {
        return false;
      }
      size_t node = 0, memory = 0;
      while (node < all_.size() && all_[node]->id() != array.id()) {
        ++node;
      }
      while (memory < all_.size() && all_[memory]->buffer().ptr() != array.buffer().ptr()) {
        ++memory;
      }
      bool alone = memory == all_.size();
      words.insert(
          words.end(),
          {static_cast<int64_t>(array.dtype().val()),
           static_cast<int64_t>(node),
           static_cast<int64_t>(memory),
           alone ? array.offset() % 16 : array.offset() - all_[memory]->offset(),
           array.flags().row_contiguous,
           static_cast<int64_t>(array.ndim())});
      words.insert(words.end(), array.shape().begin(), array.shape().end());
      words.insert(words.end(), array.strides().begin(), array.strides().end());
      all_.push_back(&array);
    }
    return true;
  }

  uint64_t hash(const mx::Primitive& primitive) const {
    uint64_t hash = typeid(primitive).hash_code();
    for (auto word : words) {
      hash = (hash ^ static_cast<uint64_t>(word)) * 0x9e3779b97f4a7c15;
      hash ^= hash >> 32;
    }
    return hash;
  }

  const std::vector<const mx::array*>& arrays() const {
    return all_;
  }

 private:
  std::vector<const mx::array*> all_;
};

/**
 * A dispatch that refers to arrays by numbers. The numbers count the op's inputs, then its outputs,
 * and then temporary arrays.
 */
struct Step {
  struct Bound {
    uint32_t index;
    size_t array; // or NONE for bytes
    bool written;
    int64_t start;  // bytes from the array's first element to the view's
    size_t span;    // the view's number of elements
    mx::Dtype type; // the view's type; arrays that share memory may differ
    int64_t offset;
    std::vector<uint8_t> bytes;
    bool known;
  };
  static constexpr size_t NONE = SIZE_MAX;
  Kernel kernel;
  Launch launch;
  std::vector<ThreadgroupMemory> memory;
  bool grid_is_threads;
  std::vector<Bound> bound;
};

mx::array view_of(const mx::array& array, int64_t start, size_t span, mx::Dtype type) {
  mx::array view({1}, type, nullptr, {});
  auto first = start / static_cast<int64_t>(view.itemsize());
  view.copy_shared_buffer(array, {1}, {true, true, true}, span, first);
  return view;
}

struct Recipe {
  std::shared_ptr<mx::Primitive> primitive;
  std::vector<int64_t> words;
  std::vector<std::pair<mx::Shape, mx::Dtype>> temporaries;
  std::vector<Step> steps;

  void run(Encoder& encoder, std::vector<const mx::array*> arrays) const {
    Arrays temporary;
    temporary.reserve(temporaries.size());
    for (const auto& [shape, dtype] : temporaries) {
      provide(encoder, temporary.emplace_back(shape, dtype, nullptr, Arrays{}));
      arrays.push_back(&temporary.back());
    }
    const bool checked = simulating();
    for (const auto& step : steps) {
      begin(encoder, step.kernel, step.launch, step.memory);
      for (const auto& bound : step.bound) {
        if (bound.array == Step::NONE) {
          encoder.bind_bytes(bound.bytes, bound.index);
          continue;
        }
        auto& array = const_cast<mx::array&>(*arrays[bound.array]);
        if (bound.known) {
          bind_known(encoder, array, bound.index);
        } else if (
            checked &&
            (bound.start != 0 || bound.span != array.data_size() || bound.type != array.dtype())) {
          // The simulator checks bounds, so bind a view with exactly the bound elements.
          auto view = view_of(array, bound.start, bound.span, bound.type);
          bind(encoder, view, bound.written, bound.index, bound.offset);
        } else {
          bind(encoder, array, bound.written, bound.index, bound.start + bound.offset);
        }
      }
      encoder.run(step.launch, step.grid_is_threads);
    }
  }
};

/**
 * Encodes a plan, and returns a recipe that can encode it again for other arrays. The recipe has no
 * steps if the plan binds an array that is neither the op's nor temporary.
 */
Recipe encode_and_keep(Encoder& encoder, Planned& plan, std::vector<const mx::array*> arrays) {
  Recipe recipe;
  bool whole = true;
  for (size_t i = 0; i < plan.dispatches.size(); ++i) {
    auto& dispatch = plan.dispatches[i];
    Step step{plan.kernels[i], dispatch.launch, dispatch.memory, dispatch.grid_is_threads, {}};
    whole = whole && !dispatch.library; // a user's launch may depend on anything
    for (auto& binding : dispatch.bindings) {
      auto& source = binding.unread ? dispatch.bindings[0] : binding;
      if (!source.array) {
        step.bound.push_back(
            {binding.index, Step::NONE, false, 0, 0, mx::uint8, 0, binding.bytes, false});
        continue;
      }
      auto& array = *source.array;
      if (provide(encoder, array)) {
        recipe.temporaries.emplace_back(array.shape(), array.dtype());
        arrays.push_back(&array);
      }
      auto found = std::find_if(arrays.begin(), arrays.end(), [&](const mx::array* other) {
        return binding.known ? other->id() == array.id()
                             : other->buffer().ptr() == array.buffer().ptr();
      });
      whole = whole && found != arrays.end();
      if (whole) {
        auto number = static_cast<size_t>(found - arrays.begin());
        auto start = array.offset() - (*found)->offset();
        step.bound.push_back(
            {binding.index,
             number,
             source.written,
             start,
             array.data_size(),
             array.dtype(),
             source.offset,
             {},
             binding.known});
      }
    }
    recipe.steps.push_back(std::move(step));
    encode_one(encoder, dispatch, plan.kernels[i]);
  }
  if (!whole) {
    recipe.steps.clear();
  }
  return recipe;
}

using Kept = std::unordered_map<uint64_t, std::deque<Recipe>>;

Kept& kept_plans() {
  thread_local Kept all;
  return all;
}

} // namespace

void prepare_plans() {
  kept_plans();
}

void encode(
    const std::shared_ptr<mx::Primitive>& primitive,
    const Arrays& inputs,
    const Arrays& outputs,
    const Plan& plan) {
  constexpr size_t most = 256; // the most keys that a thread keeps
  constexpr size_t alike = 4;  // the most recipes of a key, newest first
  auto& kept = kept_plans();
  const auto& stream = primitive->stream();
  auto encoder = encoder_of(stream, primitive->name());
  Key key;
  key.words = {stream.index, static_cast<int64_t>(inputs.size())};
  bool keeps = key.add(inputs) && key.add(outputs);
  auto hash = key.hash(*primitive);
  if (auto found = kept.find(hash); keeps && found != kept.end()) {
    for (const auto& recipe : found->second) {
      const mx::Primitive &one = *recipe.primitive, &other = *primitive;
      if (recipe.words == key.words && typeid(one) == typeid(other) && one.is_equivalent(other)) {
        return recipe.run(*encoder, key.arrays());
      }
    }
  }
  auto all = planned(*encoder, primitive->name(), plan);
  auto recipe = encode_and_keep(*encoder, all, key.arrays());
  if (keeps && !recipe.steps.empty()) {
    recipe.primitive = primitive;
    recipe.words = std::move(key.words);
    if (kept.size() >= most) {
      kept.clear();
    }
    auto& recipes = kept[hash];
    recipes.push_front(std::move(recipe));
    if (recipes.size() > alike) {
      recipes.pop_back();
    }
  }
}

} // namespace mlx_primitives
