#include <cstdlib>
#include <cstring>
#include <optional>
#include <sstream>
#include <stdexcept>

#include "mlx/backend/metal/utils.h"
#include "runtime/primitive.h"
#include "simulator.h"

namespace mlx_primitives {

bool simulating() {
  static const bool asked = std::getenv("MLX_PRIMITIVES_SIMULATE_METAL") != nullptr;
  int chosen = bridge::chosen_simulation();
  return chosen < 0 ? asked : chosen > 0;
}

} // namespace mlx_primitives

namespace MTL {

class Library {
 public:
  std::mutex compiling;
  std::optional<rust::Box<bridge::SimulatedLibrary>> simulated;
  std::unordered_map<std::string, std::unique_ptr<ComputePipelineState>> pipelines;
};

NS::UInteger ComputePipelineState::maxTotalThreadsPerThreadgroup() const {
  const char* limit = std::getenv("MLX_PRIMITIVES_SIMULATE_THREADS");
  return limit ? std::strtoul(limit, nullptr, 10) : 1024;
}

} // namespace MTL

namespace mlx::core {

std::string type_to_name(const Dtype& t) {
  std::ostringstream name;
  name << t;
  return t == bool_ ? "bool_" : name.str();
}

std::string type_to_name(const array& a) {
  return type_to_name(a.dtype());
}

} // namespace mlx::core

namespace mlx::core::metal {

namespace {

/** Reads the number of bytes that the type has. */
uint64_t constant_bits(const void* value, MTL::DataType type) {
  size_t bytes;
  switch (type) {
    case MTL::DataTypeBool:
    case MTL::DataTypeChar:
    case MTL::DataTypeUChar:
      bytes = 1;
      break;
    case MTL::DataTypeHalf:
    case MTL::DataTypeShort:
    case MTL::DataTypeUShort:
      bytes = 2;
      break;
    case MTL::DataTypeFloat:
    case MTL::DataTypeInt:
    case MTL::DataTypeUInt:
      bytes = 4;
      break;
    default:
      throw std::runtime_error("[simulate] a function constant of an unknown type");
  }
  uint64_t bits = 0;
  std::memcpy(&bits, value, bytes); // little-endian
  return bits;
}

} // namespace

Device::Device() = default;
Device::~Device() = default;

MTL::Library* Device::get_library(const std::string& name, const std::string& path) {
  throw std::runtime_error(
      "[simulate] the library " + name + " is " + path +
      ", which only a Mac can run; the simulator needs its source.");
}

MTL::Library* Device::get_library(
    const std::string& name,
    const CompileOptions&,
    const std::function<std::string(void)>& builder) {
  MTL::Library* library;
  {
    std::lock_guard lock(mutex_);
    auto& slot = libraries_[name];
    if (!slot) {
      slot = std::make_unique<MTL::Library>();
    }
    library = slot.get();
  }
  // The device's lock is not held while a library compiles, so other threads can compile other
  // libraries.
  std::lock_guard lock(library->compiling);
  if (!library->simulated) {
    library->simulated.emplace(bridge::simulated_library(builder()));
  }
  return library;
}

void Device::clear_library(const std::string& name) {
  std::lock_guard lock(mutex_);
  libraries_.erase(name);
}

MTL::ComputePipelineState* Device::get_kernel(
    const std::string& base_name,
    MTL::Library* mtl_lib,
    const std::string& hash_name,
    const MTLFCList& func_consts,
    const std::vector<MTL::Function*>& linked_functions) {
  if (!linked_functions.empty()) {
    throw std::runtime_error("[simulate] " + base_name + " is asked for with linked functions.");
  }
  std::vector<uint32_t> indices;
  std::vector<uint64_t> bits;
  for (const auto& [value, type, index] : func_consts) {
    indices.push_back(static_cast<uint32_t>(index));
    bits.push_back(constant_bits(value, type));
  }
  std::lock_guard lock(mutex_);
  auto& pipeline = mtl_lib->pipelines[hash_name.empty() ? base_name : hash_name];
  if (!pipeline) {
    pipeline = std::make_unique<MTL::ComputePipelineState>(
        std::make_shared<MTL::ComputePipelineState::Kernel>(
            MTL::ComputePipelineState::Kernel{bridge::simulated_kernel(
                **mtl_lib->simulated,
                base_name,
                {indices.data(), indices.size()},
                {bits.data(), bits.size()})}));
  }
  return pipeline.get();
}

Device& device(mlx::core::Device) {
  // The device is never destroyed, because tasks may still run while the process ends.
  static auto* device = new Device();
  return *device;
}

} // namespace mlx::core::metal
