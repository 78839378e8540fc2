"""Replacements of functions of `mlx.core` and `mlx.core.fast`, with their arguments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

import mlx.core as mx

from .._library import call
from ..ops._common import f, layout_of
from ._hook import MANY_ROWS, REFUSED, has_many_rows, on_nvidia

if TYPE_CHECKING:
    from ._hook import Hook

_array = mx.array


def rms_norm(hook: Hook) -> Callable:
    def rms_norm(x, weight, eps, *, stream=None):
        try:
            y = call(f.rms_norm, stream, x, weight, eps)
        except REFUSED as why:
            return hook.pass_on(why, x, weight, eps, stream=stream)
        hook.served += 1
        return y

    return rms_norm


def layer_norm(hook: Hook) -> Callable:
    def layer_norm(x, weight, bias, eps, *, stream=None):
        try:
            y = call(f.layer_norm, stream, x, weight, bias, eps)
        except REFUSED as why:
            return hook.pass_on(why, x, weight, bias, eps, stream=stream)
        hook.served += 1
        return y

    return layer_norm


def rope(hook: Hook) -> Callable:
    def rope(a, dims, *, traditional, base, scale, offset, freqs=None, stream=None):
        first, each = (0, offset) if type(offset) is _array else (offset, None)
        try:
            y = call(f.rope, stream, a, dims, traditional, base, scale, first, each, freqs)
        except REFUSED as why:
            options = {"base": base, "scale": scale, "offset": offset, "freqs": freqs, "stream": stream}
            return hook.pass_on(why, a, dims, traditional=traditional, **options)
        hook.served += 1
        return y

    return rope


def attention(hook: Hook) -> Callable:
    def scaled_dot_product_attention(q, k, v, *, scale, mask=None, sinks=None, stream=None, **options):
        causal = type(mask) is str and mask == "causal"
        try:
            array = None if causal else mask
            y = call(f.attention, stream, q, k, v, scale, causal, None, array, None, sinks)
        except REFUSED as why:
            return hook.pass_on(why, q, k, v, scale=scale, mask=mask, sinks=sinks, stream=stream, **options)
        hook.served += 1
        return y

    return scaled_dot_product_attention


def quantized_matmul(hook: Hook) -> Callable:
    few = on_nvidia()

    def quantized_matmul(
        x, w, /, scales, biases=None, transpose=True, group_size=None, bits=None, mode="affine", *, stream=None
    ):
        try:
            if not transpose:
                raise ValueError("weights that are packed along their columns")
            if few and has_many_rows(x):
                raise ValueError(MANY_ROWS)
            layout = layout_of("quantized_matmul", group_size, bits, mode)
            steps = (None, None, None, 0.0, False)
            y = call(f.quantized_linear, stream, x, w, scales, biases, *layout, *steps)
        except REFUSED as why:
            options = {"group_size": group_size, "bits": bits, "mode": mode, "stream": stream}
            return hook.pass_on(why, x, w, scales, biases, transpose, **options)
        hook.served += 1
        return y

    return quantized_matmul


def evaluation(ours: Callable) -> Callable:
    """Makes the replacement of `mx.eval` or `mx.async_eval`, which calls `ours`."""

    def make(hook: Hook) -> Callable:
        def evaluate(*trees):
            hook.served += 1
            ours(*trees)

        evaluate.__name__ = evaluate.__qualname__ = ours.__name__
        return evaluate

    return make
