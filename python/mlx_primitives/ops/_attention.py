"""Rotary embedding and attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import mlx.core as mx

from .._library import QUERY_POSITIONS, call
from ._common import f, mask_of, parts_of

if TYPE_CHECKING:
    from ._common import Packed, Stream

_array = mx.array


def rope(
    a: mx.array,
    dims: int,
    *,
    traditional: bool,
    base: float | None,
    scale: float,
    offset: int | mx.array,
    freqs: mx.array | None = None,
    stream: Stream = None,
) -> mx.array:
    """Rotates pairs of the first `dims` features at position t by the angle `(t + offset) * scale / freq`.

    `a` is `[batch, ..., time, features]`. A pair consists of features i and i + dims / 2, or of features 2i and 2i + 1
    if `traditional`. `freq` is `base**(2i / dims)`, or `freqs[i]` if `freqs` `[dims / 2]` is given. `offset` is an
    int, an array of one int, or an array of one int per batch entry.
    """
    if type(offset) is _array:
        return call(f.rope, stream, a, dims, traditional, base, scale, 0, offset, freqs)
    return call(f.rope, stream, a, dims, traditional, base, scale, offset, None, freqs)


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

    `q` is `[batch, heads, queries, d]`, `k` is `[batch, kv_heads, keys, d]` and `v` is `[batch, kv_heads, keys, e]`. d
    and e are at most 256, and strides are arbitrary. `scale` is `1 / sqrt(d)` by default. `mask` is "causal", or an
    array of bools or floats that broadcasts to `[batch, heads, queries, keys]`. `sinks` is `[heads]`. With a `window`
    a query sees only this number of keys, up to its own position. With `soft_cap` a score becomes
    `cap * tanh(score / cap)`.
    """
    causal, mask = mask_of("attention", mask)
    return call(f.attention, stream, q, k, v, scale, causal, window, mask, soft_cap, sinks)


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
    """`attention` over keys and values that `mx.quantize` has quantized. They are dequantized in registers only.

    `k` and `v` consist of codes, scales and biases, each `[batch, kv_heads, keys, ...]`. `bits` is 4 or 8, and
    `group_size` is 32, 64 or 128.
    """
    causal, mask = mask_of("attention_quantized", mask)
    rules = (scale, causal, window, mask, soft_cap, sinks)
    return call(f.attention_quantized, stream, q, *parts_of(k), *parts_of(v), bits, group_size, *rules)


class KvLayout(NamedTuple):
    """The layout of a layer's state, an array `[batch, rows, head_dim]`.

    The first rows hold the queries of a step. Then come the keys of each key head for `capacity` positions, then the
    values in the same order.
    """

    heads: int
    kv_heads: int
    head_dim: int
    capacity: int

    @property
    def rows(self) -> int:
        """The number of rows of a state."""
        return self.heads * QUERY_POSITIONS + 2 * self.kv_heads * self.capacity

    def zeros(self, batch: int, dtype: mx.Dtype) -> mx.array:
        """An empty state."""
        return mx.zeros((batch, self.rows, self.head_dim), dtype)

    def queries(self, state: mx.array, time: int) -> mx.array:
        """The rotated queries of the last step of `time` positions, `[batch, heads, time, head_dim]`."""
        if not 0 <= time <= QUERY_POSITIONS:
            raise ValueError("[queries] expected at most %d positions, got %d" % (QUERY_POSITIONS, time))
        return state[:, : self.heads * time].reshape(state.shape[0], self.heads, time, self.head_dim)

    def keys(self, state: mx.array, len: int) -> mx.array:
        """A view of the keys of the first `len` positions, `[batch, kv_heads, len, head_dim]`."""
        return self._stored(state, 0, len)

    def values(self, state: mx.array, len: int) -> mx.array:
        """A view of the values of the first `len` positions, `[batch, kv_heads, len, head_dim]`."""
        return self._stored(state, 1, len)

    def _stored(self, state: mx.array, part: int, len: int) -> mx.array:
        if not 0 <= len <= self.capacity:
            raise ValueError("[kv_layout] expected at most %d positions, got %d" % (self.capacity, len))
        count = self.kv_heads * self.capacity
        start = self.heads * QUERY_POSITIONS + part * count
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
        base,
        scale,
        multiplier,
        0 if each else offset,
        offset if each else None,
        freqs,
        None if by_array else slot,
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
    """Rotates the queries and keys of a step, and writes queries, keys and values into a layer's state.

    `state` is `[batch, layout.rows, head_dim]`, and `qkv` is `[batch, time, (heads + 2 * kv_heads) * head_dim]`. The
    step begins at position `offset`. Its keys and values go to the slots from `slot` on, by default `offset`. The
    result reuses the memory of `state` if nothing else refers to it.
    """
    rotation = _append(layout, dims, traditional, base, scale, offset, freqs, multiplier, slot)
    return call(f.rope_append, stream, state, qkv, *rotation)


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
    """`rope_append`, and the attention of the step over the first `len` positions, as one node of the graph.

    The results are the new state and the attention, `[batch, time, heads * head_dim]`. A step has at most 8 positions.
    """
    rotation = _append(layout, dims, traditional, base, scale, offset, freqs, multiplier, slot)
    causal, mask = mask_of("rope_append_attention", mask)
    rules = (len, score_scale, causal, window, mask, soft_cap, sinks)
    return call(f.rope_append_attention, stream, state, qkv, *rotation, *rules)
