"""The library refuses an MLX, a Python or an object that it does not fit, with one sentence and without a crash."""

import ctypes
import gc
import inspect
import pathlib
import re
import shutil
import subprocess
import sys

import mlx.core as mx
import pytest

import mlx_primitives
from mlx_primitives import _library, ops


def test_versions_are_known():
    assert mlx_primitives.mlx_version == mx.__version__.split(".dev")[0]
    assert mlx_primitives.cpu_threads() >= 1
    assert mlx_primitives.__version__.count(".") == 2


def test_an_unsupported_mlx_is_refused(tmp_path):
    for version in ("0_32_3", "0_32_10", "0_32_4"):
        (tmp_path / ("libmlx_primitives_%s.so" % version)).touch()
    with pytest.raises(ImportError) as refused:
        _library._choose(tmp_path, "0.31.0")
    assert str(refused.value) == "mlx_primitives is for MLX 0.32.3 or 0.32.4 or 0.32.10, and this is MLX 0.31.0"
    assert _library._choose(tmp_path, "0.32.4.dev20261014+abc").endswith("libmlx_primitives_0_32_4.so")


def test_a_file_that_is_no_library_is_refused(tmp_path):
    file = tmp_path / "libmlx_primitives_0_32_4.so"
    file.write_bytes(b"nothing")
    with pytest.raises(ImportError, match="cannot be loaded with this MLX"):
        _library._load(str(file))


def test_functions_that_mlx_lacks_do_not_matter_until_they_are_called(tmp_path):
    if shutil.which("g++") is None:
        pytest.skip("there is no compiler")
    source, file = tmp_path / "lazy.cpp", tmp_path / "lazy.so"
    source.write_text('extern "C" { int absent(); int asks() { return absent(); } int seven() { return 7; } }')
    subprocess.run(["g++", "-shared", "-fPIC", "-Wl,-z,lazy", "-o", file, source], check=True)
    assert _library._load(str(file)).seven() == 7


def begin(array_type, probe, size):
    _library._begin(_library.library, array_type, probe, size)


def test_another_layout_is_refused():
    probe = mx.zeros((3, 5, 7), mx.float16)
    begin(mx.array, probe, mx.array.__basicsize__)
    with pytest.raises(ImportError, match="too few to hold an array"):
        begin(mx.array, probe, 24)
    with pytest.raises(ImportError, match="does not hold its array at"):
        begin(bytes, probe, mx.array.__basicsize__)
    with pytest.raises(ImportError, match="where nanobind says"):
        begin(mx.array, mx.zeros((3, 5, 8), mx.float16), mx.array.__basicsize__)
    with pytest.raises(ImportError, match="has the type float32 here"):
        begin(mx.array, mx.zeros((3, 5, 7)), mx.array.__basicsize__)


@pytest.mark.parametrize("word", [0, 1, 8, 0xDEAD0000BEEF, (1 << 64) - 8])
def test_a_pointer_to_nowhere_is_refused(word):
    # Where nanobind stores an offset, a bytes object stores its length, 40. The offset 40 lies
    # within the object.
    probe = word.to_bytes(8, "little") * 5
    with pytest.raises(ImportError, match="where nanobind says"):
        begin(bytes, probe, object.__basicsize__ + 16 + len(probe))


def test_a_panic_becomes_an_error():
    function = _library.library.mlx_primitives_panic
    function.restype = ctypes.c_char_p
    assert isinstance(_library.failure("panic", function()), RuntimeError)


def test_functions_take_all_arguments_and_no_other():
    for name, function in _library.functions.items():
        with pytest.raises(TypeError, match=r"\[%s\] expected \d+ arguments, got 0" % name):
            function()
        with pytest.raises(TypeError):
            function(x=1)


def test_functions_keep_no_object():
    x, weight = mx.ones((2, 8)), mx.ones((8,))

    def count():
        gc.collect()
        return [sys.getrefcount(it) for it in (x, weight, None, mx.array, TypeError)]

    before = count()
    for _ in range(100):
        ops.rms_norm_residual(x, x, weight, 1e-5)
        ops.softmax(x)
        with pytest.raises(TypeError):
            _library.functions["softmax"](None)
    assert all(after - earlier < 50 for earlier, after in zip(before, count()))


@pytest.mark.parametrize("page", ["README.md", "../docs/from-python.md"])
def test_the_programs_of_the_documentation_run(page):
    text = (pathlib.Path(__file__).parent.parent / page).read_text()
    programs = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert programs
    for program in programs:
        exec(program, {})


def test_each_function_of_the_table_has_an_op():
    names = set(_library.functions) - {"share", "llama_block"}
    public = {name for name, it in vars(ops).items() if inspect.isfunction(it) and not name.startswith("_")}
    assert names <= public, names - public


@pytest.mark.parametrize("wrong", [None, 1, 1.0, "x", object(), [1.0], mx])
def test_an_argument_that_is_no_array_is_a_type_error(wrong):
    with pytest.raises(TypeError, match=r"\[softmax\] expected x to be an mx.array"):
        ops.softmax(wrong)


def test_wrong_numbers_are_refused():
    x = mx.ones((2, 8))
    with pytest.raises(TypeError, match=r"\[rms_norm\]"):
        ops.rms_norm(x, None, "1e-5")
    with pytest.raises(TypeError, match=r"\[rms_norm\] expected weight"):
        ops.rms_norm(x, 1.0, 1e-5)
    with pytest.raises(ValueError, match=r"\[rms_norm\] "):
        ops.rms_norm(x, mx.ones((7,)), 1e-5)
    with pytest.raises(ValueError, match=r"\[rope\] expected dims to be an int of 32 bits"):
        ops.rope(x[None], 1 << 40, traditional=False, base=1e4, scale=1.0, offset=0)
    with pytest.raises(ValueError, match=r"\[rms_norm\] "):
        ops.rms_norm(mx.array(1.0), None, 1e-5)


def test_an_array_that_was_never_made_is_refused():
    empty = mx.array.__new__(mx.array)
    with pytest.raises(TypeError, match="expected x to be an mx.array"):
        ops.softmax(empty)
