"""Tests patched layers in threads, after a fork and at the end of the process, and tests the command."""

import sys

BEGIN = """
import mlx.nn as nn
import mlx_primitives
model = nn.Sequential(nn.Linear(64, 64), nn.RMSNorm(64), nn.SiLU(), nn.Linear(64, 64))
nn.quantize(model, 64, 4)
x = mx.random.normal((4, 64))
want = model.layers[1](x) + 0
mx.eval(model.parameters(), x, want)
mlx_primitives.patch()
"""


def test_threads_run_patched_layers_while_others_patch(python):
    program = """
import threading
def run():
    with mx.stream(mx.new_stream(mx.cpu)):
        for _ in range(100):
            mx.eval(model(x))
            assert mx.allclose(model.layers[1](x), want, atol=1e-4)
threads = [threading.Thread(target=run) for _ in range(3)]
for it in threads: it.start()
for _ in range(20):
    mlx_primitives.unpatch()
    mlx_primitives.patch()
for it in threads: it.join()
mlx_primitives.unpatch()
print("done", flush=True)
# MLX aborts at the end of some processes whose threads have just ended, even without this package.
import os
os._exit(0)
"""
    code, out, said = python(BEGIN + program)
    assert (code, out, said) == (0, "done\n", "")


def test_the_child_of_a_fork_gets_an_error(python):
    program = """
import os
mx.eval(model(x))
if os.fork() == 0:
    try:
        mx.eval(model(x))
    except RuntimeError as error:
        os._exit(7 if "fork" in str(error) else 1)
    os._exit(2)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    code, out, said = python(BEGIN + program)
    assert (code, out) == (0, "7\n"), said


def test_the_process_ends_with_work_outstanding(python):
    code, out, said = python(BEGIN + "y = [model(x + i) for i in range(500)]\nmx.async_eval(y)\nprint('end')\n")
    assert (code, out, said) == (0, "end\n", "")


def test_an_exception_inside_a_model_leaves_the_patch_usable(python):
    program = """
for wrong in (mx.ones((4, 63)), mx.ones((4, 64), mx.int32), None, "x"):
    try:
        mx.eval(model(wrong))
    except (TypeError, ValueError, AttributeError) as error:
        print(type(error).__name__)
assert mx.allclose(model.layers[1](x), want, atol=1e-4)
"""
    code, out, said = python(BEGIN + program)
    assert code == 0 and out.split() and set(out.split()) <= {"TypeError", "ValueError", "AttributeError"}, said


def test_the_command_runs_the_module_of_mlx_lm(tmp_path, python):
    package = tmp_path / "mlx_lm"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "cli.py").write_text(
        "import os, sys, mlx_primitives\n"
        "def main():\n"
        "    print(sys.argv[1:], mlx_primitives.is_patched(), os.environ.get('GLIBC_TUNABLES'))\n"
    )
    command = "[sys.executable, '-m', 'mlx_primitives', '--report', 'generate', '--model', 'm']"
    program = "import subprocess, sys, os\nos.environ['PYTHONPATH'] = %r + os.pathsep + os.environ['PYTHONPATH']\n"
    run = "done = subprocess.run(%s, capture_output=True, text=True)\nprint(done.stdout, done.stderr)\n" % command
    code, out, said = python(program % str(tmp_path) + run)
    first, *others = out.splitlines()
    pages = "glibc.malloc.hugetlb=1" if sys.platform == "linux" else "None"
    assert first == "['generate', '--model', 'm'] True " + pages, (out, said)
    assert any(line.split() == ["mlx.core.eval", "0", "ours"] for line in map(str.strip, others)), out
