"""Runs MLX's layers and mlx-lm's models on the ops of this package.

    import mlx_primitives

    mlx_primitives.patch()
    ...                               # mlx.nn and mlx_lm as always
    print(mlx_primitives.report())    # what ran on our kernels, and what did not, and why
    mlx_primitives.unpatch()

`with mlx_primitives.patched():` does this for a block.
"""

from ._patch import is_patched, patch, patched, report, unpatch
from ._report import ModuleReport, Report

__all__ = ["ModuleReport", "Report", "is_patched", "patch", "patched", "report", "unpatch"]
