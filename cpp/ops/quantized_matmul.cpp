#include "ops/quantized_matmul.h"

#include <algorithm>
#include <bit>

#include "../../metal/quantized_matmul.h"
#include "ops/rms_norm.h"
#include "runtime/kernels.h"

namespace mlx_primitives {

namespace {
constexpr auto quantized_matmul_op = "quantized_linear";
constexpr size_t MOST_PARTS = 3;

int axis_of(const QuantizedWeight& weight, const QuantizedFormat& format) {
  return static_cast<int>(int64_t{weight.packed.shape(1)} * 32 / format.bits);
}

/** The type that results from promoting x and all other floating inputs. */
mx::Dtype common_dtype(
    const mx::array& x,
    const std::vector<QuantizedWeight>& weights,
    const QuantizedExtras& extras) {
  auto dtype = x.dtype();
  for (auto& weight : weights) {
    if (weight.biases) { // without biases, scales are bytes and do not promote
      dtype = mx::promote_types(dtype, mx::result_type(weight.scales, *weight.biases));
    }
  }
  for (auto& a : {extras.norm, extras.bias, extras.residual}) {
    if (a) {
      dtype = mx::promote_types(dtype, a->dtype());
    }
  }
  return dtype;
}

mx::array silu(const mx::array& x, mx::Stream s) {
  return mx::multiply(x, mx::sigmoid(x, s), s);
}
} // namespace

mx::array quantized_matmul(
    const mx::array& x,
    const std::vector<QuantizedWeight>& weights,
    const QuantizedFormat& format,
    const QuantizedExtras& extras,
    mx::StreamOrDevice s_) {
  if (weights.empty() || weights.size() > MOST_PARTS) {
    refuse(quantized_matmul_op, "expected 1 to ", MOST_PARTS, " weights, got ", weights.size());
  }
  for (auto& weight : weights) {
    require_quantized(quantized_matmul_op, weight, format);
  }
  int axis = axis_of(weights[0], format);
  if (x.ndim() == 0 || x.shape(-1) != axis) {
    refuse(quantized_matmul_op, "expected x of a last axis of ", axis, ", got shape ", x.shape());
  }
  int columns = 0;
  for (auto& weight : weights) {
    if (axis_of(weight, format) != axis) {
      refuse(
          quantized_matmul_op,
          "expected weights of the same axis, got ",
          axis,
          " and ",
          axis_of(weight, format));
    }
    columns += weight.packed.shape(0);
  }
  if (extras.swiglu) {
    columns = weights[0].packed.shape(0);
    if (weights.size() != 2 || weights[1].packed.shape(0) != columns) {
      refuse(quantized_matmul_op, "expected gate and up of one shape, got others");
    }
  }
  auto shape = x.shape();
  shape.back() = columns;
  if (extras.norm && extras.norm->shape() != mx::Shape{axis}) {
    refuse(
        quantized_matmul_op,
        "expected a norm's weight of shape (",
        axis,
        "), got ",
        extras.norm->shape());
  }
  if (extras.bias && extras.bias->shape() != mx::Shape{columns}) {
    refuse(
        quantized_matmul_op,
        "expected a bias of shape (",
        columns,
        "), got ",
        extras.bias->shape());
  }
  if (extras.residual && extras.residual->shape() != shape) {
    refuse(
        quantized_matmul_op,
        "expected a residual of shape ",
        shape,
        ", got ",
        extras.residual->shape());
  }
  auto dtype = common_dtype(x, weights, extras);
  require_kernel_dtype(quantized_matmul_op, dtype);

  auto s = mx::to_stream(s_);
  Arrays inputs;
  inputs.reserve(1 + 3 * weights.size() + 3);
  auto add_as = [&](const mx::array& a, mx::Dtype type) {
    if (a.dtype() == type && known_row_contiguous(a)) {
      inputs.push_back(a);
    } else {
      inputs.push_back(row_contiguous(convert(a, type, s), s));
    }
  };
  auto add = [&](const mx::array& a) { add_as(a, dtype); };
  add(x);
  auto of_scales = weights[0].scales.dtype();
  auto same = [&](auto& weight) { return weight.scales.dtype() == of_scales; };
  if (format.affine()) {
    of_scales =
        std::all_of(weights.begin(), weights.end(), same) ? read_as(of_scales, dtype, s) : dtype;
  }
  for (auto& weight : weights) {
    add_as(weight.packed, weight.packed.dtype());
    add_as(weight.scales, of_scales);
    if (format.affine()) {
      add_as(*weight.biases, of_scales);
    }
  }
  for (auto& a : {extras.norm, extras.bias, extras.residual}) {
    if (a) {
      add(*a);
    }
  }
  QuantizedMatmul::Kind kind{
      format,
      static_cast<int>(weights.size()),
      extras.swiglu,
      extras.norm.has_value(),
      extras.eps,
      extras.bias.has_value(),
      extras.residual.has_value(),
      extras.int8,
      extras.centered,
      extras.order};
  auto primitive = std::make_shared<QuantizedMatmul>(s, kind);
  if (unpacks_first(format, dtype, s)) {
    return primitive->compose(inputs)[0];
  }
  return mx::array(std::move(shape), dtype, std::move(primitive), std::move(inputs));
}

QuantizedWeight QuantizedMatmul::weight(const Arrays& inputs, int part) const {
  int at = 1 + part * stride();
  auto biases = kind_.format.affine() ? std::optional(inputs[at + 2]) : std::nullopt;
  return {inputs[at], inputs[at + 1], biases};
}

QuantizedExtras QuantizedMatmul::extras(const Arrays& inputs) const {
  size_t at = 1 + kind_.parts * stride();
  auto next = [&](bool there) { return there ? std::optional(inputs[at++]) : std::nullopt; };
  QuantizedExtras extras;
  extras.eps = kind_.eps;
  extras.swiglu = kind_.swiglu;
  extras.int8 = kind_.int8;
  extras.centered = kind_.centered;
  extras.order = kind_.order;
  extras.norm = next(kind_.normed);
  extras.bias = next(kind_.biased);
  extras.residual = next(kind_.added);
  return extras;
}

int QuantizedMatmul::columns(const Arrays& inputs) const {
  int columns = 0;
  for (int part = 0; part < (kind_.swiglu ? 1 : kind_.parts); ++part) {
    columns += inputs[1 + part * stride()].shape(0);
  }
  return columns;
}

Arrays QuantizedMatmul::compose(const Arrays& inputs) {
  auto s = stream();
  auto more = extras(inputs);
  auto x = more.norm ? mx::fast::rms_norm(inputs[0], more.norm, kind_.eps, s) : inputs[0];
  Arrays products;
  for (int part = 0; part < kind_.parts; ++part) {
    products.push_back(mlx_product(x, weight(inputs, part), kind_.format, s));
  }
  auto y = kind_.swiglu          ? mx::multiply(silu(products[0], s), products[1], s)
           : products.size() > 1 ? mx::concatenate(products, -1, s)
                                 : products[0];
  if (more.bias) {
    y = mx::add(y, *more.bias, s);
  }
  if (more.residual) {
    y = mx::add(y, *more.residual, s);
  }
  return {y};
}

bool QuantizedMatmul::is_equivalent(const mx::Primitive& other) const {
  return kind_ == static_cast<const QuantizedMatmul&>(other).kind_;
}

std::vector<mx::Shape> QuantizedMatmul::output_shapes(const Arrays& inputs) {
  auto shape = inputs[0].shape();
  shape.back() = columns(inputs);
  return {shape};
}

namespace {

/** With fewer rows of weights, threadgroups may have half the size: `plan` has the conditions. */
constexpr uint64_t FEW_WEIGHTS = 8192;
constexpr uint32_t HALF_VALUES = 128 * QUANTIZED_VALUES; // values that 128 threads stage at once

/** Counts threadgroups with `per_block` columns each, and sets the first block of each part. */
uint32_t place_parts(QuantizedMatmulParams& params, uint32_t per_block) {
  uint64_t blocks = 0;
  for (uint32_t i = 0; i < (params.swiglu ? 1 : params.parts); i++) { // swiglu's parts share blocks
    params.part_blocks[i] = static_cast<uint32_t>(blocks);
    blocks += ceil_div(params.part_columns[i], per_block);
  }
  return grid_count(quantized_matmul_op, "threadgroups", blocks);
}

/** Whether there are many rows and a threadgroup can contain the four SIMD groups of a tile. */
bool takes_tiles(uint32_t rows, uint32_t max_threads, RowOrder order) {
  bool many = order == RowOrder::by_count ? rows > QUANTIZED_BAND : order == RowOrder::prompt;
  return many && max_threads >= QUANTIZED_TILE_THREADS;
}

/**
 * Plans the kernel for one row of x, for two, four or eight rows (a band), or for tiles of many
 * rows. Kernels with tiles need an x that is already normalized.
 */
Launch plan(
    QuantizedMatmulParams& params,
    const std::string& suffix,
    uint32_t element_bytes,
    uint32_t max_threads,
    RowOrder order) {
  std::string form;
  uint32_t rows, columns, threads, bytes; // per threadgroup
  if (takes_tiles(params.rows, max_threads, order)) {
    // A tile of 64 rows costs less per row than a tile of 32 rows, unless many of its rows are
    // padding.
    auto of_32 = ceil_div(params.rows, QUANTIZED_TILE);
    bool tall = ceil_div(of_32, 2) * 2 * 7 <= of_32 * 8;
    form = tall ? "tall" : "tile";
    rows = QUANTIZED_TILE * (tall ? 2 : 1);
    columns = QUANTIZED_TILE;
    threads = QUANTIZED_TILE_THREADS;
    uint32_t gates = params.swiglu ? rows * QUANTIZED_TILE * sizeof(float) : 0;
    bytes = quantized_tile_bytes(rows, element_bytes) + gates;
  } else {
    rows = std::min(std::bit_ceil(params.rows), uint32_t{QUANTIZED_BAND});
    form = rows == 1 ? "row" : "band" + std::to_string(rows);
    // Each threadgroup copies x to threadgroup memory. With few rows of weights, threadgroups of
    // half the size spread them more evenly over the cores, and fewer threads wait for one another.
    // But each thread then copies twice as many values of x.
    uint64_t weights = uint64_t{params.columns} * (params.swiglu ? 2 : 1);
    bool small = rows == 1
                     ? weights < FEW_WEIGHTS && params.axis <= HALF_VALUES * (params.normed ? 1 : 2)
                     : weights < FEW_WEIGHTS / 4;
    uint32_t simds = std::min<uint32_t>(small ? 4 : 8, max_threads / SIMD_WIDTH);
    columns = simds * quantized_rows(rows) / (params.swiglu ? 2 : 1);
    threads = simds * SIMD_WIDTH;
    // Threadgroup memory: padded values of x, sums of QUANTIZED_VALUES of them, the norm's numbers.
    uint64_t axis = ceil_div(params.axis, QUANTIZED_STEP) * QUANTIZED_STEP;
    uint64_t staged = rows * std::min<uint64_t>(axis, QUANTIZED_STAGED / (rows * element_bytes));
    uint64_t sums = staged / QUANTIZED_VALUES + QUANTIZED_BAND + SIMD_WIDTH;
    bytes = static_cast<uint32_t>(sums * sizeof(float) + staged * element_bytes);
  }
  auto bands = static_cast<uint32_t>(ceil_div(params.rows, rows));
  std::array grid = {place_parts(params, columns), bands, 1u};
  return {"mlxp_quantized_matmul_" + form + suffix, grid, {threads, 1, 1}, bytes};
}

} // namespace

std::vector<Dispatch> QuantizedMatmul::dispatches(
    const Arrays& inputs, const Arrays& outputs, uint32_t max_threads) {
  if (mixes(inputs)) {
    refuse_elsewhere(quantized_matmul_op);
  }
  auto x = inputs[0];
  Rows rows(x);
  QuantizedMatmulParams params{};
  params.rows = grid_count(quantized_matmul_op, "rows", rows.count);
  params.axis = rows.axis;
  params.columns = outputs[0].shape(-1);
  params.parts = kind_.parts;
  params.group_shift = std::countr_zero(static_cast<unsigned>(kind_.format.group_size));
  params.swiglu = kind_.swiglu;
  params.normed = kind_.normed;
  params.biased = kind_.biased;
  params.added = kind_.added;
  params.eps = kind_.eps;
  max_threads = whole_simds(quantized_matmul_op, max_threads);
  bool tiles = takes_tiles(params.rows, max_threads, kind_.order);
  bool few = !tiles && takes_few(x.dtype(), stream());
  for (int part = 0; part < kind_.parts; ++part) {
    auto& packed = inputs[1 + part * stride()];
    auto& scales = inputs[2 + part * stride()];
    require_gpu_kernel(quantized_matmul_op, kind_.format, x.dtype(), scales);
    params.part_columns[part] = packed.shape(0);
    few = few && is_aligned(packed);
  }
  auto format = "_" + kind_.format.kernel_name();
  auto bytes = static_cast<uint32_t>(x.itemsize());
  auto launch = few ? plan_few(params, kind_.format, type_suffix(x), max_threads, stream())
                    : plan(params, format + type_suffix(x), bytes, max_threads, kind_.order);

  size_t extra = 1 + kind_.parts * stride();
  auto next = [&](bool there) { return there ? &inputs[extra++] : nullptr; };
  auto *norm = next(kind_.normed), *bias = next(kind_.biased), *residual = next(kind_.added);
  std::vector<Dispatch> all;
  if (tiles && kind_.normed) {
    auto normed = temporary(x.shape(), x.dtype());
    all = RmsNorm(stream(), kind_.eps).dispatches({x, *norm}, {normed}, max_threads);
    x = normed;
  }
  auto stem = few ? "nvidia/quantized_matmul_few" : "quantized_matmul";
  auto& product = all.emplace_back(stem, std::move(launch));
  product.bindings.reserve(3 * QUANTIZED_PARTS + 6);
  auto bind = [&](const mx::array* array) { array ? product.bind(*array) : product.bind_unread(); };
  product.bind(std::move(x));
  for (int part = 0; part < static_cast<int>(QUANTIZED_PARTS); ++part) {
    auto* arrays = part < kind_.parts ? &inputs[1 + part * stride()] : nullptr;
    for (int i = 0; i < 3; ++i) {
      bind(arrays && i < stride() ? arrays + i : nullptr);
    }
  }
  bind(bias);
  bind(residual);
  if (!tiles) {
    bind(norm);
  }
  product.bind(outputs[0], true);
  product.bind_bytes(&params, sizeof(params));
  return all;
}

CpuCall QuantizedMatmul::cpu_call(const Arrays& inputs, Arrays& outputs) const {
  auto& x = inputs[0];
  Rows rows(x);
  auto more = extras(inputs);
  auto start = [](const std::optional<mx::array>& a) { return a ? bytes(*a) : nullptr; };
  std::vector<cpu::Weights> weights;
  for (int part = 0; part < kind_.parts; ++part) {
    auto w = weight(inputs, part);
    auto columns = static_cast<size_t>(w.packed.shape(0));
    weights.push_back({bytes(w.packed), bytes(w.scales), start(w.biases), columns});
  }
  cpu::QuantizedMatmulCall call{
      .element = element_of(x),
      .mode = static_cast<cpu::Mode>(kind_.format.mode),
      .swiglu = kind_.swiglu,
      .int8 = kind_.int8,
      .bits = static_cast<uint32_t>(kind_.format.bits),
      .eps = kind_.eps,
      .order = kind_.order,
      .of_scales = element_of(mixes(inputs) ? inputs[2] : x),
      .centered = kind_.centered,
      .group = static_cast<size_t>(kind_.format.group_size),
      .rows = rows.count,
      .axis = rows.axis,
      .x = bytes(x),
      .norm = start(more.norm),
      .bias = start(more.bias),
      .residual = start(more.residual),
      .weights = nullptr,
      .weight_count = weights.size(),
      .out = bytes(outputs[0])};
  return [call, weights = std::move(weights)]() mutable {
    call.weights = weights.data();
    cpu::mlxp_cpu_quantized_matmul(call);
  };
}

} // namespace mlx_primitives
