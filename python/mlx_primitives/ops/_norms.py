"""Norms, softmax and losses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx

from .._library import call
from ._common import f, layout_of, mask_of, require_last

if TYPE_CHECKING:
    from ._common import Stream


def rms_norm(x: mx.array, weight: mx.array | None, eps: float, *, stream: Stream = None) -> mx.array:
    """`x / sqrt(mean(x**2) + eps) * weight` over the last axis.

    `x` is `[..., n]`, and `weight` is `[n]` or None. The result has the shape of `x`, and the type to which `x` and
    `weight` promote.
    """
    return call(f.rms_norm, stream, x, weight, eps)


def rms_norm_residual(
    x: mx.array, residual: mx.array, weight: mx.array | None, eps: float, *, stream: Stream = None
) -> tuple[mx.array, mx.array]:
    """`(h, rms_norm(h, weight, eps))` for `h = x + residual`, in one kernel.

    `x` and `residual` are `[..., n]` and have the same shape. The results equal the results of separate ops bit for
    bit.
    """
    return call(f.rms_norm_residual, stream, x, residual, weight, eps)


def layer_norm(
    x: mx.array, weight: mx.array | None, bias: mx.array | None, eps: float, *, stream: Stream = None
) -> mx.array:
    """`(x - mean(x)) / sqrt(var(x) + eps) * weight + bias` over the last axis.

    `x` is `[..., n]`, `weight` and `bias` are `[n]` or None. The variance is the sum of squared differences from the
    mean, divided by n.
    """
    return call(f.layer_norm, stream, x, weight, bias, eps)


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
    return call(f.layer_norm_residual, stream, x, residual, weight, bias, eps)


# Softmax and losses.


def softmax(x: mx.array, axis: int = -1, *, stream: Stream = None) -> mx.array:
    """`exp(x - max(x)) / sum(exp(x - max(x)))` over the last axis. The sum is computed in float32.

    The result has the shape and type of `x`. Integers become float32.
    """
    if axis != -1:
        require_last("softmax", x, axis)
    return call(f.softmax, stream, x)


def log_softmax(x: mx.array, axis: int = -1, *, stream: Stream = None) -> mx.array:
    """`x - logsumexp(x)` over the last axis. The result has the shape and type of `x`."""
    if axis != -1:
        require_last("log_softmax", x, axis)
    return call(f.log_softmax, stream, x)


def logsumexp(x: mx.array, axis: int = -1, keepdims: bool = False, *, stream: Stream = None) -> mx.array:
    """`log(sum(exp(x)))` over the last axis. The result is `[...]`, or `[..., 1]` with `keepdims`."""
    if axis != -1:
        require_last("logsumexp", x, axis)
    return call(f.logsumexp, stream, x, keepdims)


def masked_softmax(
    x: mx.array,
    *,
    scale: float = 1.0,
    mask: mx.array | str | None = None,
    window: int | None = None,
    stream: Stream = None,
) -> mx.array:
    """`softmax(scale * x + mask)` over the last axis of scores `[..., queries, keys]`.

    `mask` is "causal", or an array of bools or floats that broadcasts to `x`. With a `window` a query sees only this
    number of keys, up to its own position.
    """
    causal, mask = mask_of("masked_softmax", mask)
    return call(f.masked_softmax, stream, x, scale, mask, causal, window)


def cross_entropy(
    logits: mx.array,
    targets: mx.array,
    *,
    label_smoothing: float = 0.0,
    ignore_index: int | None = None,
    stream: Stream = None,
) -> mx.array:
    """`logsumexp(logits) - logits[target]` for each row, like `mlx.nn.losses.cross_entropy`.

    `logits` is `[..., classes]`, and `targets` is `[...]` with integers. The loss has the shape of the targets. Rows
    with the target `ignore_index` have a loss and a gradient of 0.
    """
    return call(f.cross_entropy, stream, logits, targets, label_smoothing, ignore_index)


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
    """`cross_entropy(x @ w.T + bias, targets)` without storing all logits.

    `x` is `[..., k]`. `w` is `[classes, k]`, or a packed weight if `scales` is given. `targets` is `[...]`. The op
    computes the logits of `chunk_rows` rows at a time, by default 2**24 logits at a time. Derivatives treat a packed
    weight as a constant.
    """
    layout = layout_of("linear_cross_entropy", group_size, bits, mode)
    steps = (bias, label_smoothing, ignore_index, chunk_rows)
    return call(f.linear_cross_entropy, stream, x, w, targets, scales, biases, *layout, *steps)
