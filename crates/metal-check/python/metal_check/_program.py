"""The command `metal-check` of this package."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sysconfig
from typing import Any, Sequence


class NotChecked(RuntimeError):
    """A kernel that could not be checked: it does not compile, or uses what the check does not know."""


class KernelFault(RuntimeError):
    """A fault of a kernel. The text is the report; `report` is the command's JSON."""

    def __init__(self, report: dict[str, Any]) -> None:
        super().__init__(report["text"])
        self.report = report


def program() -> str:
    """The path of the command that was installed with this package, or the one on the PATH."""
    # With --user and --target, pip installs commands into folders other than the interpreter's.
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
    """The report of the command, from its JSON."""
    done = subprocess.run([program(), *arguments, "--json"], capture_output=True, text=True)
    if done.returncode not in (0, 1) or not done.stdout:
        raise NotChecked((done.stderr or done.stdout).strip())
    return json.loads(done.stdout)
