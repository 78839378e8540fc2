"""Matrix products and quantized (packed) weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Sequence

import mlx.core as mx

from .._library import call
from ._common import f, layout_of, named, parts_of

if TYPE_CHECKING:
    from ._common import Packed, Stream

_ACTIVATIONS = {None: 0, "relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4}


def matmul(a: mx.array, b: mx.array, *, stream: Stream = None) -> mx.array:
    """`a @ b` of `[..., m, k]` and `[..., k, n]`. Sums are computed in float32 and rounded once."""
    return call(f.matmul, stream, a, b)


def matmul_nt(a: mx.array, b: mx.array, *, stream: Stream = None) -> mx.array:
    """`a @ b.T` of `[..., m, k]` and `[..., n, k]`. Sums are computed in float32 and rounded once."""
    return call(f.matmul_nt, stream, a, b)


def linear(
    x: mx.array,
    w: mx.array,
    *,
    bias: mx.array | None = None,
    activation: str | None = None,
    residual: mx.array | None = None,
    stream: Stream = None,
) -> mx.array:
    """`act(x @ w.T + bias) + residual`. Each step is rounded as by separate ops.

    `x` is `[..., k]`, `w` is `[n, k]` and `bias` is `[n]`. The result and the `residual` are `[..., n]`. `activation`
    is "relu", "gelu", "gelu_tanh" or "silu".
    """
    kind = 0 if activation is None else named("linear", "activation", _ACTIVATIONS, activation)
    return call(f.linear, stream, x, w, bias, kind, residual)


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
    """`x @ w.T + scale * (x @ a.T) @ b.T`, as one node of the graph.

    `x` is `[..., k]`. `w` is `[n, k]`, or a packed weight if `scales` is given. `a` is `[rank, k]` and `b` is
    `[n, rank]`, the transposes of `lora_a` and `lora_b` of mlx-lm. Derivatives treat a packed weight as a constant.
    """
    layout = layout_of("lora_linear", group_size, bits, mode)
    return call(f.lora_linear, stream, x, w, scales, biases, *layout, a, b, scale)


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
    """`rms_norm(x, norm, eps) @ W.T + bias + residual` with a packed weight W of shape `[n, k]`.

    `x` is `[..., k]`. It is normalized only if `norm` `[k]` is given. `bias` is `[n]`. The result and the `residual`
    are `[..., n]`. With `int8`, the CPU rounds `x` to eight bits, if that is faster.
    """
    layout = layout_of("quantized_linear", group_size, bits, mode)
    return call(f.quantized_linear, stream, x, w, scales, biases, *layout, bias, residual, norm, eps, int8)


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
    """`x @ W.T` with a packed weight W of shape `[n, k]`, with the arguments of `mx.quantized_matmul`."""
    if not transpose:
        raise ValueError("[quantized_matmul] expected transpose=True: weights are packed along their rows")
    layout = layout_of("quantized_matmul", group_size, bits, mode)
    return call(f.quantized_linear, stream, x, w, scales, biases, *layout, None, None, None, 0.0, False)


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
    """Up to three products of `x` `[..., k]` in one dispatch. The results are joined along the last axis.

    `weights` are one to three packed weights of one format. If `norm` `[k]` is given, `x` is normalized first.
    """
    if not 1 <= len(weights) <= 3:
        raise ValueError("[quantized_linears] expected 1 to 3 weights, got %d" % len(weights))
    layout = layout_of("quantized_linears", group_size, bits, mode)
    parts = [part for weight in weights for part in parts_of(weight)]
    parts += [None] * (9 - len(parts))
    return call(f.quantized_linears, stream, x, *parts, *layout, norm, eps, int8)


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

    `x` is `[..., k]`. If `norm` `[k]` is given, `x` is normalized first. The result is `[..., n]`.
    """
    layout = layout_of("quantized_swiglu", group_size, bits, mode)
    return call(f.quantized_swiglu, stream, x, *parts_of(gate), *parts_of(up), *layout, norm, eps, int8)


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
    """The rows `ids` `[...]` of a packed weight `[n, k]`, dequantized: `[..., k]`."""
    layout = layout_of("quantized_embedding", group_size, bits, mode)
    return call(f.quantized_embedding, stream, ids, w, scales, biases, *layout)


def quantize(
    w: mx.array, group_size: int = 64, bits: int = 4, *, stream: Stream = None
) -> tuple[mx.array, mx.array, mx.array]:
    """The codes, scales and biases of a weight, equal bit for bit to `mx.quantize` with the mode "affine"."""
    return call(f.quantize, stream, w, group_size, bits)


def dequantize(
    w: mx.array, scales: mx.array, biases: mx.array, group_size: int = 64, bits: int = 4, *, stream: Stream = None
) -> mx.array:
    """The values of a packed weight, equal bit for bit to `mx.dequantize` on the CPU."""
    return call(f.dequantize, stream, w, scales, biases, group_size, bits)
