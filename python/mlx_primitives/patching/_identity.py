"""Which array a Python object holds.

`a[0] = 1` and `a += 1` give the object `a` another array, so an object that was seen before proves nothing. An alias
of it keeps the array that it had, and the address of that array is then of no other.
"""

from __future__ import annotations

import ctypes

import mlx.core as mx

_word = ctypes.c_size_t.from_address
# Python's header is followed by the offset of the array. The library has refused versions of MLX
# whose objects have none.
_offset = ctypes.c_int32.from_address(id(mx.array(0)) + object.__basicsize__).value


def alias(a: mx.array) -> mx.array:
    """Another object with the same array."""
    return a[...]


def place(a: mx.array) -> int:
    """The address of the array that an object holds."""
    return _word(id(a) + _offset).value
