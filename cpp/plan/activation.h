#pragma once

#include "../../metal/activation.h"
#include "launch.h"

namespace mlx_primitives {

/** As in the names of the kernels. */
constexpr std::string_view activation_name(ActivationKind kind) {
  switch (kind) {
    case ACTIVATION_NONE:
      return "none";
    case ACTIVATION_RELU:
      return "relu";
    case ACTIVATION_GELU:
      return "gelu";
    case ACTIVATION_GELU_TANH:
      return "gelu_tanh";
    case ACTIVATION_SILU:
      return "silu";
    case ACTIVATION_SWIGLU:
      return "swiglu";
    case ACTIVATION_GEGLU:
      return "geglu";
    case ACTIVATION_GEGLU_TANH:
      return "geglu_tanh";
    case ACTIVATION_ADD_RELU:
      return "add_relu";
    case ACTIVATION_MUL_RELU:
      return "mul_relu";
  }
  return "";
}

constexpr bool takes_two(ActivationKind kind) {
  return kind >= ACTIVATION_SWIGLU;
}

/** A quad of a flat array for each thread. */
inline Launch plan_activation(
    ActivationKind kind,
    uint64_t size,
    std::string_view dtype,
    uint32_t max_threads = MAX_THREADS) {
  auto threads = std::clamp<uint32_t>(max_threads, 1, ACTIVATION_GROUP);
  auto groups = grid_count("activation", "threadgroups", ceil_div(size, uint64_t{threads} * READS));
  std::string kernel = "mlxp_activation_" + std::string(activation_name(kind)) + "_";
  return {kernel + std::string(dtype), {groups, 1, 1}, {threads, 1, 1}, 0};
}

/** Quads of columns along x, AFFINE_ROWS rows for each thread along y. */
inline Launch plan_affine(
    uint64_t rows, uint32_t columns, std::string_view dtype, uint32_t max_threads = MAX_THREADS) {
  auto threads = std::clamp<uint32_t>(max_threads, 1, ACTIVATION_GROUP);
  auto quads = static_cast<uint32_t>(ceil_div(columns, READS));
  auto width = std::clamp<uint32_t>(quads, 1, threads);
  uint64_t high = ceil_div(grid_count("affine", "rows", rows), AFFINE_ROWS);
  auto height = static_cast<uint32_t>(std::clamp<uint64_t>(high, 1, threads / width));
  return {
      "mlxp_activation_affine_" + std::string(dtype),
      {static_cast<uint32_t>(ceil_div(quads, width)),
       static_cast<uint32_t>(ceil_div(high, height)),
       1},
      {width, height, 1},
      0};
}

} // namespace mlx_primitives
