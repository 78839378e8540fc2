"""Calls a function once a module has been imported."""

from __future__ import annotations

import importlib.util
import sys
from typing import Callable


class _Finder:
    """Finds a module as other finders do. After the module has run, calls its function in `then`."""

    def __init__(self) -> None:
        self.then: dict[str, Callable[[str], None]] = {}

    def find_spec(self, name, path=None, target=None):
        then = self.then.pop(name, None)
        if then is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        run = spec.loader.exec_module

        def exec_module(module):
            run(module)
            then(name)

        spec.loader.exec_module = exec_module
        return spec


_finder = _Finder()


def after_import(name: str, then: Callable[[str], None]) -> None:
    """Calls `then(name)` when the module is imported for the first time."""
    _finder.then[name] = then
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)
