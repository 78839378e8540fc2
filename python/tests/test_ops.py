"""Compares each op with a composition of MLX's ops, in every type.

The bound is relative to the largest number of the result. In float32 it allows for sums of a few hundred terms in
another order. In 16 bits, both sides round where MLX rounds, after sums in different orders, so results may differ by
two units in the last place. If an op rounds a result several times, the bound is larger.
"""

import math

import mlx.core as mx
import mlx.nn as nn
import pytest
from conftest import DEVICE

from mlx_primitives import ops

TYPES = [mx.float32, mx.float16, mx.bfloat16]
BOUNDS = {mx.float32: 2e-5, mx.float16: 2 * 2**-10, mx.bfloat16: 2 * 2**-7}
DEEP = 4  # times the bound, for compositions that round several times
EXACT = 0 if DEVICE == "cpu" else 1  # on the CPU, results equal MLX's bit for bit


def rand(*shape, dtype=mx.float32, seed=0, scale=1.0):
    return (mx.random.normal(shape, key=mx.random.key(seed)) * scale).astype(dtype)


def compare(ours, theirs, times=1):
    ours, theirs = (it if isinstance(it, (tuple, list)) else [it] for it in (ours, theirs))
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs):
        assert a.shape == b.shape and a.dtype == b.dtype, (a.shape, b.shape, a.dtype, b.dtype)
        wide, want = a.astype(mx.float32), b.astype(mx.float32)
        bound = times * BOUNDS.get(a.dtype, 0) * max(1e-3, mx.abs(want).max().item())
        assert mx.abs(wide - want).max().item() <= bound


def sdpa(q, k, v, scale=None, mask=None, sinks=None, window=None, soft_cap=None):
    """Computes attention in float32 by MLX's general ops, and rounds once."""
    dtype = q.dtype
    q, k, v = (x.astype(mx.float32) for x in (q, k, v))
    repeats = q.shape[1] // k.shape[1]
    k, v = mx.repeat(k, repeats, 1), mx.repeat(v, repeats, 1)
    scores = (q @ k.swapaxes(-1, -2)) * (1 / math.sqrt(q.shape[-1]) if scale is None else scale)
    if soft_cap is not None:
        scores = soft_cap * mx.tanh(scores / soft_cap)
    queries, keys = scores.shape[-2:]
    at, key = mx.arange(queries)[:, None] + keys - queries, mx.arange(keys)
    if window is not None or isinstance(mask, str):
        scores = mx.where(key <= at, scores, -mx.inf)
    if window is not None:
        scores = mx.where(key > at - window, scores, -mx.inf)
    if isinstance(mask, mx.array):
        scores = mx.where(mask, scores, -mx.inf) if mask.dtype == mx.bool_ else scores + mask.astype(mx.float32)
    if sinks is not None:
        sink = mx.broadcast_to(sinks.astype(mx.float32)[:, None, None], (*scores.shape[:-1], 1))
        scores = mx.concatenate([scores, sink], -1)
    weights = mx.softmax(scores, -1, precise=True)[..., :keys]
    return (weights @ v).astype(dtype)


ONE = {
    "relu": (ops.relu, nn.relu),
    "silu": (ops.silu, nn.silu),
    "gelu": (ops.gelu, nn.gelu),
    "gelu_tanh": (ops.gelu_tanh, nn.gelu_approx),
    "softmax": (ops.softmax, lambda x: mx.softmax(x, -1, precise=True)),
    "log_softmax": (ops.log_softmax, nn.log_softmax),
    "logsumexp": (ops.logsumexp, lambda x: mx.logsumexp(x.astype(mx.float32), -1).astype(x.dtype)),
    "logsumexp_keepdims": (
        lambda x: ops.logsumexp(x, keepdims=True),
        lambda x: mx.logsumexp(x.astype(mx.float32), -1, keepdims=True).astype(x.dtype),
    ),
    "rms_norm": (lambda x: ops.rms_norm(x, None, 1e-5), lambda x: mx.fast.rms_norm(x, None, 1e-5)),
    "layer_norm": (lambda x: ops.layer_norm(x, None, None, 1e-5), lambda x: mx.fast.layer_norm(x, None, None, 1e-5)),
    "masked_softmax": (
        lambda x: ops.masked_softmax(x, scale=0.5, mask="causal"),
        lambda x: mx.softmax(
            mx.where(mx.arange(x.shape[-1]) <= mx.arange(x.shape[-2])[:, None] + x.shape[-1] - x.shape[-2],
                     x * 0.5, mx.finfo(x.dtype).min), -1, precise=True),
    ),
    **{
        "%s over %s%s" % (name, axis, " kept" * kept): (
            lambda x, f=getattr(ops, name), axis=axis, kept=kept: f(x, axis=axis, keepdims=kept),
            lambda x, g=g, axis=axis, kept=kept: g(x.astype(mx.float32), axis, kept).astype(x.dtype),
        )
        for name, g in {
            "sum": lambda x, axis, kept: mx.sum(x, axis, keepdims=kept),
            "mean": lambda x, axis, kept: mx.mean(x, axis, keepdims=kept),
            "max": lambda x, axis, kept: mx.max(x, axis, keepdims=kept),
            "norm": lambda x, axis, kept: mx.sqrt(mx.sum(x * x, axis, keepdims=kept)),
            "sum_of_squares": lambda x, axis, kept: mx.sum(x * x, axis, keepdims=kept),
        }.items()
        for axis, kept in ((-1, False), (None, True))
    },
}
TWO = {
    "swiglu": (ops.swiglu, lambda a, b: nn.silu(a) * b),
    "geglu": (ops.geglu, lambda a, b: nn.gelu(a) * b),
    "geglu_tanh": (ops.geglu_tanh, lambda a, b: nn.gelu_approx(a) * b),
    "add_relu": (ops.add_relu, lambda a, b: nn.relu(a + b)),
    "mul_relu": (ops.mul_relu, lambda a, b: nn.relu(a * b)),
    "rms_norm_residual": (
        lambda a, b: ops.rms_norm_residual(a, b, None, 1e-5),
        lambda a, b: (a + b, mx.fast.rms_norm(a + b, None, 1e-5)),
    ),
    "layer_norm_residual": (
        lambda a, b: ops.layer_norm_residual(a, b, None, None, 1e-5),
        lambda a, b: (a + b, mx.fast.layer_norm(a + b, None, None, 1e-5)),
    ),
    "matmul_nt": (ops.matmul_nt, lambda a, b: a @ b.swapaxes(-1, -2)),
    "matmul": (lambda a, b: ops.matmul(a, b.swapaxes(-1, -2)), lambda a, b: a @ b.swapaxes(-1, -2)),
}


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", ONE)
def test_ops_of_one_array(name, dtype):
    ours, theirs = ONE[name]
    for x in (rand(2, 3, 96, dtype=dtype), rand(5, 96, 7, dtype=dtype).swapaxes(1, 2)):
        compare(ours(x), theirs(x), DEEP)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", TWO)
def test_ops_of_two_arrays(name, dtype):
    ours, theirs = TWO[name]
    a, b = rand(2, 5, 96, dtype=dtype), rand(2, 5, 96, dtype=dtype, seed=1)
    compare(ours(a, b), theirs(a, b), DEEP)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_norms_with_weights(dtype):
    x, r = rand(2, 5, 96, dtype=dtype), rand(2, 5, 96, dtype=dtype, seed=1)
    w, b = rand(96, dtype=dtype, seed=2), rand(96, dtype=dtype, seed=3)
    compare(ops.rms_norm(x, w, 1e-5), mx.fast.rms_norm(x, w, 1e-5))
    compare(ops.layer_norm(x, w, b, 1e-5), mx.fast.layer_norm(x, w, b, 1e-5), DEEP)
    compare(ops.rms_norm_residual(x, r, w, 1e-5), (x + r, mx.fast.rms_norm(x + r, w, 1e-5)))
    compare(ops.layer_norm_residual(x, r, w, b, 1e-5), (x + r, mx.fast.layer_norm(x + r, w, b, 1e-5)), DEEP)
    compare(ops.affine(x, w, b), x * w + b, DEEP)
    compare(ops.affine(x, mx.array(2.0, dtype), mx.array(1.0, dtype)), x * 2 + 1, DEEP)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("traditional", [False, True])
def test_rope(dtype, traditional):
    x = rand(2, 4, 5, 64, dtype=dtype)
    freqs = mx.exp(mx.arange(16) / 3)
    for offset in (0, 7, mx.array(3), mx.array([1, 9])):
        for options in ({"base": 1e4}, {"base": None, "freqs": freqs}):
            rules = {"traditional": traditional, "scale": 0.5, "offset": offset, **options}
            compare(ops.rope(x, 32, **rules), mx.fast.rope(x, 32, **rules), DEEP)


RULES = {
    "plain": {},
    "scale": {"scale": 0.3},
    "causal": {"mask": "causal"},
    "window": {"window": 3},
    "bools": {"mask": mx.arange(9) != 2},
    "floats": {"mask": -mx.arange(9).astype(mx.float16) / 4},
    "soft_cap": {"soft_cap": 2.0},
    "sinks": {"sinks": mx.array([0.0, 1.0, -1.0, 2.0]).astype(mx.float16)},
}


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("rules", RULES)
def test_attention(rules, dtype):
    rules = {name: it.astype(dtype) if isinstance(it, mx.array) and it.dtype != mx.bool_ else it
             for name, it in RULES[rules].items()}
    q, k = rand(2, 4, 5, 64, dtype=dtype), rand(2, 2, 9, 64, dtype=dtype, seed=1)
    v = rand(2, 9, 2, 32, dtype=dtype, seed=2).swapaxes(1, 2)
    compare(ops.attention(q, k, v, **rules), sdpa(q, k, v, **rules), 2)
    if not {"window", "soft_cap"} & set(rules):
        rules = {"scale": 0.125, **rules}
        compare(ops.attention(q, k, k, **rules), mx.fast.scaled_dot_product_attention(q, k, k, **rules), DEEP)


@pytest.mark.parametrize("bits", [4, 8])
def test_attention_quantized(bits):
    q, k, v = (rand(1, heads, keys, 64, seed=s) for s, heads, keys in ((0, 4, 3), (1, 2, 9), (2, 2, 9)))
    packed_k, packed_v = (mx.quantize(x, 32, bits) for x in (k, v))
    k, v = (mx.dequantize(*x, 32, bits) for x in (packed_k, packed_v))
    ours = ops.attention_quantized(q, packed_k, packed_v, group_size=32, bits=bits, mask="causal")
    compare(ours, sdpa(q, k, v, mask="causal"))


FORMATS = [("affine", 64, 4), ("affine", 32, 8), ("affine", 64, 3), ("mxfp4", 32, 4), ("mxfp8", 32, 8), ("nvfp4", 16, 4)]


def packed(n, k, layout, dtype=mx.float32, seed=1):
    mode, group_size, bits = layout
    parts = mx.quantize(rand(n, k, dtype=dtype, seed=seed, scale=0.2), group_size, bits, mode)
    plain = mx.dequantize(*parts, group_size=group_size, bits=bits, mode=mode)
    return parts, plain.astype(mx.float32), {"group_size": group_size, "bits": bits, "mode": mode}


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16], ids=str)
@pytest.mark.parametrize("layout", FORMATS, ids=str)
def test_products_of_packed_weights(layout, dtype):
    if dtype == mx.bfloat16 and layout[0] == "nvfp4":
        pytest.skip("one type is enough")
    parts, plain, options = packed(48, 128, layout, dtype)
    other, plain_other, _ = packed(48, 128, layout, dtype, seed=5)
    bias, norm = rand(48, dtype=dtype, seed=2), rand(128, dtype=dtype, seed=3)
    for rows in (1, 5, 40):
        x, residual = rand(2, rows, 128, dtype=dtype), rand(2, rows, 48, dtype=dtype, seed=4)

        def product(x, w):
            return (x.astype(mx.float32) @ w.T).astype(dtype)

        normed = mx.fast.rms_norm(x, norm, 1e-5)
        compare(ops.quantized_matmul(x, *parts, **options), product(x, plain), 2)
        compare(
            ops.quantized_linear(x, *parts, **options, bias=bias, residual=residual, norm=norm),
            product(normed, plain) + bias + residual,
            DEEP,
        )
        compare(
            ops.quantized_linears(x, [parts, other], **options, norm=norm),
            mx.concatenate([product(normed, plain), product(normed, plain_other)], -1),
            DEEP,
        )
        compare(
            ops.quantized_swiglu(x, parts, other, **options),
            nn.silu(product(x, plain)) * product(x, plain_other),
            DEEP,
        )
        a, b = rand(4, 128, dtype=dtype, seed=6), rand(48, 4, dtype=dtype, seed=7)
        rest = dict(zip(("scales", "biases"), parts[1:]))
        compare(
            ops.lora_linear(x, parts[0], a, b, 0.5, **rest, **options),
            product(x, plain) + 0.5 * ((x @ a.T) @ b.T),
            DEEP,
        )
    ids = mx.array([[0, 47, 3], [5, 5, -1]])
    rows = plain.astype(dtype if layout[0] == "affine" else mx.bfloat16)[ids]
    compare(ops.quantized_embedding(ids, *parts, **options), rows, EXACT)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_linear(dtype):
    x, w, b, r = (rand(*s, dtype=dtype, seed=i) for i, s in enumerate([(3, 7, 96), (40, 96), (40,), (3, 7, 40)]))
    for activation, act in {None: lambda y: y, "relu": nn.relu, "gelu": nn.gelu, "gelu_tanh": nn.gelu_approx,
                            "silu": nn.silu}.items():
        compare(ops.linear(x, w, bias=b, activation=activation, residual=r), act(x @ w.T + b) + r, DEEP)
    a, low = rand(4, 96, dtype=dtype, seed=5), rand(40, 4, dtype=dtype, seed=6)
    compare(ops.lora_linear(x, w, a, low, 2.0), x @ w.T + 2.0 * ((x @ a.T) @ low.T), 2 * DEEP)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_quantize(bits, dtype):
    w = rand(8, 128, dtype=dtype)
    ours, theirs = ops.quantize(w, 64, bits), mx.quantize(w, 64, bits)
    if DEVICE == "cpu":  # where a weight lies between two codes, MLX's GPU ops may choose the other one
        assert all(mx.array_equal(a, b) for a, b in zip(ours, theirs))
        compare(ops.dequantize(*ours, 64, bits), mx.dequantize(*theirs, 64, bits), EXACT)
    compare(ops.dequantize(*ours, 64, bits), mx.dequantize(*ours, 64, bits), EXACT)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_cross_entropy(dtype):
    logits, targets = rand(6, 50, dtype=dtype), mx.array([0, 49, 7, 7, 3, 1])
    for smoothing in (0.0, 0.1):
        ours = ops.cross_entropy(logits, targets, label_smoothing=smoothing)
        compare(ours, nn.losses.cross_entropy(logits, targets, label_smoothing=smoothing).astype(dtype), DEEP)
    ignoring = ops.cross_entropy(logits, targets, ignore_index=7)
    assert ignoring[2].item() == 0 and ignoring[1].item() != 0
    x, w, b = rand(6, 96, dtype=dtype), rand(50, 96, dtype=dtype, seed=1, scale=0.1), rand(50, dtype=dtype, seed=2)
    want = ops.cross_entropy(ops.linear(x, w, bias=b), targets)
    for chunk in (None, 1, 4):
        compare(ops.linear_cross_entropy(x, w, targets, bias=b, chunk_rows=chunk), want)
    parts, _, options = packed(50, 128, ("affine", 64, 4), dtype)
    x = rand(6, 128, dtype=dtype)
    want = ops.cross_entropy(ops.quantized_matmul(x, *parts, **options), targets)
    rest = dict(zip(("scales", "biases"), parts[1:]))
    compare(ops.linear_cross_entropy(x, parts[0], targets, **rest, **options), want)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_a_state_that_grows(dtype):
    layout = ops.KvLayout(heads=4, kv_heads=2, head_dim=32, capacity=16)
    state, fused = layout.zeros(1, dtype), layout.zeros(1, dtype)
    keys, values, at = [], [], 0
    for time in (3, 1, 2):
        qkv = rand(1, time, 8 * 32, dtype=dtype, seed=time)
        heads = qkv.reshape(1, time, 8, 32).swapaxes(1, 2)
        rules = {"traditional": False, "base": 1e4, "scale": 1.0, "offset": at}
        q, k = (ops.rope(x, 32, **rules) for x in (heads[:, :4], heads[:, 4:6]))
        keys.append(k)
        values.append(heads[:, 6:])
        at += time
        state = ops.rope_append(state, qkv, layout, offset=at - time)
        fused, attended = ops.rope_append_attention(fused, qkv, layout, at, offset=at - time, mask="causal")
        for a, b in (
            (layout.queries(state, time), q),
            (layout.keys(state, at), mx.concatenate(keys, 2)),
            (layout.values(state, at), mx.concatenate(values, 2)),
            (layout.keys(fused, at), mx.concatenate(keys, 2)),
        ):
            assert mx.array_equal(a, b)
        want = ops.attention(q, mx.concatenate(keys, 2), mx.concatenate(values, 2), mask="causal")
        assert mx.array_equal(attended, want.swapaxes(1, 2).reshape(1, time, 128))
    by_slot = ops.rope_append(layout.zeros(1, dtype), qkv, layout, offset=mx.array(4), slot=9)
    assert mx.array_equal(layout.values(by_slot, 11)[:, :, 9:], values[-1])


def test_rows_do_not_depend_on_the_rows_beside_them():
    x, w = rand(33, 100, dtype=mx.bfloat16), rand(5, 100, dtype=mx.bfloat16, seed=1)
    with ops.row_order("tokens"):
        many, one = ops.linear(x, w), ops.linear(x[7:8], w)
    assert mx.array_equal(many[7:8], one)
    with pytest.raises(ValueError, match="row_order"):
        with ops.row_order("any"):
            pass


REFUSED = {
    "softmax": lambda x: ops.softmax(x, axis=0),
    "sum": lambda x: ops.sum(x, axis=0),
    "attention": lambda x: ops.attention(x, x, x),
    "linear": lambda x: ops.linear(x, x, activation="swish"),
    "quantized_matmul": lambda x: ops.quantized_matmul(x, *mx.quantize(mx.ones((4, 64))), transpose=False),
    "quantized_linear": lambda x: ops.quantized_linear(x, *mx.quantize(mx.ones((4, 64))), mode="int3"),
    "quantized_linears": lambda x: ops.quantized_linears(x, []),
    "cross_entropy": lambda x: ops.cross_entropy(x, x),
    "masked_softmax": lambda x: ops.masked_softmax(x, mask="full"),
    "rope": lambda x: ops.rope(x, 4, traditional=False, base=1e4, scale=1.0, offset=0),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_op(name):
    with pytest.raises(ValueError, match=r"^\[%s" % name):
        REFUSED[name](mx.ones((4, 8)))
