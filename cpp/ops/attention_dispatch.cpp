// Plans an Attention: its Metal dispatches and the call of its CPU kernel.
#include <algorithm>
#include <bit>

#include "ops/attention.h"
#include "runtime/kernels.h"

namespace mlx_primitives {

namespace {

constexpr uint64_t ATTENTION_SPLIT_KEYS = 256;   // keys per split; fewer are not split
constexpr uint64_t ATTENTION_SPLITS = 8;         // fewest splits in the vector kernel
constexpr uint32_t ATTENTION_PROMPT_KEYS = 2048; // keys per split in `RowOrder::prompt`
constexpr uint32_t ATTENTION_SHORT_KEYS = 1024;  // most keys without splits (matrix kernel)
constexpr uint64_t ATTENTION_GROUPS = 128;       // wanted threadgroups per key head
constexpr uint32_t ATTENTION_SPLIT_THREADS = 256;
constexpr uint32_t ATTENTION_WHOLE_THREADS = 512;

bool by_vector(const AttentionParams& params, RowOrder order) {
  if (order != RowOrder::by_count) {
    return order == RowOrder::tokens;
  }
  return uint64_t{params.group} * params.queries <= ATTENTION_VECTOR_ROWS;
}

/** The feature count of the smallest kernel that handles heads of this dimension. */
uint32_t kernel_features(uint32_t dim) {
  return dim <= 64 ? 64u : dim <= 128 ? 128u : static_cast<uint32_t>(ATTENTION_DIM);
}

/**
 * Whether there is no mask, and keys and values have the layout that the fast matrix kernels need.
 */
bool plain(const AttentionParams& params, bool quantized) {
  bool features = params.dim == 64 || params.dim == 80 || params.dim == 96 || params.dim == 128 ||
                  params.dim == 256;
  return features && !quantized && params.mask_kind == ATTENTION_NO_MASK &&
         params.value_dim == params.dim && params.k[0].strides[3] == 1 &&
         params.v[0].strides[3] == 1;
}

/**
 * The rows per threadgroup of the matrix kernel, if a threadgroup has at most `max_threads`
 * threads.
 */
uint32_t block_rows(uint32_t features, uint32_t itemsize, uint32_t max_threads) {
  uint32_t simds = whole_simds(attention_op, max_threads) / SIMD_WIDTH;
  // With 256 floats per row, threadgroup memory has room for only 16 rows and a tile of keys.
  uint32_t most = features * itemsize > 512 ? ATTENTION_MATRIX_SIMDS / 2 : ATTENTION_MATRIX_SIMDS;
  return std::min(simds, most) * ATTENTION_FRAGMENT;
}

/**
 * Sets how the keys from `first` to `end` are split. The splits do not depend on the number of key
 * heads or of sequences. So a rank with some heads of a model adds in the same order as a process
 * with all heads, and a sequence gets the same bits alone and in a batch. In the orders `tokens`
 * and `prompt`, every split begins at a multiple of the split length, for any keys and queries.
 * `split_keys` is the split length if there are many keys.
 */
void plan_splits(AttentionParams& params, uint32_t itemsize, RowOrder order, uint64_t split_keys) {
  if (order != RowOrder::by_count) {
    params.chunk =
        by_vector(params, order) ? static_cast<uint32_t>(split_keys) : ATTENTION_PROMPT_KEYS;
    params.before = params.first / params.chunk % SIMD_WIDTH;
    params.first = params.first / params.chunk * params.chunk;
    auto keys = uint64_t{std::max(params.end, params.first + 1)} - params.first;
    // In these orders, the kernel that combines splits always adds the sinks. It runs only if there
    // are at least two splits.
    uint64_t least = params.has_sinks ? 2 : 1;
    params.splits = static_cast<uint32_t>(std::max(ceil_div(keys, params.chunk), least));
    return;
  }
  uint32_t keys = params.end - params.first;
  uint64_t splits = 1;
  if (by_vector(params, order)) {
    // Each split of a key head runs in one threadgroup, and a GPU needs several threadgroups to use
    // all of its cores.
    if (keys >= ATTENTION_SPLIT_KEYS) {
      splits = std::clamp(ceil_div(uint64_t{keys}, split_keys), ATTENTION_SPLITS, ATTENTION_GROUPS);
    }
  } else if (keys > ATTENTION_SHORT_KEYS) {
    uint32_t block =
        block_rows(kernel_features(std::max(params.dim, params.value_dim)), itemsize, MAX_THREADS);
    uint64_t groups = ceil_div(uint64_t{params.group} * params.queries, block);
    splits = std::min(
        ceil_div(ATTENTION_GROUPS, groups), ceil_div(uint64_t{keys}, ATTENTION_SPLIT_KEYS));
  }
  params.splits = static_cast<uint32_t>(splits);
  params.chunk = static_cast<uint32_t>(ceil_div(std::max(keys, 1u), params.splits));
  // Reduce the number of splits if the last splits would be empty.
  params.splits = static_cast<uint32_t>(ceil_div(std::max(keys, 1u), params.chunk));
}

/**
 * Plans the kernel over the keys. `suffix` is the part of its name for the storage format of keys
 * and values, and the type.
 */
Launch plan_keys(
    const AttentionParams& params,
    bool quantized,
    const std::string& suffix,
    uint32_t itemsize,
    uint32_t max_threads,
    RowOrder order) {
  max_threads = whole_simds(attention_op, max_threads);
  auto rows = grid_count(attention_op, "rows", uint64_t{params.group} * params.queries);
  uint32_t depth = grid_count(
      attention_op, "splits of all batch entries", uint64_t{params.batch} * params.splits);
  uint32_t features = kernel_features(std::max(params.dim, params.value_dim));
  if (by_vector(params, order)) {
    bool split = params.splits > 1 || order != RowOrder::by_count;
    uint32_t threads = split ? ATTENTION_SPLIT_THREADS : ATTENTION_WHOLE_THREADS;
    // With more SIMD groups than tiles of keys, some SIMD groups would be idle.
    uint64_t useful = ceil_div(params.chunk, unsigned{ATTENTION_TILE}) * SIMD_WIDTH;
    threads =
        std::min(
            {threads,
             max_threads,
             round_up(
                 static_cast<uint32_t>(std::min<uint64_t>(useful, MAX_THREADS)), SIMD_WIDTH)}) /
        SIMD_WIDTH * SIMD_WIDTH;
    uint32_t together = rows <= 1   ? 1
                        : rows <= 4 ? 4u
                                    : static_cast<uint32_t>(ATTENTION_VECTOR_ROWS);
    auto blocks = grid_count(
        attention_op, "blocks of rows", uint64_t{params.batch} * ceil_div(rows, together));
    // The scratch memory first holds the queries. Later it holds the maxima, the sums and the
    // output row of each SIMD group, plus two floats.
    uint32_t floats =
        std::max(together * features, threads / SIMD_WIDTH * (2 * together + features) + 2);
    return {
        "mlxp_attention_vector_" + std::to_string(features) + "_" + std::to_string(together) +
            suffix,
        {params.splits, params.kv_heads, blocks},
        {threads, 1, 1},
        round_up(floats * static_cast<uint32_t>(sizeof(float)), 16)};
  }
  bool whole = plain(params, quantized);
  features = whole ? params.dim : features;
  uint32_t block = block_rows(features, itemsize, max_threads);
  uint32_t pitch = features + 16 / itemsize;
  uint32_t keys = attention_tile_keys(features * itemsize);
  uint32_t memory = (block + keys) * pitch * itemsize + ATTENTION_BEGINS * sizeof(int64_t);
  return {
      (whole ? "mlxp_attention_matrix_" : "mlxp_attention_matrix_any_") + std::to_string(features) +
          suffix,
      {static_cast<uint32_t>(ceil_div(rows, block)), params.kv_heads, depth},
      {block / ATTENTION_FRAGMENT * SIMD_WIDTH, 1, 1},
      round_up(memory, 16)};
}

/** Plans the kernel that combines the partial results of the splits. */
Launch plan_combine(const AttentionParams& params, const std::string& type, uint32_t max_threads) {
  uint32_t together = std::min<uint32_t>(
      whole_simds(attention_op, max_threads) / SIMD_WIDTH, ATTENTION_COMBINED_ROWS);
  uint64_t rows = uint64_t{params.batch} * params.kv_heads * params.group * params.queries;
  uint32_t groups = grid_count(attention_op, "rows", ceil_div(rows, together));
  return {"mlxp_attention_combine" + type, {groups, 1, 1}, {together * SIMD_WIDTH, 1, 1}, 0};
}

/** A flat array that covers all memory that x's strides reach. It begins at the lowest address. */
mx::array reached(const mx::array& x, AttentionView& view) {
  int64_t lowest = 0;
  int64_t highest = 0;
  for (int i = 0; i < 4; ++i) {
    view.strides[i] = x.strides(i);
    (x.strides(i) < 0 ? lowest : highest) += (x.shape(i) - 1) * x.strides(i);
  }
  view.start = -lowest;
  auto size = static_cast<size_t>(highest - lowest + 1);
  mx::array flat({1}, x.dtype(), nullptr, {}); // the length may exceed 32 bits
  flat.copy_shared_buffer(x, {1}, {true, true, true}, size, lowest);
  return flat;
}

/** For the CPU: a view of the input at index `at`, or an empty view if `there` is false. */
cpu::View view(const Arrays& inputs, int at, bool there = true) {
  if (!there) {
    return {nullptr, {}};
  }
  auto& x = inputs[at];
  cpu::View view{bytes(x), {}};
  for (int i = 0; i < 4; ++i) {
    view.strides[i] = x.strides(i);
  }
  return view;
}

} // namespace

AttentionParams Attention::params(const Arrays& inputs) const {
  const auto& q = inputs[0];
  AttentionParams params{};
  params.batch = q.shape(0);
  params.kv_heads = inputs[1].shape(1);
  params.group = q.shape(1) / inputs[1].shape(1);
  params.queries = q.shape(2);
  params.keys = inputs[1].shape(2);
  params.dim = q.shape(3);
  params.value_dim = dim(inputs, values());
  params.quantized_group = group_size_;
  params.window = rules_.window;
  params.causal = rules_.causal;
  params.has_sinks = sinks_;
  params.scale = rules_.scale;
  params.soft_cap = rules_.soft_cap;
  params.end = params.keys;
  if (masked_) {
    params.mask_kind =
        inputs[mask()].dtype() == mx::bool_ ? ATTENTION_BOOL_MASK : ATTENTION_ADDITIVE_MASK;
  } else if (params.window > 0 && params.keys + 1 > params.queries + params.window) {
    params.first = params.keys + 1 - params.queries - params.window; // the first query's first key
  }
  return params;
}

std::vector<Dispatch> Attention::dispatches(
    const Arrays& inputs, const Arrays& outputs, uint32_t max_threads) {
  auto& out = outputs[0];
  auto all = params(inputs);
  Arrays bound = {reached(inputs[0], all.q)};
  for (int first : {1, values()}) {
    auto* views = first == 1 ? all.k : all.v;
    for (int i = 0; i < 3; ++i) { // bind another buffer for a missing one
      bound.push_back(
          i < parts() ? reached(inputs[first + i], views[i]) : bound[first == 1 ? 1 : 4]);
    }
  }
  bound.push_back(masked_ ? reached(inputs[mask()], all.mask) : bound[0]);
  bound.push_back(sinks_ ? inputs[sinks()] : bound[0]);

  auto type = type_suffix(out);
  auto suffix = (bits_ > 0 ? "_q" + std::to_string(bits_) : std::string()) + type;
  auto itemsize = static_cast<uint32_t>(out.itemsize());
  bool few = bits_ == 0 && by_vector(all, rules_.order) &&
             takes_few_queries(all, bound[0], bound[1], bound[4], stream());
  plan_splits(all, itemsize, rules_.order, few ? FEW_QUERY_SPLIT_KEYS : ATTENTION_SPLIT_KEYS);
  auto stem = few ? "nvidia/attention_few" : attention_op;
  if (few) {
    bound = {bound[0], bound[1], bound[4], bound[7], bound[8]};
  }
  auto launch = few ? plan_few_queries(all, type, max_threads)
                    : plan_keys(all, bits_ > 0, suffix, itemsize, max_threads, rules_.order);
  std::vector<Dispatch> dispatches;
  if (all.splits == 1) {
    dispatches.emplace_back(stem, std::move(launch), std::move(bound), outputs, all);
    return dispatches;
  }
  auto rows = out.size() / all.value_dim;
  auto partials = temporary(
      {static_cast<int>(all.splits), static_cast<int>(rows * (all.value_dim + 2))}, mx::float32);
  Arrays of_splits = {partials, bound.back()};
  dispatches.reserve(2);
  dispatches.emplace_back(stem, std::move(launch), std::move(bound), Arrays{partials}, all);
  auto sum = few ? plan_few_splits(all, type, max_threads) : plan_combine(all, type, max_threads);
  dispatches.emplace_back(stem, std::move(sum), std::move(of_splits), outputs, all);
  return dispatches;
}

cpu::AttentionCall Attention::call(const Arrays& inputs) const {
  auto& q = inputs[0];
  bool quantized = bits_ > 0;
  return {
      .element = element_of(q),
      .causal = rules_.causal,
      .bool_mask = masked_ && inputs[mask()].dtype() == mx::bool_,
      .order = rules_.order,
      .scale = rules_.scale,
      .soft_cap = rules_.soft_cap,
      .dropped = static_cast<uint32_t>(rules_.dropped),
      .batch = static_cast<size_t>(q.shape(0)),
      .heads = static_cast<size_t>(q.shape(1)),
      .kv_heads = static_cast<size_t>(inputs[1].shape(1)),
      .queries = static_cast<size_t>(q.shape(2)),
      .keys = static_cast<size_t>(inputs[1].shape(2)),
      .dim = static_cast<size_t>(q.shape(3)),
      .value_dim = static_cast<size_t>(dim(inputs, values())),
      .window = static_cast<size_t>(rules_.window),
      .bits = static_cast<size_t>(bits_),
      .group = static_cast<size_t>(group_size_),
      .q = view(inputs, 0),
      .k = view(inputs, 1),
      .k_scales = view(inputs, 2, quantized),
      .k_biases = view(inputs, 3, quantized),
      .v = view(inputs, values()),
      .v_scales = view(inputs, values() + 1, quantized),
      .v_biases = view(inputs, values() + 2, quantized),
      .mask = view(inputs, mask(), masked_),
      .sinks = sinks_ ? bytes(inputs[sinks()]) : nullptr,
      .out = nullptr};
}

CpuCall Attention::cpu_call(const Arrays& inputs, Arrays& outputs) const {
  auto call = this->call(inputs);
  call.out = bytes(outputs[0]);
  return [call] { cpu::mlxp_cpu_attention(call); };
}

std::vector<Dispatch> AttentionGrad::dispatches(
    const Arrays& inputs, const Arrays& outputs, uint32_t max_threads) {
  constexpr auto stem = "attention_grad";
  auto& q = inputs[0];
  auto of = attention_->params(inputs);
  AttentionGradParams params{};
  params.batch = of.batch;
  params.heads = q.shape(1);
  params.kv_heads = of.kv_heads;
  params.group = of.group;
  params.queries = of.queries;
  params.keys = of.keys;
  params.dim = of.dim;
  params.value_dim = of.value_dim;
  params.window = of.window;
  params.causal = of.causal;
  params.mask_kind = of.mask_kind;
  params.has_sinks = of.has_sinks;
  params.scale = of.scale;
  params.soft_cap = of.soft_cap;
  Arrays bound = {
      reached(q, params.q),
      reached(inputs[1], params.k),
      reached(inputs[2], params.v),
      reached(inputs.back(), params.g)};
  bool masked = params.mask_kind != ATTENTION_NO_MASK;
  bound.push_back(masked ? reached(inputs[attention_->mask()], params.mask) : bound[0]);
  auto with = [&](const mx::array& last) {
    auto arrays = bound;
    arrays.push_back(last);
    return arrays;
  };

  auto type = type_suffix(q);
  auto itemsize = static_cast<uint32_t>(q.itemsize());
  uint32_t features = kernel_features(std::max(params.dim, params.value_dim));
  uint32_t most = attention_grad_simds(features * itemsize);
  uint32_t simds = std::min(most, whole_simds(attention_op, max_threads) / SIMD_WIDTH);
  auto rows = grid_count(attention_op, "rows", uint64_t{params.group} * params.queries);
  // A threadgroup computes a block of rows. For `arrays` of its inputs, it keeps these rows in
  // threadgroup memory. It loads the other inputs tile by tile.
  auto launch = [&](const char* kind, uint32_t count, uint32_t arrays) -> Launch {
    uint32_t held = (most + arrays * simds) * ATTENTION_FRAGMENT;
    return {
        "mlxp_attention_grad_" + std::string(kind) + "_" + std::to_string(features) + type,
        {static_cast<uint32_t>(ceil_div(count, simds * ATTENTION_FRAGMENT)),
         params.kv_heads,
         params.batch},
        {simds * SIMD_WIDTH, 1, 1},
        held * (features * itemsize + 16)};
  };
  auto all_rows = grid_count(
      attention_op, "rows of all heads", uint64_t{params.batch} * params.kv_heads * rows);
  auto stats = temporary({static_cast<int>(all_rows), ATTENTION_STATS}, mx::float32);
  bool has_sinks = params.has_sinks != 0;
  auto sinks = has_sinks ? inputs[attention_->sinks()] : bound[0];
  std::vector<Dispatch> result = {
      {stem, launch("stats", rows, 2), with(sinks), {stats}, params},
      {stem, launch("queries", rows, 2), with(stats), {outputs[0]}, params}};
  if (of_keys_) {
    result.push_back({stem, launch("keys", params.keys, 2), with(stats), {outputs[1]}, params});
    result.push_back({stem, launch("values", params.keys, 1), with(stats), {outputs[2]}, params});
  }
  if (of_mask_) {
    auto& of_mask = outputs[output_of(attention_->mask())];
    result.push_back({stem, launch("mask", rows, 2), with(stats), {of_mask}, params});
  }
  if (has_sinks) {
    Launch of_heads{
        "mlxp_attention_grad_sinks" + type,
        {static_cast<uint32_t>(q.shape(1)), 1, 1},
        {SIMD_WIDTH, 1, 1}};
    result.push_back({stem, of_heads, {sinks, stats}, {outputs.back()}, params});
  }
  return result;
}

CpuCall AttentionGrad::cpu_call(const Arrays& inputs, Arrays& outputs) const {
  auto out = [&](bool asked, int argnum) {
    return asked ? bytes(outputs[output_of(argnum)]) : nullptr;
  };
  cpu::AttentionGradCall call{
      .forward = attention_->call(inputs),
      .cotangent = view(inputs, static_cast<int>(inputs.size()) - 1),
      .dq = bytes(outputs[0]),
      .dk = out(of_keys_, 1),
      .dv = out(of_keys_, 2),
      .dmask = out(of_mask_, attention_->mask()),
      .dsinks = out(attention_->sinks_, attention_->sinks())};
  return [call] { cpu::mlxp_cpu_attention_grad(call); };
}

} // namespace mlx_primitives
