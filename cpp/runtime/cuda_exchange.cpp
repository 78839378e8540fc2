// Exchanges small arrays between the GPUs of one machine. In builds without the feature `cuda`,
// no_cuda.cpp replaces this file.
#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "mlx-primitives/src/cuda.rs.h"
#include "mlx/backend/cuda/allocator.h"
#include "mlx/backend/cuda/device.h"
#include "mlx/backend/cuda/utils.h"
#include "runtime/cuda_kernels.h"
#include "runtime/encoder.h"
#include "runtime/exchange.h"
#include "runtime/primitive.h"

namespace mlx_primitives {

namespace {

constexpr uint32_t MOST_RANKS = 8;
constexpr size_t MOST_BYTES = 256 << 10; // the largest array
constexpr size_t WORD = 8;               // the bytes of the array in a store
constexpr size_t SENT = 16;              // all bytes of that store
constexpr size_t PART = MOST_BYTES / WORD * SENT;
constexpr uint32_t THREADS = 256;
constexpr uint64_t MOST_BLOCKS = 64;

/** The last parameter of the kernel below. Its source declares the same fields. */
struct ExchangeParams {
  uint64_t to[MOST_RANKS]; // each rank's address for this rank's part
  uint64_t from;           // this rank's address for rank 0's part
  uint64_t pitch;          // bytes from one rank's part to the next
  uint32_t rank, ranks, words, flag;
};

/**
 * The source of the kernel. A store writes eight bytes of the array: two words, each beside the
 * number of the exchange. The hardware writes a word and its number together. So a rank that reads
 * the number also has the word, and no fence is needed. Successive exchanges use different halves
 * of the memory, so an exchange overwrites the data of the exchange before the previous one. This
 * is safe: a rank begins an exchange only after it has read all data of the previous one, and every
 * other rank sent that data only after it had read the data of the exchange before it.
 */
constexpr auto SOURCE = R"cuda(#include <metal_stdlib>
using namespace metal;

struct ExchangeParams {
  unsigned long long to[8];
  unsigned long long from, pitch;
  unsigned rank, ranks, words, flag;
};

kernel void mlxp_exchange(
    device const unsigned short* x [[buffer(0)]],
    device unsigned* y [[buffer(1)]],
    constant ExchangeParams& params [[buffer(2)]]) {
  const unsigned first = blockIdx.x * blockDim.x + threadIdx.x, step = gridDim.x * blockDim.x;
  const unsigned rank = params.rank, ranks = params.ranks, words = params.words;
  const unsigned flag = params.flag;
  const bool aligned = ((unsigned long long)x & 7) == 0;
  for (unsigned i = first; i < words; i += step) {
    unsigned a, b;
    if (aligned) {
      a = ((const unsigned*)x)[2 * i];
      b = ((const unsigned*)x)[2 * i + 1];
    } else {
      a = x[4 * i] | unsigned(x[4 * i + 1]) << 16;
      b = x[4 * i + 2] | unsigned(x[4 * i + 3]) << 16;
    }
    for (unsigned r = 0; r < ranks; r++) {
      if (r != rank) {
        asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(
                         params.to[r] + 16ull * i),
                     "r"(a), "r"(flag), "r"(b), "r"(flag)
                     : "memory");
      }
    }
    y[2 * (rank * words + i)] = a;
    y[2 * (rank * words + i) + 1] = b;
  }
  for (unsigned r = 0; r < ranks; r++) {
    for (unsigned i = first; i < words && r != rank; i += step) {
      unsigned a, f, b, g;
      do {
        asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(a), "=r"(f), "=r"(b), "=r"(g)
                     : "l"(params.from + r * params.pitch + 16ull * i)
                     : "memory");
      } while (f != flag || g != flag);
      y[2 * (r * words + i)] = a;
      y[2 * (r * words + i) + 1] = b;
    }
  }
}
)cuda";

mx::cu::CommandEncoder& encoder_of_thread() {
  return mx::cu::get_command_encoder(mx::default_stream(mx::Device::gpu));
}

CUfunction compiled(mx::cu::Device& device) {
  auto architecture = static_cast<uint32_t>(
      10 * device.compute_capability_major() + device.compute_capability_minor());
  std::array bound{
      bridge::CudaBound{0, 0},
      bridge::CudaBound{1, 0},
      bridge::CudaBound{2, sizeof(ExchangeParams)}};
  auto made = bridge::cuda_kernel(
      SOURCE, "mlxp_exchange", {bound.data(), bound.size()}, {}, false, architecture);
  CUmodule module;
  CUDA_DRIVER(cuModuleLoadData, &module, made.code.data());
  CUfunction function;
  CUDA_DRIVER(cuModuleGetFunction, &function, module, std::string(made.symbol).c_str());
  return function;
}

} // namespace

/**
 * The memory of a GPU that other processes write to. It is never freed, because they may still
 * write to it.
 */
struct PeerMemory {
  uint32_t rank;
  uint32_t ranks;
  CUdeviceptr own{0};
  std::array<CUdeviceptr, MOST_RANKS> others{};
  CUfunction kernel{nullptr};
  uint32_t exchanges{0}; // the number of exchanges so far
  mx::array order;       // a stand-in by which MLX orders the kernels
};

namespace {

/**
 * The offset of a rank's part in an exchange memory. Successive exchanges alternate between the two
 * halves of this memory.
 */
size_t place(const PeerMemory& memory, uint32_t exchange, uint32_t rank) {
  return (exchange % 2 * memory.ranks + rank) * PART;
}

class Exchange : public mx::Primitive {
 public:
  Exchange(mx::Stream stream, std::shared_ptr<PeerMemory> memory)
      : mx::Primitive(stream), memory_(std::move(memory)) {}

  void eval_cpu(const Arrays&, Arrays&) override {
    refuse(name(), "expected a GPU, got the CPU");
  }

  void eval_gpu(const Arrays& inputs, Arrays& outputs) override {
    auto& x = inputs[0];
    auto& out = outputs[0];
    auto& memory = *memory_;
    out.set_data(allocate(out.nbytes()));
    auto& encoder = mx::cu::get_command_encoder(stream());
    encoder.set_input_array(x);
    encoder.set_output_array(out);
    encoder.set_output_array(memory.order);
    // The memory is initially zero, so no exchange may have the number 0.
    uint32_t exchange = ++memory.exchanges == 0 ? ++memory.exchanges : memory.exchanges;
    ExchangeParams params{};
    for (uint32_t r = 0; r < memory.ranks; ++r) {
      params.to[r] = memory.others[r] + place(memory, exchange, memory.rank);
    }
    params.from = memory.own + place(memory, exchange, 0);
    params.pitch = PART;
    params.rank = memory.rank;
    params.ranks = memory.ranks;
    params.words = static_cast<uint32_t>(x.nbytes() / WORD);
    params.flag = exchange;
    auto* from = mx::gpu_ptr<void>(x);
    auto* to = mx::gpu_ptr<void>(out);
    std::array<void*, 3> pointers{&from, &to, &params};
    auto blocks = static_cast<uint32_t>(std::min(ceil_div(params.words, THREADS), MOST_BLOCKS));
    encoder.add_kernel_node_raw(
        memory.kernel, dim3(blocks), dim3(THREADS), dim3(), 0, pointers.data());
  }

  const char* name() const override {
    return "Exchange";
  }

 private:
  std::shared_ptr<PeerMemory> memory_;
};

} // namespace

std::shared_ptr<PeerMemory> share_memory(uint32_t rank, uint32_t ranks) {
  if (ranks > MOST_RANKS) {
    return nullptr;
  }
  auto& device = encoder_of_thread().device();
  device.make_current();
  auto order = mx::array(allocate(WORD), {1}, mx::uint64);
  auto memory = std::make_shared<PeerMemory>(PeerMemory{rank, ranks, 0, {}, nullptr, 0, order});
  size_t bytes = 2 * ranks * PART;
  CUDA_DRIVER(cuMemAlloc_v2, &memory->own, bytes);
  CUDA_DRIVER(cuMemsetD8_v2, memory->own, 0, bytes);
  CUDA_DRIVER(cuCtxSynchronize);
  memory->kernel = compiled(device);
  return memory;
}

std::string handle_of(const PeerMemory& memory) {
  CUipcMemHandle handle;
  CUDA_DRIVER(cuIpcGetMemHandle, &handle, memory.own);
  return {reinterpret_cast<const char*>(&handle), sizeof(handle)};
}

void reach_peers(PeerMemory& memory, const std::string& handles) {
  CUipcMemHandle handle;
  if (handles.size() != memory.ranks * sizeof(handle)) {
    refuse("exchange", "expected a handle of each rank, got ", handles.size(), " bytes");
  }
  encoder_of_thread().device().make_current();
  for (uint32_t r = 0; r < memory.ranks; ++r) {
    if (r != memory.rank) {
      std::memcpy(&handle, handles.data() + r * sizeof(handle), sizeof(handle));
      auto flags = CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS;
      CUDA_DRIVER(cuIpcOpenMemHandle_v2, &memory.others[r], handle, flags);
    }
  }
}

bool exchanges(const mx::array& x) {
  bool whole = x.nbytes() > 0 && x.nbytes() % WORD == 0 && x.nbytes() <= MOST_BYTES;
  return whole && x.itemsize() > 1 && !x.is_tracer();
}

mx::array exchange(const std::shared_ptr<PeerMemory>& memory, const mx::array& x, mx::Stream s) {
  auto shape = x.shape();
  if (shape.empty()) {
    shape.push_back(1);
  }
  shape[0] *= static_cast<int>(memory->ranks);
  auto primitive = std::make_shared<Exchange>(s, memory);
  return mx::array(std::move(shape), x.dtype(), std::move(primitive), {row_contiguous(x, s)});
}

} // namespace mlx_primitives
