import importlib
import importlib.util
import os
import shutil
import subprocess
import sys
import types

DEVICE = os.environ.get("MLX_PRIMITIVES_TEST_DEVICE", "cpu")  # or gpu, for the tests of ops and of patches
if DEVICE == "gpu":  # our kernels for all ops, and MLX's products in float32
    os.environ.update(MLX_PRIMITIVES_TUNE="off", MLX_ENABLE_TF32="0")

import mlx.core as mx  # noqa: E402
import pytest  # noqa: E402

import mlx_primitives  # noqa: E402
from mlx_primitives.patching import _core, _layers, _patch  # noqa: E402

mx.set_default_device(getattr(mx, DEVICE))
mx.disable_compile()  # MLX's layers are compiled functions, for which its CPU backend runs a C++ compiler


@pytest.fixture(autouse=True)
def nvidia(monkeypatch):
    """Returns a function that sets whether `patch` sees an NVIDIA GPU. By default it sees none, and replaces all."""

    def answer(it):
        for module in (_core, _layers, _patch):
            monkeypatch.setattr(module, "on_nvidia", lambda: it)

    answer(False)
    return answer


@pytest.fixture
def compiling():
    if shutil.which("g++") is None:
        pytest.skip("MLX compiles functions for a CPU by g++, which is not on the PATH")
    mx.enable_compile()
    yield
    mx.disable_compile()


@pytest.fixture
def python():
    """Runs a program in another process, and returns its exit code, its output and its errors."""

    def run(program, **variables):
        head = "import mlx.core as mx\nmx.set_default_device(mx.%s)\n" % DEVICE
        done = subprocess.run(
            [sys.executable, "-c", head + program],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables},
        )
        return done.returncode, done.stdout, done.stderr

    return run


def counts(name):
    (found,) = [it for it in mlx_primitives.report() if it.name.endswith("." + name)]
    return found.served, sum(found.reasons.values())


@pytest.fixture
def models(monkeypatch):
    """Imports a module of mlx_lm.models without the other parts of mlx-lm and without the packages that they need."""
    spec = importlib.util.find_spec("mlx_lm")
    if spec is None:
        pytest.skip("mlx-lm is not installed")
    for name in ("", ".tuner"):
        package = types.ModuleType("mlx_lm" + name)
        package.__path__ = [path + name.replace(".", "/") for path in spec.submodule_search_locations]
        monkeypatch.setitem(sys.modules, "mlx_lm" + name, package)
    yield lambda name, package="models": importlib.import_module("mlx_lm.%s.%s" % (package, name))
    for name in [name for name in sys.modules if name.startswith("mlx_lm.")]:
        del sys.modules[name]
