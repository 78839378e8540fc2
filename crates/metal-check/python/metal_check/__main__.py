"""Runs the command `metal-check` for `python -m metal_check`."""

import os
import sys

from ._program import program

os.execv(program(), ["metal-check", *sys.argv[1:]])
