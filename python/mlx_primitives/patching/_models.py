"""Replacements of functions and methods of `mlx_lm.models`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Callable

from ..ops._common import f
from . import _experts
from ._hook import REFUSED

if TYPE_CHECKING:
    from ._hook import Hook


def swiglu(hook: Hook) -> Callable:
    def swiglu(gate, x):
        try:
            y = f.swiglu(gate, x)
        except REFUSED as why:
            return hook.pass_on(why, gate, x)
        hook.served += 1
        return y

    return swiglu


def quantized_attention(hook: Hook) -> Callable:
    def quantized_scaled_dot_product_attention(queries, q_keys, q_values, scale, mask, group_size=64, bits=8):
        causal = type(mask) is str and mask == "causal"
        try:
            rules = (scale, causal, None, None if causal else mask, None, None)
            y = f.attention_quantized(queries, *q_keys, *q_values, bits, group_size, *rules)
        except REFUSED as why:
            return hook.pass_on(why, queries, q_keys, q_values, scale, mask, group_size, bits)
        hook.served += 1
        return y

    return quantized_scaled_dot_product_attention


def lora_linear(hook: Hook) -> Callable:
    def __call__(self, x):
        y = self.linear(x)
        try:
            z = f.matmul(f.matmul(self.dropout(x), self.lora_a), self.lora_b)
        except REFUSED as why:
            return hook.pass_on(why, self, x)
        hook.served += 1
        return y + (self.scale * z).astype(x.dtype)

    return __call__


def switch_glu(hook: Hook) -> Callable:
    layers = sys.modules["mlx_lm.models.switch_layers"]
    return _experts.switch_glu(layers.SwiGLU, layers.SwitchLinear, layers.QuantizedSwitchLinear)(hook)
