"""Replacements of methods and functions of `mlx.nn`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Callable

import mlx.core as mx
from mlx.nn.losses import _reduce

from ..ops._common import _MODES, f
from ._hook import MANY_ROWS, REFUSED, has_many_rows, on_nvidia

if TYPE_CHECKING:
    from ._hook import Hook

_INTEGERS = (mx.int32, mx.uint32, mx.int64, mx.uint64, mx.int16, mx.uint16, mx.int8, mx.uint8)


def quantized_linear(hook: Hook) -> Callable:
    native, few = f.quantized_linear, on_nvidia()

    def __call__(self, x):
        if few and has_many_rows(x):
            return hook.pass_on(MANY_ROWS, self, x)
        get = self.get
        try:
            mode, bias = _MODES[self.mode], get("bias")
            packed = (self["weight"], self["scales"], get("biases"), self.group_size, self.bits, mode)
            y = native(x, *packed, bias, None, None, 0.0, False)
        except REFUSED as why:
            return hook.pass_on(why, self, x)
        hook.served += 1
        return y

    return __call__


def quantized_as_linear(hook: Hook) -> Callable:
    native, few = f.quantized_linear, on_nvidia()

    def as_linear(self, x):
        if few and has_many_rows(x):
            return hook.pass_on(MANY_ROWS, self, x)
        try:
            packed = (self["weight"], self["scales"], self.get("biases"), self.group_size, self.bits)
            y = native(x, *packed, _MODES[self.mode], None, None, None, 0.0, False)
        except REFUSED as why:
            return hook.pass_on(why, self, x)
        hook.served += 1
        return y

    return as_linear


def quantized_embedding(hook: Hook) -> Callable:
    native = f.quantized_embedding

    def __call__(self, x):
        try:
            packed = (self["weight"], self["scales"], self.get("biases"), self.group_size, self.bits)
            y = native(x, *packed, _MODES[self.mode])
        except REFUSED as why:
            return hook.pass_on(why, self, x)
        hook.served += 1
        return y

    return __call__


def linear(hook: Hook) -> Callable:
    def __call__(self, x):
        try:
            y = f.linear(x, self["weight"], self.get("bias"), 0, None)
        except REFUSED as why:
            return hook.pass_on(why, self, x)
        hook.served += 1
        return y

    return __call__


def as_linear(hook: Hook) -> Callable:
    def as_linear(self, x):
        try:
            y = f.linear(x, self["weight"], None, 0, None)
        except REFUSED as why:
            return hook.pass_on(why, self, x)
        hook.served += 1
        return y

    return as_linear


def activation(op: str) -> Callable:
    """Makes the replacement of a function of one array, such as `mlx.nn.silu`."""
    native = getattr(f, op)

    def make(hook: Hook) -> Callable:
        def activated(x):
            try:
                y = native(x)
            except REFUSED as why:
                return hook.pass_on(why, x)
            hook.served += 1
            return y

        activated.__name__ = activated.__qualname__ = op
        return activated

    return make


def activation_layer(op: str) -> Callable:
    """Makes the replacement of a layer's method that calls a function of one array."""
    native = getattr(f, op)

    def make(hook: Hook) -> Callable:
        def __call__(self, x):
            try:
                y = native(x)
            except REFUSED as why:
                return hook.pass_on(why, self, x)
            hook.served += 1
            return y

        return __call__

    return make


def cross_entropy(hook: Hook) -> Callable:
    def cross_entropy(logits, targets, weights=None, axis=-1, label_smoothing=0.0, reduction="none"):
        try:
            if weights is not None:
                raise ValueError("weights of targets")
            if axis != -1 and axis != logits.ndim - 1:
                raise ValueError("classes that are not the last axis")
            if targets.dtype not in _INTEGERS or targets.shape != logits.shape[:-1]:
                raise ValueError("targets that are not indices of classes")
            loss = f.cross_entropy(logits, targets, label_smoothing, None)
        except (*REFUSED, AttributeError) as why:
            return hook.pass_on(why, logits, targets, weights, axis, label_smoothing, reduction)
        hook.served += 1
        return _reduce(loss, reduction)

    return cross_entropy
