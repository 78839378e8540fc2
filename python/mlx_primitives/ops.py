"""The ops of mlx-primitives on `mx.array`.

Each builds a node of MLX's graph and computes nothing. They take float32, float16 and bfloat16 in any
layout, add in float32, and work in `mx.grad`, `mx.vjp`, `mx.jvp`, `mx.vmap` and `mx.compile`. Arguments have
the names of `mlx.core.fast` or `mlx.core` where it has the op. `stream` is a stream or a device; without it
an op goes to MLX's default ones. A wrong type raises TypeError, and a shape or a number that an op refuses
raises ValueError.

A packed weight is what `mx.quantize` returns: codes, scales and biases, which only the mode "affine" has.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Iterator, NamedTuple, Sequence

import mlx.core as mx

from . import _library
from ._library import NO_FLOAT, NO_INT, call, call_many

if TYPE_CHECKING:
    Stream = mx.Stream | mx.Device | None
    Packed = tuple[mx.array, mx.array] | tuple[mx.array, mx.array, mx.array | None]

_array = mx.array
_f = _library.Functions()
_MODES = {"affine": 0, "mxfp4": 1, "mxfp8": 2, "nvfp4": 3}
_LAYOUTS = {"affine": (64, 4), "mxfp4": (32, 4), "mxfp8": (32, 8), "nvfp4": (16, 4)}
_ACTIVATIONS = {None: 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4}
_ROW_ORDERS = {"by_count": 0, "tokens": 1, "prompt": 2}


def _named(op: str, what: str, names: dict, name: object) -> int:
    try:
        return names[name]
    except (KeyError, TypeError):
        known = ", ".join(map(repr, names))
        raise ValueError("[%s] expected a %s among %s, got %r" % (op, what, known, name)) from None


def _layout(op: str, group_size: int | None, bits: int | None, mode: str) -> tuple[int, int, int]:
    number = _named(op, "mode", _MODES, mode)
    if group_size is None or bits is None:
        usual = _LAYOUTS[mode]
        group_size = usual[0] if group_size is None else group_size
        bits = usual[1] if bits is None else bits
    return group_size, bits, number


def _parts(weight: Packed) -> tuple[mx.array, mx.array, mx.array | None]:
    return weight if len(weight) == 3 else (weight[0], weight[1], None)


# Norms.


def rms_norm(x: mx.array, weight: mx.array | None, eps: float, *, stream: Stream = None) -> mx.array:
    """`x / sqrt(mean(x**2) + eps) * weight` over the last axis.

    `x` is `[..., n]`, `weight` `[n]` or None. The result has the shape of `x` and the type that both promote to.
    """
    return call(_f.rms_norm, stream, x, weight, eps)


def rms_norm_residual(
    x: mx.array, residual: mx.array, weight: mx.array | None, eps: float, *, stream: Stream = None
) -> tuple[mx.array, mx.array]:
    """`(h, rms_norm(h, weight, eps))` for `h = x + residual`, in one kernel.

    `x` and `residual` are `[..., n]` of one shape. Both results equal those of the separate ops in every bit.
    """
    return call_many(_f.rms_norm_residual, 2, stream, x, residual, weight, eps)


def layer_norm(
    x: mx.array, weight: mx.array | None, bias: mx.array | None, eps: float, *, stream: Stream = None
) -> mx.array:
    """`(x - mean(x)) / sqrt(var(x) + eps) * weight + bias` over the last axis.

    `x` is `[..., n]`, `weight` and `bias` are `[n]` or None. The variance is divided by n.
    """
    return call(_f.layer_norm, stream, x, weight, bias, eps)


def layer_norm_residual(
    x: mx.array,
    residual: mx.array,
    weight: mx.array | None,
    bias: mx.array | None,
    eps: float,
    *,
    stream: Stream = None,
) -> tuple[mx.array, mx.array]:
    """`(h, layer_norm(h, weight, bias, eps))` for `h = x + residual`, in one kernel."""
    return call_many(_f.layer_norm_residual, 2, stream, x, residual, weight, bias, eps)


# Softmax and losses.


def _last(op: str, x: mx.array, axis: int) -> None:
    if axis != -1 and axis != x.ndim - 1:
        raise ValueError("[%s] expected the last axis, got %r" % (op, axis))


def softmax(x: mx.array, axis: int = -1, *, stream: Stream = None) -> mx.array:
    """`exp(x - max(x)) / sum(exp(x - max(x)))` over the last axis, added in float32.

    The result has the shape and type of `x`; integers become float32.
    """
    if axis != -1:
        _last("softmax", x, axis)
    return call(_f.softmax, stream, x)


def log_softmax(x: mx.array, axis: int = -1, *, stream: Stream = None) -> mx.array:
    """`x - logsumexp(x)` over the last axis. The result has the shape and type of `x`."""
    if axis != -1:
        _last("log_softmax", x, axis)
    return call(_f.log_softmax, stream, x)


def logsumexp(x: mx.array, axis: int = -1, keepdims: bool = False, *, stream: Stream = None) -> mx.array:
    """`log(sum(exp(x)))` over the last axis: `[..., n]` becomes `[...]`, or `[..., 1]` with `keepdims`."""
    if axis != -1:
        _last("logsumexp", x, axis)
    return call(_f.logsumexp, stream, x, keepdims)


def masked_softmax(
    x: mx.array,
    *,
    scale: float = 1.0,
    mask: mx.array | str | None = None,
    window: int | None = None,
    stream: Stream = None,
) -> mx.array:
    """`softmax(scale * x + mask)` over the last axis of scores `[..., queries, keys]`.

    `mask` is "causal", or bools or floats that broadcast to `x`. In a `window` a query sees that many keys up to
    its own position.
    """
    causal, mask = _mask("masked_softmax", mask)
    return call(_f.masked_softmax, stream, x, scale, mask, causal, NO_INT if window is None else window)


def cross_entropy(
    logits: mx.array,
    targets: mx.array,
    *,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
    stream: Stream = None,
) -> mx.array:
    """`logsumexp(logits) - logits[target]` for each row, as `mlx.nn.losses.cross_entropy` has it.

    `logits` is `[..., classes]`, `targets` `[...]` of integers; the loss has the shape of the targets. Rows with
    the target `ignore_index` have no loss and no gradient.
    """
    ignored = NO_INT if ignore_index is None else ignore_index
    return call(_f.cross_entropy, stream, logits, targets, label_smoothing, ignored)


def linear_cross_entropy(
    x: mx.array,
    w: mx.array,
    targets: mx.array,
    *,
    scales: mx.array | None = None,
    biases: mx.array | None = None,
    group_size: int | None = None,
    bits: int | None = None,
    mode: str = "affine",
    bias: mx.array | None = None,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
    chunk_rows: int | None = None,
    stream: Stream = None,
) -> mx.array:
    """`cross_entropy(x @ w.T + bias, targets)` without holding all logits.

    `x` is `[..., k]`, `w` `[classes, k]` or, with `scales`, packed; `targets` is `[...]`. The logits of
    `chunk_rows` rows exist at a time, by default 2**24 of them. A packed weight is a constant to derivatives.
    """
    layout = _layout("linear_cross_entropy", group_size, bits, mode)
    ignored = NO_INT if ignore_index is None else ignore_index
    chunk = NO_INT if chunk_rows is None else chunk_rows
    steps = (bias, label_smoothing, ignored, chunk)
    return call(_f.linear_cross_entropy, stream, x, w, targets, scales, biases, *layout, *steps)


# Rotation and attention.


def _mask(op: str, mask: mx.array | str | None) -> tuple[bool, mx.array | None]:
    if type(mask) is not str:
        return False, mask
    if mask != "causal":
        raise ValueError('[%s] expected a mask, "causal" or None, got %r' % (op, mask))
    return True, None


def rope(
    x: mx.array,
    dims: int,
    *,
    traditional: bool,
    base: float | None,
    scale: float,
    offset: int | mx.array,
    freqs: mx.array | None = None,
    stream: Stream = None,
) -> mx.array:
    """Rotates pairs of the first `dims` features of position t by `(t + offset) * scale / freq`.

    `x` is `[batch, ..., time, features]`. A pair is features i and i + dims / 2, or 2i and 2i + 1 with
    `traditional`. `freq` is `base**(2i / dims)`, or comes from `freqs` `[dims / 2]`. `offset` is an int or an
    array of one int, or of one for each batch entry.
    """
    base = NO_FLOAT if base is None else base
    if type(offset) is _array:
        return call(_f.rope, stream, x, dims, traditional, base, scale, 0, offset, freqs)
    return call(_f.rope, stream, x, dims, traditional, base, scale, offset, None, freqs)


def attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    *,
    scale: float | None = None,
    mask: mx.array | str | None = None,
    sinks: mx.array | None = None,
    window: int | None = None,
    soft_cap: float | None = None,
    stream: Stream = None,
) -> mx.array:
    """`softmax(scale * q @ k.T) @ v` in one pass over keys and values.

    `q` is `[batch, heads, queries, d]`, `k` `[batch, kv_heads, keys, d]`, `v` `[batch, kv_heads, keys, e]`, with
    d and e at most 256 and any strides. `scale` is `1 / sqrt(d)` by default. `mask` is "causal", or bools or
    floats that broadcast to `[batch, heads, queries, keys]`. `sinks` is `[heads]`. In a `window` a query sees
    that many keys up to its own position. `soft_cap` makes a score `cap * tanh(score / cap)`.
    """
    causal, mask = _mask("attention", mask)
    scale = NO_FLOAT if scale is None else scale
    window = NO_INT if window is None else window
    soft_cap = NO_FLOAT if soft_cap is None else soft_cap
    return call(_f.attention, stream, q, k, v, scale, causal, window, mask, soft_cap, sinks, 0)


#: `mlx.core.fast.scaled_dot_product_attention`, with this op's further arguments.
scaled_dot_product_attention = attention


def attention_quantized(
    q: mx.array,
    k: Packed,
    v: Packed,
    *,
    group_size: int = 64,
    bits: int = 8,
    scale: float | None = None,
    mask: mx.array | str | None = None,
    sinks: mx.array | None = None,
    window: int | None = None,
    soft_cap: float | None = None,
    stream: Stream = None,
) -> mx.array:
    """`attention` over keys and values that `mx.quantize` packed, expanded in registers only.

    `k` and `v` are codes, scales and biases of `[batch, kv_heads, keys, ...]`. `bits` is 4 or 8, `group_size` 32,
    64 or 128.
    """
    causal, mask = _mask("attention_quantized", mask)
    scale = NO_FLOAT if scale is None else scale
    window = NO_INT if window is None else window
    soft_cap = NO_FLOAT if soft_cap is None else soft_cap
    rules = (scale, causal, window, mask, soft_cap, sinks, 0)
    return call(_f.attention_quantized, stream, q, *_parts(k), *_parts(v), bits, group_size, *rules)


class KvLayout(NamedTuple):
    """The state of a layer, `[batch, rows, head_dim]`: an area for the queries of a step, then the keys of each
    key head for `capacity` positions, then the values in the same order."""

    heads: int
    kv_heads: int
    head_dim: int
    capacity: int

    @property
    def rows(self) -> int:
        """The number of rows of a state."""
        return self.heads * _library.QUERY_POSITIONS + 2 * self.kv_heads * self.capacity

    def zeros(self, batch: int, dtype: mx.Dtype) -> mx.array:
        """An empty state."""
        return mx.zeros((batch, self.rows, self.head_dim), dtype)

    def queries(self, state: mx.array, time: int) -> mx.array:
        """The rotated queries of the last step of `time` positions, `[batch, heads, time, head_dim]`."""
        if not 0 <= time <= _library.QUERY_POSITIONS:
            raise ValueError("[queries] expected at most %d positions, got %d" % (_library.QUERY_POSITIONS, time))
        return state[:, : self.heads * time].reshape(state.shape[0], self.heads, time, self.head_dim)

    def keys(self, state: mx.array, len: int) -> mx.array:
        """The keys of the first `len` positions, `[batch, kv_heads, len, head_dim]`: a view."""
        return self._stored(state, 0, len)

    def values(self, state: mx.array, len: int) -> mx.array:
        """The values of the first `len` positions, `[batch, kv_heads, len, head_dim]`: a view."""
        return self._stored(state, 1, len)

    def _stored(self, state: mx.array, part: int, len: int) -> mx.array:
        if not 0 <= len <= self.capacity:
            raise ValueError("[kv_layout] expected at most %d positions, got %d" % (self.capacity, len))
        count = self.kv_heads * self.capacity
        start = self.heads * _library.QUERY_POSITIONS + part * count
        rows = state[:, start : start + count]
        return rows.reshape(state.shape[0], self.kv_heads, self.capacity, self.head_dim)[:, :, :len]


def _append(
    layout: KvLayout,
    dims: int | None,
    traditional: bool,
    base: float | None,
    scale: float,
    offset: int | mx.array,
    freqs: mx.array | None,
    multiplier: float,
    slot: int | mx.array | None,
) -> tuple:
    each = type(offset) is _array
    by_array = type(slot) is _array
    return (
        *layout,
        layout.head_dim if dims is None else dims,
        traditional,
        NO_FLOAT if base is None else base,
        scale,
        multiplier,
        0 if each else offset,
        offset if each else None,
        freqs,
        NO_INT if by_array or slot is None else slot,
        slot if by_array else None,
    )


def rope_append(
    state: mx.array,
    qkv: mx.array,
    layout: KvLayout,
    *,
    dims: int | None = None,
    traditional: bool = False,
    base: float | None = 10000.0,
    scale: float = 1.0,
    offset: int | mx.array = 0,
    freqs: mx.array | None = None,
    multiplier: float = 1.0,
    slot: int | mx.array | None = None,
    stream: Stream = None,
) -> mx.array:
    """Rotates the queries and keys of a step and writes them, and its values, into a layer's state.

    `state` is `[batch, layout.rows, head_dim]` and `qkv` `[batch, time, (heads + 2 * kv_heads) * head_dim]`. The
    first position is `offset`, which is written to slot `slot` or else `offset`. The result takes over the
    state's memory where nothing else holds it.
    """
    rotation = _append(layout, dims, traditional, base, scale, offset, freqs, multiplier, slot)
    return call(_f.rope_append, stream, state, qkv, *rotation)


def rope_append_attention(
    state: mx.array,
    qkv: mx.array,
    layout: KvLayout,
    len: int,
    *,
    dims: int | None = None,
    traditional: bool = False,
    base: float | None = 10000.0,
    scale: float = 1.0,
    offset: int | mx.array = 0,
    freqs: mx.array | None = None,
    multiplier: float = 1.0,
    slot: int | mx.array | None = None,
    score_scale: float | None = None,
    mask: mx.array | str | None = None,
    sinks: mx.array | None = None,
    window: int | None = None,
    soft_cap: float | None = None,
    stream: Stream = None,
) -> tuple[mx.array, mx.array]:
    """`rope_append` and the attention of the step over the first `len` positions, as one node.

    The results are the new state and `[batch, time, heads * head_dim]`. A step has at most 8 positions.
    """
    rotation = _append(layout, dims, traditional, base, scale, offset, freqs, multiplier, slot)
    causal, mask = _mask("rope_append_attention", mask)
    score_scale = NO_FLOAT if score_scale is None else score_scale
    window = NO_INT if window is None else window
    soft_cap = NO_FLOAT if soft_cap is None else soft_cap
    rules = (len, score_scale, causal, window, mask, soft_cap, sinks, 0)
    return call_many(_f.rope_append_attention, 2, stream, state, qkv, *rotation, *rules)


# Products.


def matmul(a: mx.array, b: mx.array, *, stream: Stream = None) -> mx.array:
    """`a @ b` of `[..., m, k]` and `[..., k, n]`, added in float32 and rounded once."""
    return call(_f.matmul, stream, a, b)


def matmul_nt(a: mx.array, b: mx.array, *, stream: Stream = None) -> mx.array:
    """`a @ b.T` of `[..., m, k]` and `[..., n, k]`, added in float32 and rounded once."""
    return call(_f.matmul_nt, stream, a, b)


def linear(
    x: mx.array,
    w: mx.array,
    *,
    bias: mx.array | None = None,
    activation: str | None = None,
    residual: mx.array | None = None,
    stream: Stream = None,
) -> mx.array:
    """`act(x @ w.T + bias) + residual`, each step rounded as by separate ops.

    `x` is `[..., k]`, `w` `[n, k]`, `bias` `[n]`, and the result and the `residual` are `[..., n]`. `activation`
    is "relu", "gelu", "gelu_tanh" or "silu".
    """
    kind = 0 if activation is None else _named("linear", "activation", _ACTIVATIONS, activation)
    return call(_f.linear, stream, x, w, bias, kind, residual)


def lora_linear(
    x: mx.array,
    w: mx.array,
    a: mx.array,
    b: mx.array,
    scale: float,
    *,
    scales: mx.array | None = None,
    biases: mx.array | None = None,
    group_size: int | None = None,
    bits: int | None = None,
    mode: str = "affine",
    stream: Stream = None,
) -> mx.array:
    """`x @ w.T + scale * (x @ a.T) @ b.T`, in one node.

    `x` is `[..., k]`, `w` `[n, k]` or, with `scales`, packed; `a` is `[rank, k]` and `b` `[n, rank]`, which are
    the transposes of `lora_a` and `lora_b` of mlx-lm. A packed weight is a constant to derivatives.
    """
    layout = _layout("lora_linear", group_size, bits, mode)
    return call(_f.lora_linear, stream, x, w, scales, biases, *layout, a, b, scale)


def quantized_linear(
    x: mx.array,
    w: mx.array,
    scales: mx.array,
    biases: mx.array | None = None,
    *,
    group_size: int | None = None,
    bits: int | None = None,
    mode: str = "affine",
    bias: mx.array | None = None,
    residual: mx.array | None = None,
    norm: mx.array | None = None,
    eps: float = 1e-5,
    int8: bool = False,
    stream: Stream = None,
) -> mx.array:
    """`rms_norm(x, norm, eps) @ W.T + bias + residual` with a packed weight `[n, k]`.

    `x` is `[..., k]` and is normalized if `norm` `[k]` is given; `bias` is `[n]`, and the result and the
    `residual` are `[..., n]`. With `int8` the CPU's products of prompts round `x` to eight bits.
    """
    layout = _layout("quantized_linear", group_size, bits, mode)
    return call(_f.quantized_linear, stream, x, w, scales, biases, *layout, bias, residual, norm, eps, int8)


def quantized_matmul(
    x: mx.array,
    w: mx.array,
    scales: mx.array,
    biases: mx.array | None = None,
    transpose: bool = True,
    group_size: int | None = None,
    bits: int | None = None,
    mode: str = "affine",
    *,
    stream: Stream = None,
) -> mx.array:
    """`x @ W.T` with a packed weight `[n, k]`, with the arguments of `mx.quantized_matmul`."""
    if not transpose:
        raise ValueError("[quantized_matmul] expected transpose=True: weights are packed along their rows")
    layout = _layout("quantized_matmul", group_size, bits, mode)
    return call(_f.quantized_linear, stream, x, w, scales, biases, *layout, None, None, None, 0.0, False)


def quantized_linears(
    x: mx.array,
    weights: Sequence[Packed],
    *,
    group_size: int | None = None,
    bits: int | None = None,
    mode: str = "affine",
    norm: mx.array | None = None,
    eps: float = 1e-5,
    int8: bool = False,
    stream: Stream = None,
) -> mx.array:
    """One to three products of one `x` `[..., k]`, joined along the last axis, in one dispatch.

    `weights` are packed weights of one format; `x` is normalized first if `norm` `[k]` is given.
    """
    if not 1 <= len(weights) <= 3:
        raise ValueError("[quantized_linears] expected 1 to 3 weights, got %d" % len(weights))
    layout = _layout("quantized_linears", group_size, bits, mode)
    parts = [part for weight in weights for part in _parts(weight)]
    parts += [None] * (9 - len(parts))
    return call(_f.quantized_linears, stream, x, *parts, *layout, norm, eps, int8)


def quantized_swiglu(
    x: mx.array,
    gate: Packed,
    up: Packed,
    *,
    group_size: int | None = None,
    bits: int | None = None,
    mode: str = "affine",
    norm: mx.array | None = None,
    eps: float = 1e-5,
    int8: bool = False,
    stream: Stream = None,
) -> mx.array:
    """`silu(x @ Gate.T) * (x @ Up.T)` in one dispatch, with packed weights `[n, k]` of one format.

    `x` is `[..., k]`, normalized first if `norm` `[k]` is given; the result is `[..., n]`.
    """
    layout = _layout("quantized_swiglu", group_size, bits, mode)
    return call(_f.quantized_swiglu, stream, x, *_parts(gate), *_parts(up), *layout, norm, eps, int8)


def quantized_embedding(
    ids: mx.array,
    w: mx.array,
    scales: mx.array,
    biases: mx.array | None = None,
    *,
    group_size: int | None = None,
    bits: int | None = None,
    mode: str = "affine",
    stream: Stream = None,
) -> mx.array:
    """The rows `ids` `[...]` of a packed weight `[n, k]`, unpacked: `[..., k]`."""
    layout = _layout("quantized_embedding", group_size, bits, mode)
    return call(_f.quantized_embedding, stream, ids, w, scales, biases, *layout)


def quantize(
    w: mx.array, group_size: int = 64, bits: int = 4, *, stream: Stream = None
) -> tuple[mx.array, mx.array, mx.array]:
    """The codes, scales and biases of `mx.quantize` with the mode "affine", equal to it in every bit."""
    return call_many(_f.quantize, 3, stream, w, group_size, bits)


def dequantize(
    w: mx.array, scales: mx.array, biases: mx.array, group_size: int = 64, bits: int = 4, *, stream: Stream = None
) -> mx.array:
    """The numbers behind codes, scales and biases, equal in every bit to `mx.dequantize` on the CPU."""
    return call(_f.dequantize, stream, w, scales, biases, group_size, bits)


# Reductions over the last axis (`axis=-1`) or over all axes (None), added in float32.


def _all(op: str, x: mx.array, axis: int | None) -> bool:
    if axis is not None:
        _last(op, x, axis)
    return axis is None


def sum(x: mx.array, axis: int | None = None, keepdims: bool = False, *, stream: Stream = None) -> mx.array:
    """The sum over the last or all axes."""
    return call(_f.sum, stream, x, _all("sum", x, axis), keepdims)


def mean(x: mx.array, axis: int | None = None, keepdims: bool = False, *, stream: Stream = None) -> mx.array:
    """The arithmetic mean over the last or all axes."""
    return call(_f.mean, stream, x, _all("mean", x, axis), keepdims)


def max(x: mx.array, axis: int | None = None, keepdims: bool = False, *, stream: Stream = None) -> mx.array:
    """The largest element over the last or all axes, NaN if any is NaN."""
    return call(_f.max, stream, x, _all("max", x, axis), keepdims)


def norm(x: mx.array, axis: int | None = None, keepdims: bool = False, *, stream: Stream = None) -> mx.array:
    """The Euclidean norm over the last or all axes."""
    return call(_f.norm, stream, x, _all("norm", x, axis), keepdims)


def sum_of_squares(
    x: mx.array, axis: int | None = None, keepdims: bool = False, *, stream: Stream = None
) -> mx.array:
    """The sum of the squares over the last or all axes."""
    return call(_f.sum_of_squares, stream, x, _all("sum_of_squares", x, axis), keepdims)


# Activations, each step rounded as by `mlx.nn`.


def relu(x: mx.array, *, stream: Stream = None) -> mx.array:
    """`max(x, 0)`, and NaN for NaN."""
    return call(_f.relu, stream, x)


def silu(x: mx.array, *, stream: Stream = None) -> mx.array:
    """`x * sigmoid(x)`."""
    return call(_f.silu, stream, x)


def gelu(x: mx.array, *, stream: Stream = None) -> mx.array:
    """`x * (1 + erf(x / sqrt(2))) / 2`."""
    return call(_f.gelu, stream, x)


def gelu_tanh(x: mx.array, *, stream: Stream = None) -> mx.array:
    """`gelu` approximated by tanh, as `mlx.nn.gelu_approx`."""
    return call(_f.gelu_tanh, stream, x)


def swiglu(gate: mx.array, up: mx.array, *, stream: Stream = None) -> mx.array:
    """`silu(gate) * up`; the shapes broadcast."""
    return call(_f.swiglu, stream, gate, up)


def geglu(gate: mx.array, up: mx.array, *, stream: Stream = None) -> mx.array:
    """`gelu(gate) * up`; the shapes broadcast."""
    return call(_f.geglu, stream, gate, up)


def geglu_tanh(gate: mx.array, up: mx.array, *, stream: Stream = None) -> mx.array:
    """`gelu_tanh(gate) * up`; the shapes broadcast."""
    return call(_f.geglu_tanh, stream, gate, up)


def add_relu(a: mx.array, b: mx.array, *, stream: Stream = None) -> mx.array:
    """`max(a + b, 0)`; the shapes broadcast."""
    return call(_f.add_relu, stream, a, b)


def mul_relu(a: mx.array, b: mx.array, *, stream: Stream = None) -> mx.array:
    """`max(a * b, 0)`; the shapes broadcast."""
    return call(_f.mul_relu, stream, a, b)


def affine(x: mx.array, scale: mx.array, shift: mx.array, *, stream: Stream = None) -> mx.array:
    """`x * scale + shift`; `scale` and `shift` are scalars or as long as the last axis."""
    return call(_f.affine, stream, x, scale, shift)


@contextlib.contextmanager
def row_order(order: str) -> Iterator[None]:
    """Within it, rows of products and of attention that this thread builds are added in one order.

    "tokens" is the order of one row alone, "prompt" that of prompts, and "by_count" takes that of tokens for up
    to eight rows. No bit of a row then depends on the rows beside it.
    """
    before = _library.set_row_order(_named("row_order", "order", _ROW_ORDERS, order))
    try:
        yield
    finally:
        _library.set_row_order(before)
