"""`python -m mlx_primitives MODULE ...` runs a module of mlx-lm, such as `generate`, on the ops of this package.

With `--report` before the module, the command prints at its end which functions ran on which ops.
"""

import os
import sys

from .patching import patch, report

_LARGE_PAGES = "glibc.malloc.hugetlb=1"


def _use_large_pages() -> None:
    """On Linux, restarts this process with large pages for its memory, unless GLIBC_TUNABLES names hugetlb.

    A CPU reads weights in small pages at two thirds of the speed that it has with large pages. Linux's C library reads
    GLIBC_TUNABLES only when a process starts, and the C libraries of other systems do not know this variable.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if not sys.platform.startswith("linux") or "hugetlb" in tunables:
        return
    os.environ["GLIBC_TUNABLES"] = ":".join(filter(None, [tunables, _LARGE_PAGES]))
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def main() -> None:
    """Runs the command."""
    tell = "--report" in sys.argv[1:2]
    if tell:
        del sys.argv[1]
    try:
        from mlx_lm import cli
    except ImportError as error:
        sys.exit("python -m mlx_primitives runs the modules of mlx-lm (pip install mlx-lm): %s" % error)
    patch()
    try:
        cli.main()
    finally:
        if tell:
            print(report(), file=sys.stderr)


if __name__ == "__main__":
    _use_large_pages()
    main()
