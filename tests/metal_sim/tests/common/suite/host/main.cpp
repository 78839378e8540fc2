// Reads one call of an op from each line and prints what cpp/gpu encodes for it.

#include <sys/resource.h>

#include <iostream>
#include <sstream>

#include "gpu/launch.cpp"
#include "gpu/rms_norm.cpp"
#include "gpu/rope.cpp"
#include "gpu/softmax.cpp"

namespace mx = mlx::core;
using namespace mlx_primitives;

constexpr int OUT = 9;

int main() {
  rlimit seconds{10, 10}; // of a plan that never ends
  setrlimit(RLIMIT_CPU, &seconds);
  std::string line;
  while (std::getline(std::cin, line)) {
    std::istringstream words(line);
    std::string op, dtype;
    uint32_t limit;
    int donate, dims, traditional, forward, extra, offsets, extent;
    float base, scale, eps;
    words >> op >> dtype >> limit >> donate >> dims >> traditional >> forward >> base >> scale >>
        eps >> extra >> offsets;
    mx::Shape shape;
    while (words >> extent) {
      shape.push_back(extent);
    }
    mx::Stream stream;
    mx::metal::device(stream.device).limit = limit;
    auto& encoder = mx::metal::get_command_encoder(stream) = {};
    donated = donate != 0;
    auto make = [&](int id, mx::Shape s) { return mx::array{id, s, dtype, new char}; };
    std::vector<mx::array> inputs = {make(0, shape)}, outputs = {make(OUT, shape)};
    try {
      if (op == "rms_norm") {
        if (extra) {
          inputs.push_back(make(1, {shape.back()}));
        }
        RmsNorm(stream, eps).eval_gpu(inputs, outputs);
      } else if (op == "softmax") {
        Softmax(stream).eval_gpu(inputs, outputs);
      } else {
        inputs.push_back(make(1, {offsets}));
        if (extra) {
          inputs.push_back(make(2, {dims / 2}));
        }
        Rope(stream, dims, traditional, base, scale, forward).eval_gpu(inputs, outputs);
      }
    } catch (const std::exception& error) {
      std::cout << "error " << error.what() << "\n";
      continue;
    }
    std::cout << (encoder.kernel.empty() ? "none" : encoder.kernel);
    for (auto& extents : {encoder.grid, encoder.group}) {
      for (uint64_t count : extents) {
        std::cout << " " << count;
      }
    }
    for (auto [index, bytes] : encoder.threadgroup) {
      std::cout << " t" << index << "=" << bytes;
    }
    for (auto [index, id] : encoder.arrays) {
      std::cout << " b" << index << "=" << id;
    }
    std::cout << " p" << encoder.params_index << "=";
    for (unsigned char byte : encoder.params) {
      std::cout << "0123456789abcdef"[byte >> 4] << "0123456789abcdef"[byte & 15];
    }
    std::cout << "\n";
  }
}
