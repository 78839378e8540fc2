"""Replaces a function or method, and counts the calls that the replacement computes or passes on to MLX."""

from __future__ import annotations

from typing import Any, Callable

import mlx.core as mx

#: The errors that an op raises for a call that it does not support. RuntimeError may also be a
#: failure, which `pass_on` raises again.
REFUSED = (TypeError, ValueError, RuntimeError)
_MOST_REASONS = 16
#: The most rows that the kernels for few rows multiply with packed weights.
FEW_ROWS = 8
#: The reason that a report gives for products that MLX's op computes on an NVIDIA GPU.
MANY_ROWS = "more than %d rows, on an NVIDIA GPU" % FEW_ROWS


def on_nvidia() -> bool:
    """Whether MLX's default device is an NVIDIA GPU."""
    return mx.default_device().type == mx.gpu and not mx.metal.is_available()


def has_many_rows(x: Any) -> bool:
    """Whether `x` has too many rows for a kernel for few rows."""
    return type(x) is mx.array and x.size > FEW_ROWS * x.shape[-1]


class Hook:
    """One replaced function: the original, the number of calls that our ops computed, and why MLX computed others."""

    def __init__(self, name: str, original: Callable, of_class: bool = False) -> None:
        self.name = name
        self.of_class = of_class
        self.original = original
        self.replacement: Callable = original
        self.served = 0
        self.reasons: dict[str, int] = {}

    def pass_on(self, why: object, *args: Any, **kwargs: Any) -> Any:
        """Calls the original, so that callers get the errors of MLX. If our op failed, raises its error instead."""
        if type(why) is RuntimeError and "no kernels" not in str(why):
            raise why
        reason = str(why)
        if reason not in self.reasons and len(self.reasons) >= _MOST_REASONS:
            reason = "other reasons"
        self.reasons[reason] = self.reasons.get(reason, 0) + 1
        return self.original(*args, **kwargs)

    @property
    def passed_on(self) -> int:
        """The number of calls that the original computed."""
        return sum(self.reasons.values())

    def clear(self) -> None:
        """Forgets the counts."""
        self.served = 0
        self.reasons = {}
