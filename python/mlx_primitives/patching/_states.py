"""Stores the keys and values of a layer as a state of `rope_append_attention`, inside a `KVCache` of mlx-lm.

A step of the model writes into the state. Code that reads the cache's keys or values gets views of the state.
"""

from __future__ import annotations

import threading
from typing import Any, NamedTuple

import mlx.core as mx

from ..ops._attention import QUERY_POSITIONS, KvLayout

_HELD = "_mlx_primitives_state"
_STEP = 256  # positions by which a state grows, as a cache of mlx-lm does
_lock = threading.RLock()  # another thread may look at a cache between and during steps


class Held(NamedTuple):
    """A state and its layout."""

    state: mx.array
    layout: KvLayout


class _Attribute(property):
    """A property for the keys or the values of a cache that may hold a state."""


def _release(names: dict[str, Any]) -> None:
    """Gives a cache its keys and values back, as views of its state.

    The cache keeps the state until it has the views, so an interruption loses nothing.
    """
    held = names.get(_HELD)
    if held is not None:
        state, layout = held
        names["keys"], names["values"] = layout.keys(state, layout.capacity), layout.values(state, layout.capacity)
        names.pop(_HELD, None)


def _attribute(name: str) -> property:
    def get(cache: Any) -> Any:
        names = vars(cache)
        with _lock:
            _release(names)
            if name not in names:
                raise AttributeError(name)
            return names[name]

    def set(cache: Any, value: Any) -> None:
        names = vars(cache)
        with _lock:
            _release(names)
            names[name] = value

    return _Attribute(get, set)


def install(kind: Any) -> bool:
    """Lets the caches of a class hold a state. `unpatch` does not undo this, since such caches may live on.

    Returns False for a class whose keys or values are not plain attributes of its objects.
    """
    found = [getattr(kind, name, None) for name in ("keys", "values")]
    if found == [None, None]:
        kind.keys, kind.values = _attribute("keys"), _attribute("values")
        return True
    return all(type(it) is _Attribute for it in found)


def state_of(cache: Any, heads: int, kv_heads: int, head_dim: int, shape: tuple[int, int], dtype: mx.Dtype) -> Held:
    """Returns a state of the cache with room for a step of `shape` `[batch, time]`. Does not change the cache."""
    names, (batch, time) = vars(cache), shape
    held, offset = names.get(_HELD), cache.offset
    end = offset + time
    if held is None:
        keys, values = names["keys"], names["values"]
    else:
        state, layout = held
        if layout[:3] != (heads, kv_heads, head_dim) or state.shape[0] != batch or state.dtype != dtype:
            raise ValueError("a cache of another shape or type")
        if end <= layout.capacity:
            return held
        keys, values = layout.keys(state, offset), layout.values(state, offset)
    layout = KvLayout(heads, kv_heads, head_dim, -(-end // _STEP) * _STEP)
    if keys is None:
        if offset != 0:
            raise ValueError("a cache without its keys")
        return Held(layout.zeros(batch, dtype), layout)
    rows = [mx.zeros((batch, heads * QUERY_POSITIONS, head_dim), dtype)]
    for part in (keys, values):
        if part.shape[:2] != (batch, kv_heads) or part.shape[3] != head_dim or part.dtype != dtype:
            raise ValueError("a cache of another shape or type")
        room = mx.zeros((batch, kv_heads, layout.capacity - offset, head_dim), dtype)
        whole = mx.concatenate([part[:, :, :offset], room], 2)
        rows.append(whole.reshape(batch, kv_heads * layout.capacity, head_dim))
    return Held(mx.concatenate(rows, 1), layout)


def keep(cache: Any, state: mx.array, layout: KvLayout, time: int) -> None:
    """Gives a cache the state after a step. The cache then drops the keys and values that it had."""
    names = vars(cache)
    with _lock:
        names[_HELD] = Held(state, layout)
        names["keys"] = names["values"] = None
    cache.offset += time
