"""Tests threads, streams, failures, forks and the end of the process."""

import gc
import queue
import sys
import threading

import mlx.core as mx
import pytest

from mlx_primitives import ops

IMPORT = "from mlx_primitives import ops\n"
BEGIN = IMPORT + "x = mx.ones((512, 2048))\n"


def test_ops_go_to_the_stream_of_their_caller():
    x = mx.random.normal((4, 64))
    default = mx.default_stream(mx.cpu)
    want = mx.softmax(x, axis=-1, precise=True)
    own = mx.new_stream(mx.cpu)
    with mx.stream(own):
        inside = ops.softmax(x)
        assert mx.default_stream(mx.cpu) == own
    named = ops.softmax(x, stream=own)
    device = ops.softmax(x, stream=mx.cpu)
    assert mx.default_stream(mx.cpu) == default
    for y in (inside, named, device, ops.softmax(x)):
        assert mx.allclose(y, want)
    with pytest.raises(Exception):
        ops.softmax(x, stream="cpu")


def test_an_op_leaves_a_threads_streams_alone():
    said = queue.Queue()

    def work():
        own = mx.new_stream(mx.cpu)
        mx.set_default_stream(own)
        x = mx.ones((4, 64))
        y = ops.softmax(x)
        mx.eval(y)
        said.put(mx.default_stream(mx.cpu) == own)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert said.get()


def test_threads_build_and_evaluate_at_once():
    want = mx.softmax(mx.arange(64, dtype=mx.float32), precise=True).tolist()
    failed = []

    def work():
        for _ in range(50):
            y = ops.softmax(mx.arange(64, dtype=mx.float32))
            mx.eval(y)
            if not mx.allclose(y, mx.array(want)).item():
                failed.append(y)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_arrays_are_freed_on_another_thread():
    x = mx.random.normal((256, 256))
    made = queue.Queue()

    def free():
        while made.get() is not None:
            gc.collect(0)

    thread = threading.Thread(target=free)
    thread.start()
    for i in range(200):
        y = ops.rms_norm(x, None, 1e-5)
        if i % 3 == 0:
            mx.async_eval(y)
        made.put(y)
        del y
    made.put(None)
    thread.join()


def test_a_refused_op_leaves_all_usable():
    x = mx.ones((2, 8))
    for _ in range(100):
        with pytest.raises(ValueError):
            ops.rms_norm(x, mx.ones((3,)), 1e-5)
        assert ops.rms_norm(x, None, 0.0).tolist() == x.tolist()


def test_memory_is_given_back():
    x = mx.ones((256, 1024))
    mx.eval(x)

    def step():
        mx.eval(ops.softmax(x), *ops.rms_norm_residual(x, x, None, 1e-5))

    step()
    before = mx.get_active_memory()
    for _ in range(50):
        step()
    assert mx.get_active_memory() <= before


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_lack_of_memory_is_an_error_and_leaves_all_usable(python):
    program = """
import resource
mx.eval(ops.softmax(x))
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 30),) * 2)
for _ in range(3):
    try:
        mx.eval(ops.softmax(mx.broadcast_to(x[0], (1 << 20, 2048))))
    except (RuntimeError, MemoryError) as error:
        print("refused")
    assert abs(mx.sum(ops.softmax(x)).item() - 512) < 0.1
"""
    code, out, said = python(BEGIN + program)
    assert (code, out.split()) == (0, ["refused"] * 3), said


@pytest.mark.parametrize("waits", [True, False])
def test_the_process_ends_with_work_left(python, waits):
    program = BEGIN + "y = x\nfor _ in range(200): y = ops.softmax(y)\nmx.async_eval(y)\n"
    code, _, said = python(program + ("mx.eval(y)\nprint(1)" if waits else ""))
    assert code == 0, said


def test_an_op_while_modules_are_taken_down(python):
    program = """
import sys
class Late:
    def __init__(self):
        self.softmax, self.rms_norm, self.eval = ops.softmax, ops.rms_norm, mx.eval
    def __del__(self):
        for _ in range(100):
            try:
                self.eval(self.softmax(x), self.rms_norm(x, None, 1e-5))
                self.softmax(None)
            except (TypeError, AttributeError, NameError):
                pass
ops.softmax(x)
sys.late = Late()
sys.modules["late"] = Late()
"""
    code, _, said = python(BEGIN + program)
    assert code == 0, said


def test_a_daemon_thread_evaluates_while_the_process_ends(python):
    program = """
import threading, time
def work():
    while True:
        mx.eval(ops.softmax(x))
threading.Thread(target=work, daemon=True).start()
time.sleep(0.2)
"""
    code, _, said = python(BEGIN + program)
    assert code == 0, said


@pytest.mark.skipif(sys.platform != "linux", reason="a Mac's GPU does not survive a fork")
def test_an_op_in_the_child_of_a_fork_is_an_error(python):
    program = """
import os, sys
y = ops.softmax(x)
mx.eval(y)
sys.stdout.flush()
if os.fork() == 0:
    try:
        ops.softmax(x)
    except RuntimeError as error:
        assert "[fork]" in str(error), error
        assert y[0, 0].dtype == mx.float32
        print("refused", flush=True)
    os._exit(0)
assert os.wait()[1] == 0
mx.eval(ops.softmax(x))
print("parent")
"""
    code, out, said = python(BEGIN + program)
    assert (code, out.split()) == (0, ["refused", "parent"]), said


@pytest.mark.skipif(sys.platform != "linux", reason="a Mac's GPU does not survive a fork")
@pytest.mark.parametrize("before, after", [(IMPORT, ""), ("", IMPORT)], ids=["imported before", "imported after"])
def test_a_fork_before_the_first_op_leaves_both_free(python, before, after):
    program = """
import os
%s
child = os.fork()
%s
y = %s(mx.ones((2, 4)), axis=-1)
mx.eval(y)
assert y.tolist() == [[0.25] * 4] * 2
if child == 0:
    os._exit(0)
assert os.wait()[1] == 0
"""
    code, _, said = python(program % (before, after, "ops.softmax"))
    if code != 0 and mx.is_available(mx.gpu):  # MLX for CUDA, which does not compute in a child once it has an array
        alone = python(program % ("mx.array(0)" if before else "", "", "mx.softmax"))
        if alone[0] != 0:
            pytest.skip("MLX alone does not either: " + alone[2])
    assert code == 0, said


def test_the_package_may_come_after_mlx_has_computed(python):
    program = "mx.eval(mx.ones((4, 4)) @ mx.ones((4, 4)))\n" + BEGIN + "print(mx.sum(ops.softmax(x)).item())"
    code, out, said = python(program)
    assert code == 0 and abs(float(out) - 512) < 0.1, said
