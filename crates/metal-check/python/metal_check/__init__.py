"""Runs Metal kernels on Linux and reports races, accesses outside of buffers and reads of memory that was never written.

    with metal_check.watch():
        loss = model_with_kernels(x)    # kernels of mx.fast.metal_kernel; a fault is an error
"""

from typing import TYPE_CHECKING, Any

from ._program import KernelFault, NotChecked, program

if TYPE_CHECKING:
    from ._watch import Watch, watch

__all__ = ["KernelFault", "NotChecked", "Watch", "program", "watch"]


def __getattr__(name: str) -> Any:
    """Imports `Watch` and `watch` at their first use. They need MLX, and the command does not."""
    if name in ("Watch", "watch"):
        from . import _watch

        return getattr(_watch, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
