"""Finds out which array a Python object holds.

`a[0] = 1` and `a += 1` give the object `a` another array, so the same object may hold a different array later. An
alias of `a` keeps the first array alive. While the alias lives, no other array has the address of the first array.
"""

from __future__ import annotations

import ctypes

import mlx.core as mx

_word = ctypes.c_size_t.from_address
# The offset of the array follows Python's header. The library refuses versions of MLX whose objects
# have no such offset.
_offset = ctypes.c_int32.from_address(id(mx.array(0)) + object.__basicsize__).value


def alias(a: mx.array) -> mx.array:
    """Returns another object with the same array."""
    return a[...]


def place(a: mx.array) -> int:
    """Returns the address of the array that an object holds."""
    return _word(id(a) + _offset).value
