// Files of tensors, as src/ffi/mod.rs declares them.
#include <cstring>
#include <stdexcept>

#include "bridge/core.h"
#include "mlx-primitives/src/ffi/mod.rs.h"
#include "mlx/io.h"

namespace mlx_primitives::bridge {

namespace {

/** Reads a file that is already in memory; lazy loads keep it alive. */
class MemoryReader : public mx::io::Reader {
 public:
  explicit MemoryReader(rust::Slice<const uint8_t> bytes) : bytes_(bytes.begin(), bytes.end()) {}

  bool is_open() const override {
    return true;
  }
  bool good() const override {
    return position_ <= bytes_.size();
  }
  size_t tell() override {
    return position_;
  }
  void seek(int64_t off, std::ios_base::seekdir way) override {
    size_t from = way == std::ios_base::beg   ? 0
                  : way == std::ios_base::cur ? position_
                                              : bytes_.size();
    position_ = from + off;
  }
  void read(char* data, size_t n) override {
    read(data, n, position_);
    position_ += n;
  }
  void read(char* data, size_t n, size_t offset) override {
    if (offset > bytes_.size() || n > bytes_.size() - offset) {
      throw std::runtime_error("[read] expected more bytes than the buffer holds");
    }
    std::memcpy(data, bytes_.data() + offset, n);
  }
  std::string label() const override {
    return "memory";
  }

 private:
  std::vector<uint8_t> bytes_;
  size_t position_{0};
};

Loaded to_loaded(mx::SafetensorsLoad file) {
  Loaded loaded;
  for (auto& [name, array] : file.first) {
    loaded.arrays.push_back(NamedArray{name, handle(array)});
  }
  for (auto& [key, value] : file.second) {
    loaded.metadata.push_back(MetadataEntry{key, value});
  }
  return loaded;
}

// Files are read on the CPU, wherever the arrays are used later.
const mx::Device io_device = mx::Device::cpu;

} // namespace

Loaded load_safetensors(rust::Str path) {
  check_version();
  return to_loaded(mx::load_safetensors(std::string(path), io_device));
}

Loaded load_safetensors_bytes(rust::Slice<const uint8_t> bytes) {
  check_version();
  return to_loaded(mx::load_safetensors(std::make_shared<MemoryReader>(bytes), io_device));
}

void save_safetensors(
    rust::Str path,
    rust::Slice<const rust::String> names,
    const ArrayList& arrays,
    rust::Slice<const MetadataEntry> metadata) {
  bridge::eval(arrays); // MLX's own, called below, does not know what failed
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

Loaded load_gguf(rust::Str path) {
  check_version();
  auto file = mx::load_gguf(std::string(path), io_device);
  Loaded loaded;
  for (auto& [name, array] : file.first) {
    loaded.arrays.push_back(NamedArray{name, handle(array)});
  }
  for (auto& [key, value] : file.second) {
    if (auto text = std::get_if<std::string>(&value)) {
      loaded.metadata.push_back(MetadataEntry{key, *text});
    } else if (auto array = std::get_if<mx::array>(&value)) {
      loaded.metadata.push_back(MetadataEntry{key, to_text(*array)});
    }
  }
  return loaded;
}

} // namespace mlx_primitives::bridge
