import os

import pytest

CACHE = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
pytest_plugins = ["pytester"]

MODULE = """
import mlx.core as mx

made = mx.fast.metal_kernel(
    name="shifted", input_names=["x"], output_names=["y"],
    source="uint i = thread_position_in_grid.x; y[i] = x[i + OFFSET];",
)

def shifted(x, offset):
    size = dict(grid=(x.size, 1, 1), threadgroup=(64, 1, 1), template=[("OFFSET", offset)])
    return made(inputs=[x], output_shapes=[x.shape], output_dtypes=[x.dtype], **size)[0]
"""
TESTS = """
import mlx.core as mx
from shifted import shifted

def test_good():
    assert shifted(mx.arange(16), 0).tolist() == list(range(16))

def test_bad():
    shifted(mx.arange(16), 1)

def test_caught():
    try:
        shifted(mx.arange(16), 2)
    except RuntimeError:
        pass
"""


@pytest.fixture
def project(pytester, monkeypatch):
    pytester.makepyfile(shifted=MODULE, test_shifted=TESTS)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    # pytester sets a new home folder for each test, so the cache of compiled kernels needs a fixed
    # folder.
    monkeypatch.setenv("XDG_CACHE_HOME", CACHE)
    return pytester


@pytest.mark.parametrize("how", ["option", "setting"])
def test_kernels_of_a_project_are_checked(project, how):
    if how == "setting":
        project.makeini("[pytest]\nmetal_check = true\nmetal_check_order = forward")
    ran = project.runpytest_subprocess(*(["--metal-check"] if how == "option" else []))
    ran.assert_outcomes(passed=1, failed=2)
    ran.stdout.fnmatch_lines(["*OutOfBounds: load of 4 bytes at offset 64 of buffer*'x'*", "*8 | uint i = *y?i? = x?i + OFFSET?;"])
    ran.stdout.fnmatch_lines(["metal-check: 3 launches of 1 kernels, 2 with faults"])


def test_notes_are_in_the_summary(project):
    project.makepyfile(
        test_note="""
        def test_it():
            import mlx.core as mx
            made = mx.fast.metal_kernel(name="same", input_names=["x"], output_names=["y"], source="y[0] = 5;")
            size = dict(grid=(64, 1, 1), threadgroup=(64, 1, 1))
            made(inputs=[mx.ones((1,))], output_shapes=[(1,)], output_dtypes=[mx.float32], **size)
        """
    )
    ran = project.runpytest_subprocess("--metal-check", "test_note.py")
    ran.assert_outcomes(passed=1)
    ran.stdout.fnmatch_lines(["*notes of metal-check*", "note: *same.metal:*: DataRace: *a store of the same value*"])
    ran.stdout.fnmatch_lines(["metal-check: 1 launches of 1 kernels, 0 with faults, 1 with new notes"])


def test_a_fixture_checks_the_kernels_of_one_test(project):
    project.makepyfile(
        test_one="""
        def test_one(metal_check):
            import mlx.core as mx
            from shifted import shifted
            assert shifted(mx.arange(4), 0).tolist() == [0, 1, 2, 3]
            assert metal_check.launches == {"shifted": 1}
        """
    )
    ran = project.runpytest_subprocess("test_one.py")
    ran.assert_outcomes(passed=1)
    assert "metal-check:" not in ran.stdout.str()


def test_without_the_option_nothing_is_imported(pytester):
    pytester.makepyfile("import sys\ndef test_it(): assert 'mlx.core' not in sys.modules")
    pytester.runpytest_subprocess().assert_outcomes(passed=1)
