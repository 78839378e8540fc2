#include "bridge/io.h"

#include "mlx-primitives/src/io/bridge.rs.h"
#include "mlx/io.h"
#include "ops/stored.h"
#include "runtime/evaluate.h"

namespace mlx_primitives::bridge {

Handle stored(rust::Box<Stored> from, Ints shape, Dtype dtype) {
  require_memory("stored", shape, to_mlx(dtype));
  here(); // makes sure that this thread has a CPU stream
  auto source = std::make_shared<rust::Box<Stored>>(std::move(from));
  return handle(mlx_primitives::stored(std::move(source), to_shape(shape), to_mlx(dtype)));
}

bool is_waiting(const mx::array& a) noexcept {
  return reader(a) != nullptr;
}

rust::Box<Stored> stored_of(const mx::array& waiting) {
  auto* read = reader(waiting);
  if (!read) {
    refuse("stored", "expected an array that has not been read from its file yet");
  }
  return (*read->from())->copy();
}

Handle stored_part(const mx::array& whole, size_t axis, int32_t start, int32_t end) {
  here();
  return handle(part_of(whole, axis, start, end));
}

void save_safetensors(
    rust::Str path,
    rust::Slice<const rust::String> names,
    const ArrayList& arrays,
    rust::Slice<const MetadataEntry> metadata) {
  evaluate(arrays); // mx::save_safetensors would evaluate without a check for failed tasks
  std::unordered_map<std::string, mx::array> named;
  for (size_t i = 0; i < names.size() && i < arrays.size(); ++i) {
    named.insert_or_assign(std::string(names[i]), arrays[i]);
  }
  std::unordered_map<std::string, std::string> entries;
  for (const auto& entry : metadata) {
    entries.insert_or_assign(std::string(entry.key), std::string(entry.value));
  }
  mx::save_safetensors(std::string(path), std::move(named), std::move(entries));
}

} // namespace mlx_primitives::bridge
