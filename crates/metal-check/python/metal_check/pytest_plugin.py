"""Checks the kernels that a project's tests launch: `pytest --metal-check`, or `metal_check = true` in pytest's settings."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator

import pytest

_KEY = pytest.StashKey[Any]()


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("metal-check")
    group.addoption("--metal-check", action="store_true", help="run kernels of mx.fast.metal_kernel under metal-check")
    parser.addini("metal_check", "run kernels of mx.fast.metal_kernel under metal-check", type="bool", default=False)
    parser.addini("metal_check_gpu", "answer as on a Mac whether there is a GPU", type="bool", default=False)
    parser.addini("metal_check_order", "the order of threads: all, forward, reversed or shuffled", default="all")


def pytest_configure(config: pytest.Config) -> None:
    # The watch starts before test modules are imported, since the import often creates the kernels.
    if config.getoption("--metal-check") or config.getini("metal_check"):
        from ._watch import watch

        stack = contextlib.ExitStack()
        watched = stack.enter_context(watch(config.getini("metal_check_order"), config.getini("metal_check_gpu")))
        config.stash[_KEY] = watched
        config.add_cleanup(stack.close)


@pytest.fixture
def metal_check(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A `Watch` of the kernels that the test makes and launches. If the whole run is checked, this is the `Watch` of the run."""
    watched = request.config.stash.get(_KEY, None)
    if watched is not None:
        yield watched
        return
    from ._watch import watch

    with watch(request.config.getini("metal_check_order"), request.config.getini("metal_check_gpu")) as watched:
        yield watched


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fails a test even if the test caught the error of a kernel."""
    watched = item.config.stash.get(_KEY, None)
    before = len(watched.faults) if watched is not None else 0
    yield
    if watched is not None and len(watched.faults) > before:
        pytest.fail(str(watched.faults[before]), pytrace=False)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    watched = config.stash.get(_KEY, None)
    if watched is not None:
        if watched.notes:
            terminalreporter.section("notes of metal-check")
        for text in watched.notes:
            terminalreporter.write_line(text)
        launches, kernels = sum(watched.launches.values()), len(watched.launches)
        notes = f", {len(watched.notes)} with new notes" if watched.notes else ""
        terminalreporter.write_line(
            f"metal-check: {launches} launches of {kernels} kernels, {len(watched.faults)} with faults{notes}"
        )
