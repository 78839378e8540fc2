"""Evaluates arrays as MLX does, but with less work between kernels."""

from __future__ import annotations

import ctypes
from typing import Any

import mlx.core as mx

from ._library import failure, library, path

_collect = library.mlx_primitives_collect
_collect.restype = ctypes.c_char_p
_collect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.POINTER(ctypes.c_void_p)]
# A second handle of the library, whose calls release Python's lock.
_evaluate = ctypes.CDLL(path, handle=library._handle).mlx_primitives_evaluate
_evaluate.restype = ctypes.c_char_p
_evaluate.argtypes = [ctypes.c_void_p, ctypes.c_bool]


def _arrays(tree: Any, into: list) -> None:
    """Collects the arrays of a tree of lists, tuples and dicts. Ignores other leaves, as `mx.eval` does."""
    if isinstance(tree, mx.array):
        into.append(tree)
    elif isinstance(tree, (list, tuple)):
        for item in tree:
            _arrays(item, into)
    elif isinstance(tree, dict):
        for item in tree.values():
            _arrays(item, into)


def _run(name: str, trees: tuple, later: bool) -> None:
    arrays: list = []
    _arrays(trees, arrays)
    collected = ctypes.c_void_p()
    objects = (ctypes.py_object * len(arrays))(*arrays)
    error = _collect(ctypes.addressof(objects), len(arrays), collected)
    if error is None:
        error = _evaluate(collected, later)
    if error is not None:
        raise failure(name, error)


def eval(*trees: Any) -> None:
    """Computes the arrays of trees as `mx.eval` does, and waits for them.

    On a CPU, the thread of the stream gets several ops of a small graph at a time, and this thread runs some of them
    instead of sleeping. A model then needs less time to decode a token.
    """
    _run("eval", trees, False)


def async_eval(*trees: Any) -> None:
    """Starts to compute arrays as `mx.async_eval` does. On a CPU, several ops of a small graph start at a time."""
    _run("async_eval", trees, True)
