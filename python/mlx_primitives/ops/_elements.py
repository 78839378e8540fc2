"""Reductions and activations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlx.core as mx

from .._library import call
from ._common import f, require_last

if TYPE_CHECKING:
    from ._common import Stream


def _all(op: str, x: mx.array, axis: int | None) -> bool:
    if axis is not None:
        require_last(op, x, axis)
    return axis is None


def sum(x: mx.array, axis: int | None = None, keepdims: bool = False, *, stream: Stream = None) -> mx.array:
    """The sum over the last axis, or over all axes."""
    return call(f.sum, stream, x, _all("sum", x, axis), keepdims)


def mean(x: mx.array, axis: int | None = None, keepdims: bool = False, *, stream: Stream = None) -> mx.array:
    """The arithmetic mean over the last axis, or over all axes."""
    return call(f.mean, stream, x, _all("mean", x, axis), keepdims)


def max(x: mx.array, axis: int | None = None, keepdims: bool = False, *, stream: Stream = None) -> mx.array:
    """The largest element over the last axis, or over all axes. It is NaN if any element is NaN."""
    return call(f.max, stream, x, _all("max", x, axis), keepdims)


def norm(x: mx.array, axis: int | None = None, keepdims: bool = False, *, stream: Stream = None) -> mx.array:
    """The Euclidean norm over the last axis, or over all axes."""
    return call(f.norm, stream, x, _all("norm", x, axis), keepdims)


def sum_of_squares(
    x: mx.array, axis: int | None = None, keepdims: bool = False, *, stream: Stream = None
) -> mx.array:
    """The sum of the squares over the last axis, or over all axes."""
    return call(f.sum_of_squares, stream, x, _all("sum_of_squares", x, axis), keepdims)


# Activations. Each step is rounded as in `mlx.nn`.


def relu(x: mx.array, *, stream: Stream = None) -> mx.array:
    """`max(x, 0)`. The result for NaN is NaN."""
    return call(f.relu, stream, x)


def silu(x: mx.array, *, stream: Stream = None) -> mx.array:
    """`x * sigmoid(x)`."""
    return call(f.silu, stream, x)


def gelu(x: mx.array, *, stream: Stream = None) -> mx.array:
    """`x * (1 + erf(x / sqrt(2))) / 2`."""
    return call(f.gelu, stream, x)


def gelu_tanh(x: mx.array, *, stream: Stream = None) -> mx.array:
    """`gelu` approximated with tanh, like `mlx.nn.gelu_approx`."""
    return call(f.gelu_tanh, stream, x)


def swiglu(gate: mx.array, up: mx.array, *, stream: Stream = None) -> mx.array:
    """`silu(gate) * up`; the shapes broadcast."""
    return call(f.swiglu, stream, gate, up)


def geglu(gate: mx.array, up: mx.array, *, stream: Stream = None) -> mx.array:
    """`gelu(gate) * up`; the shapes broadcast."""
    return call(f.geglu, stream, gate, up)


def geglu_tanh(gate: mx.array, up: mx.array, *, stream: Stream = None) -> mx.array:
    """`gelu_tanh(gate) * up`; the shapes broadcast."""
    return call(f.geglu_tanh, stream, gate, up)


def add_relu(a: mx.array, b: mx.array, *, stream: Stream = None) -> mx.array:
    """`max(a + b, 0)`; the shapes broadcast."""
    return call(f.add_relu, stream, a, b)


def mul_relu(a: mx.array, b: mx.array, *, stream: Stream = None) -> mx.array:
    """`max(a * b, 0)`; the shapes broadcast."""
    return call(f.mul_relu, stream, a, b)


def affine(x: mx.array, scale: mx.array, shift: mx.array, *, stream: Stream = None) -> mx.array:
    """`x * scale + shift`. `scale` and `shift` are scalars, or have the length of the last axis."""
    return call(f.affine, stream, x, scale, shift)
