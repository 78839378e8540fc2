"""Runs kernels without a GPU, for tests."""

from __future__ import annotations

import ctypes
from typing import Any, Callable

import mlx.core as mx

from ._library import failure, library

_Body = ctypes.CFUNCTYPE(None)
_simulate = library.mlx_primitives_simulate
_simulate.restype = ctypes.c_char_p
_simulate.argtypes = [ctypes.c_uint64, _Body]
ORDERS = ("forward", "reversed", "shuffled")


def can_simulate() -> bool:
    """Whether this library has a simulator. Only a library for Linux has one."""
    return library.mlx_primitives_simulates() >= 0


def simulate(function: Callable[[], Any], order: str = "forward") -> Any:
    """Returns the evaluated result of a function, whose kernels run in a simulator on the CPU.

    The simulator checks every load and store, in kernels of `kernel` and of `ops`. It raises RuntimeError for a fault,
    such as an access outside a buffer, a race between threads, or a read of memory that was not written. `order` is
    the order of the threads: "forward", "reversed" or "shuffled".

    The simulator compiles kernels with clang 17 or later, or with the clang that `pip install ziglang` installs.
    METAL_SIM_CLANG names a clang++, a zig, or the folder into which pip installed ziglang.
    """
    if order not in ORDERS:
        raise ValueError("[simulate] expected %s, got %r" % (" or ".join(ORDERS), order))
    results: list = []
    raised: list = []

    def body() -> None:
        try:
            result = function()
            mx.eval(result)
            results.append(result)
        except BaseException as error:  # of the caller, not of ctypes
            raised.append(error)

    with mx.stream(mx.cpu):
        error = _simulate(ORDERS.index(order), _Body(body))
    if raised:
        raise raised[0]
    if error is not None:
        raise failure("simulate", error)
    return results[0]
