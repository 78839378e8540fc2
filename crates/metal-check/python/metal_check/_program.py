"""Finds and runs the command `metal-check` of this package."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from typing import Any, Sequence


class NotChecked(RuntimeError):
    """A kernel could not be checked, for example because it does not compile or because the command is missing."""


class KernelFault(RuntimeError):
    """A kernel has a fault. The message is the report as text, and `report` is the command's JSON."""

    def __init__(self, report: dict[str, Any]) -> None:
        super().__init__(report["text"])
        self.report = report


def program() -> str:
    """Returns the path of the command that was installed with this package, or else of the command on the PATH."""
    # With --user or --target, pip does not install commands into the interpreter's folder.
    beside = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "bin")
    for folder in (sysconfig.get_path("scripts"), sysconfig.get_path("scripts", "posix_user"), beside):
        path = os.path.join(folder, "metal-check")
        if os.access(path, os.X_OK):
            return path
    found = shutil.which("metal-check")
    if found is None:
        raise NotChecked("the command metal-check is missing: pip install metal-check")
    return found


def run(arguments: Sequence[str]) -> dict[str, Any]:
    """Runs the command and returns its report, parsed from JSON."""
    done = subprocess.run([program(), *arguments, "--json"], capture_output=True, text=True)
    if done.returncode not in (0, 1) or not done.stdout:
        raise NotChecked((done.stderr or done.stdout).strip())
    return json.loads(done.stdout)
