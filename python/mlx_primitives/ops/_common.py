"""Helpers that all modules of ops use."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import mlx.core as mx

from .._library import functions

if TYPE_CHECKING:
    Stream = mx.Stream | mx.Device | None
    Packed = tuple[mx.array, mx.array] | tuple[mx.array, mx.array, mx.array | None]

f = SimpleNamespace(**functions)  # of the table
_MODES = {"affine": 0, "mxfp4": 1, "mxfp8": 2, "nvfp4": 3}
_LAYOUTS = {"affine": (64, 4), "mxfp4": (32, 4), "mxfp8": (32, 8), "nvfp4": (16, 4)}


def named(op: str, what: str, names: dict, name: object) -> int:
    try:
        return names[name]
    except (KeyError, TypeError):
        known = ", ".join(map(repr, names))
        raise ValueError("[%s] expected a %s among %s, got %r" % (op, what, known, name)) from None


def layout_of(op: str, group_size: int | None, bits: int | None, mode: str) -> tuple[int, int, int]:
    number = 0 if mode == "affine" else named(op, "mode", _MODES, mode)
    if group_size is None or bits is None:
        usual = _LAYOUTS[mode]
        group_size = usual[0] if group_size is None else group_size
        bits = usual[1] if bits is None else bits
    return group_size, bits, number


def parts_of(weight: Packed) -> tuple[mx.array, mx.array, mx.array | None]:
    return weight if len(weight) == 3 else (weight[0], weight[1], None)


def mask_of(op: str, mask: mx.array | str | None) -> tuple[bool, mx.array | None]:
    if not isinstance(mask, str):
        return False, mask
    if mask != "causal":
        raise ValueError('[%s] expected a mask, "causal" or None, got %r' % (op, mask))
    return True, None


def require_last(op: str, x: mx.array, axis: int) -> None:
    if axis != -1 and axis != x.ndim - 1:
        raise ValueError("[%s] expected the last axis, got %r" % (op, axis))
