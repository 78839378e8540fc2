"""`python -m mlx_primitives MODULE ...` runs a module of mlx-lm, such as `generate`, on the ops of this package."""

import sys

from .patching import patch, report


def main() -> None:
    try:
        from mlx_lm import cli
    except ImportError as error:
        sys.exit("python -m mlx_primitives runs the modules of mlx-lm (pip install mlx-lm): %s" % error)
    tell = "--report" in sys.argv[1:2]
    if tell:
        del sys.argv[1]
    patch()
    try:
        cli.main()
    finally:
        if tell:
            print(report(), file=sys.stderr)


if __name__ == "__main__":
    main()
