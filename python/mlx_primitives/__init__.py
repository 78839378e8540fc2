"""Lazy ops of mlx-primitives on `mx.array`, which `mx.grad`, `mx.vmap` and `mx.compile` can transform.

    import mlx.core as mx
    from mlx_primitives import ops

    y = ops.rms_norm(x, weight, 1e-5)
"""

from . import ops
from ._evaluate import async_eval, eval
from ._library import cpu_kernels, cpu_threads, gpu_kernels, mlx_version, set_cpu_threads
from ._library import version as __version__
from ._simulate import simulate
from ._conformance import conformance
from ._kernel import kernel
from .patching import is_patched, patch, patched, report, unpatch

__all__ = [
    "async_eval",
    "conformance",
    "cpu_kernels",
    "cpu_threads",
    "eval",
    "gpu_kernels",
    "is_patched",
    "kernel",
    "mlx_version",
    "ops",
    "patch",
    "patched",
    "report",
    "set_cpu_threads",
    "simulate",
    "unpatch",
]
