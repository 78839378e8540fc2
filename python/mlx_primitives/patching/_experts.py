"""Products of mixtures of experts.

MLX gathers the weights of the experts inside one op. This module computes the indices first. Then each expert that
some token chose computes one product with its rows.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Callable

import mlx.core as mx

from ..ops._common import _MODES, f
from ._hook import REFUSED
from ._identity import alias, place

if TYPE_CHECKING:
    from ._hook import Hook

_Parts = tuple[Any, Any, Any, Any]  # a weight, scales, biases and a bias, of which the last three may be None


class _Experts:
    """The weights of a layer's experts, as views of the layer's arrays. Each view is made once."""

    def __init__(self, arrays: _Parts, places: list[int]) -> None:
        self.arrays = [None if a is None else alias(a) for a in arrays]
        self.places = places
        self.made: dict[int, _Parts] = {}

    def __getitem__(self, expert: int) -> _Parts:
        parts = self.made.get(expert)
        if parts is None:
            w, scales, biases, bias = [None if a is None else a[expert] for a in self.arrays]
            parts = self.made[expert] = (w, scales, biases, bias)
        return parts


_layers: dict[int, tuple[weakref.ref, _Experts]] = {}


def _experts_of(layer: Any) -> _Experts:
    get = layer.get
    arrays = (layer["weight"], get("scales"), get("biases"), get("bias"))
    places = [0 if a is None else place(a) for a in arrays]
    key = id(layer)
    found = _layers.get(key)
    if found is None or found[1].places != places:
        found = _layers[key] = (weakref.ref(layer, lambda _: _layers.pop(key, None)), _Experts(arrays, places))
    return found[1]


def forget() -> None:
    """Drops the views of all layers."""
    _layers.clear()


class _Routes:
    """Maps rows to experts, and results back to the order of the indices.

    A slot is one entry of the indices. A span is a range of successive slots with the same expert.
    """

    def __init__(self, indices: mx.array, ordered: bool, rows: int) -> None:
        try:
            each: Any = indices.reshape(-1).tolist()
        except Exception as why:  # mx.compile and mx.vmap do not know the values, or an earlier op failed
            raise ValueError("indices that cannot be computed here") from why
        self.slots = len(each)
        if rows == 0 or self.slots % rows:
            raise ValueError("rows that are not those of the indices")
        self.shape = indices.shape
        self.back: mx.array | None = None
        self.rows: mx.array | None = None
        repeats = self.slots // rows
        order: Any = range(self.slots)
        if not ordered and rows > 1:
            order = sorted(order, key=each.__getitem__)
            each = [each[slot] for slot in order]
            back = [0] * self.slots
            for to, slot in enumerate(order):
                back[slot] = to
            self.back = mx.array(back)
        self.single = rows == 1
        if not self.single and (repeats > 1 or self.back is not None):
            self.rows = mx.array([slot // repeats for slot in order])
        self.spans: list[tuple[int, int, int]] = []
        start = 0
        for slot in range(1, self.slots + 1):
            if slot == self.slots or each[slot] != each[start]:
                self.spans.append((each[start], start, slot))
                start = slot

    def lead(self, x: mx.array) -> mx.array:
        """Returns the row of each slot, `[slots, k]`, in the order of experts, or the row that all slots share."""
        x = x.reshape(-1, x.shape[-1])
        return x if self.rows is None else x[self.rows]

    def part(self, x: mx.array, start: int, end: int) -> mx.array:
        """The rows of a span."""
        if x.shape[0] == self.slots:
            return x if end - start == self.slots else x[start:end]
        return x if end - start == 1 else mx.broadcast_to(x, (end - start, x.shape[-1]))

    def bring_back(self, parts: list[mx.array], singles: bool) -> mx.array:
        """Joins the rows of all spans in the order of the indices: `[*indices, n]`, or `[*indices, 1, n]`."""
        y = parts[0] if len(parts) == 1 else mx.concatenate(parts)
        if self.back is not None:
            y = y[self.back]
        return y.reshape(*self.shape, 1, -1) if singles else y.reshape(*self.shape, -1)


def _format(layer: Any) -> tuple[int, int, int]:
    if layer.get("global_scale") is not None:
        raise ValueError("a scale of the whole weight")
    return layer.group_size, layer.bits, _MODES[layer.mode]


def _products(layer: Any, x: mx.array, routes: _Routes) -> list[mx.array]:
    """Returns the product of each span's rows with the weight of the span's expert."""
    experts, part = _experts_of(layer), routes.part
    if "scales" not in layer:
        return [
            f.linear(part(x, start, end), experts[e][0], experts[e][3], 0, None)
            for e, start, end in routes.spans
        ]
    layout = _format(layer)
    parts = []
    for e, start, end in routes.spans:
        w, scales, biases, bias = experts[e]
        steps = (bias, None, None, 0.0, False)
        parts.append(f.quantized_linear(part(x, start, end), w, scales, biases, *layout, *steps))
    return parts


def switch_linear(hook: Hook) -> Callable:
    """Makes the replacement of `SwitchLinear.__call__` and `QuantizedSwitchLinear.__call__`."""

    def __call__(self, x, indices, sorted_indices=False):
        try:
            if x.shape[-2] != 1:
                raise ValueError("several rows for one index")
            shape, each, ordered = x.shape[:-2], indices, sorted_indices
            if shape != indices.shape and shape != (*indices.shape[:-1], 1):
                shape = mx.broadcast_shapes(shape, indices.shape)
                each, ordered = mx.broadcast_to(indices, shape), False
                rows = mx.broadcast_to(x, (*shape, *x.shape[-2:]))
            else:
                rows = x
            routes = _Routes(each, ordered, rows.size // x.shape[-1])
            y = routes.bring_back(_products(self, routes.lead(rows), routes), True)
        except REFUSED as why:
            return hook.pass_on(why, self, x, indices, sorted_indices)
        hook.served += 1
        return y

    return __call__


def switch_glu(silu_layer: type, plain: type, quantized: type) -> Callable:
    """Makes the replacement of `SwitchGLU.__call__`, given the classes of its activation and its products."""

    def make(hook: Hook) -> Callable:
        def __call__(self, x, indices):
            gate, up, down = self.gate_proj, self.up_proj, self.down_proj
            try:
                if any(type(layer) is not quantized and type(layer) is not plain for layer in (gate, up, down)):
                    raise ValueError("products of another class")
                routes = _Routes(mx.stop_gradient(indices), False, x.size // x.shape[-1])
                rows = routes.lead(x)
                if _fuses(gate, up) and type(self.activation) is silu_layer:
                    hidden = _swiglu(gate, up, rows, routes)
                else:
                    gates, ups = _products(gate, rows, routes), _products(up, rows, routes)
                    hidden = [self.activation(u, g) for u, g in zip(ups, gates)]
                y = _down(down, hidden, routes)
            except REFUSED as why:
                return hook.pass_on(why, self, x, indices)
            hook.served += 1
            return y

        return __call__

    return make


def _fuses(gate: Any, up: Any) -> bool:
    """Whether both layers are quantized, in one format and without a bias."""
    if "scales" not in gate or "scales" not in up or "bias" in gate or "bias" in up:
        return False
    return _format(gate) == _format(up)


def _swiglu(gate: Any, up: Any, rows: mx.array, routes: _Routes) -> list[mx.array]:
    gates, ups, layout = _experts_of(gate), _experts_of(up), _format(gate)
    parts = []
    for e, start, end in routes.spans:
        x = routes.part(rows, start, end)
        parts.append(f.quantized_swiglu(x, *gates[e][:3], *ups[e][:3], *layout, None, 0.0, False))
    return parts


def _down(layer: Any, hidden: list[mx.array], routes: _Routes) -> mx.array:
    experts = _experts_of(layer)
    if "scales" not in layer:
        spans = zip(hidden, routes.spans)
        parts = [f.linear(x, experts[e][0], experts[e][3], 0, None) for x, (e, _, _) in spans]
        return routes.bring_back(parts, False)
    layout = _format(layer)
    parts = []
    for x, (e, _, _) in zip(hidden, routes.spans):
        w, scales, biases, bias = experts[e]
        parts.append(f.quantized_linear(x, w, scales, biases, *layout, bias, None, None, 0.0, False))
    return routes.bring_back(parts, False)
