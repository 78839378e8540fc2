import os
import shutil
import subprocess
import sys

import mlx.core as mx
import pytest

mx.set_default_device(mx.cpu)
mx.disable_compile()  # MLX's layers are compiled functions, for which its CPU backend runs a C++ compiler


@pytest.fixture
def compiling():
    if shutil.which("g++") is None:
        pytest.skip("MLX compiles functions for a CPU by g++, which is not on the PATH")
    mx.enable_compile()
    yield
    mx.disable_compile()


@pytest.fixture
def python():
    """Runs a program in another process, and returns its exit code and what it wrote."""

    def run(program, **variables):
        head = "import mlx.core as mx\nmx.set_default_device(mx.cpu)\n"
        done = subprocess.run(
            [sys.executable, "-c", head + program],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables},
        )
        return done.returncode, done.stdout, done.stderr

    return run
