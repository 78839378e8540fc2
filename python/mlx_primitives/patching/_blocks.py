"""Computes a block of a Llama (attention and MLP) in one call, for few tokens.

The kernels of the block's products also compute its normalizations and additions. One product computes queries, keys
and values together. On a CPU, all results equal the results of separate ops bit for bit; a GPU adds some sums in
another order.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Callable

import mlx.core as mx
import mlx.nn as nn

from ..ops._common import _MODES, f
from . import _states
from ._hook import FEW_ROWS, REFUSED

if TYPE_CHECKING:
    from ._hook import Hook

_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_MLP = ("gate_proj", "up_proj", "down_proj")

_last: tuple[int, mx.array | None] = (0, None)


def _position(offset: int) -> mx.array:
    """Returns a position as an array, which all blocks share for a token."""
    global _last
    number, array = _last
    if array is None or number != offset:
        array = mx.array(offset)
        _last = offset, array
    return array


def _packed(layer: Any, names: tuple[str, ...]) -> tuple[list, tuple[int, int, int]]:
    """Returns the arrays of quantized layers without a bias, and the format that they share."""
    arrays: list = []
    layouts = set()
    for name in names:
        part = layer[name]
        if type(part) is not nn.QuantizedLinear or "bias" in part:
            raise ValueError("a block with other layers than packed ones without a bias")
        arrays += (part["weight"], part["scales"], part.get("biases"))
        layouts.add((part.group_size, part.bits, _MODES[part.mode]))
    if len(layouts) > 1:
        raise ValueError("a block whose weights have several formats")
    return arrays, layouts.pop()


def _norm(layer: Any) -> tuple[mx.array, float]:
    if type(layer) is not nn.RMSNorm:
        raise ValueError("a block with another normalization")
    return layer["weight"], layer.eps


def _rotation(rope: Any, scaled: Any) -> tuple[int, bool, float | None, float, mx.array | None]:
    if type(rope) is nn.RoPE:
        return rope.dims, rope.traditional, rope.base, rope.scale, None
    if type(rope) is scaled:
        return rope.dims, rope.traditional, None, 1.0, rope["_freqs"]
    raise ValueError("a block with another rotation")


def llama(hook: Hook) -> Callable:
    """Makes the replacement of `TransformerBlock.__call__` of `mlx_lm.models.llama`."""
    module: Any = sys.modules["mlx_lm.models.llama"]
    try:
        attention, mlp, cache_class = module.Attention, module.MLP, module.KVCache
        scaled = sys.modules["mlx_lm.models.rope_utils"].Llama3RoPE
        dot_product, swiglu = module.scaled_dot_product_attention, module.swiglu
    except (AttributeError, KeyError):
        return hook.original  # an mlx-lm that is written in another way
    linear, norm, rope = nn.QuantizedLinear, nn.RMSNorm, nn.RoPE
    calls = [layer.__call__ for layer in (attention, mlp, linear, norm, rope, scaled)]
    of_attention, of_mlp, of_linear, of_norm, of_rope, of_scaled = calls
    update = cache_class.update_and_fetch
    usable = _states.install(cache_class)

    def is_known() -> bool:
        """Whether no other code has replaced the functions whose work the block does itself."""
        return (
            attention.__call__ is of_attention
            and mlp.__call__ is of_mlp
            and linear.__call__ is of_linear
            and norm.__call__ is of_norm
            and rope.__call__ is of_rope
            and scaled.__call__ is of_scaled
            and cache_class.update_and_fetch is update
            and module.scaled_dot_product_attention is dot_product
            and module.swiglu is swiglu
        )

    def __call__(self, x, mask=None, cache=None):
        batch, time, _ = x.shape
        if batch * time > FEW_ROWS:
            return hook.original(self, x, mask, cache)
        try:
            attend, feed = self["self_attn"], self["mlp"]
            if type(attend) is not attention or type(feed) is not mlp:
                raise ValueError("a block with layers of other classes")
            if type(cache) is not cache_class or not usable:
                raise ValueError("a cache of another class")
            if not is_known():
                raise ValueError("a block that another program has changed")
            causal = type(mask) is str and mask == "causal"
            first, layout = _packed(attend, _ATTENTION)
            last, other = _packed(feed, _MLP)
            if layout != other:
                raise ValueError("a block whose weights have several formats")
            heads = (attend.n_heads, attend.n_kv_heads, attend.head_dim)
            held = _states.state_of(cache, *heads, (batch, time), x.dtype)
            state, y = f.llama_block(
                x,
                held.state,
                *_norm(self["input_layernorm"]),
                *first,
                *_norm(self["post_attention_layernorm"]),
                *last,
                *layout,
                *held.layout,
                *_rotation(attend.rope, scaled),
                _position(cache.offset),
                cache.offset + time,
                attend.scale,
                causal,
                None if causal else mask,
            )
        except REFUSED as why:
            return hook.pass_on(why, self, x, mask, cache)
        except KeyError as name:
            return hook.pass_on("a block or a cache without %s" % name, self, x, mask, cache)
        _states.keep(cache, state, held.layout, time)
        hook.served += 1
        return y

    return __call__
