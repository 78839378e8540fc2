"""Tests `mlx_primitives.eval` and `async_eval` against MLX's functions."""

import threading
import time

import mlx.core as mx
import pytest
from conftest import DEVICE

import mlx_primitives
from mlx_primitives import ops

X = mx.arange(512, dtype=mx.float32).reshape(8, 64)


def graph(x, depth=20):
    for i in range(depth):
        x = ops.rms_norm(ops.swiglu(x, x) + mx.sin(x)[:, ::-1] * i, None, 1e-5)
    return x


@pytest.mark.parametrize("run", [mlx_primitives.eval, mlx_primitives.async_eval])
def test_values_are_those_of_mlx(run):
    theirs, ours, both = graph(X), graph(X), [graph(X), {"a": (graph(X) + 1, []), "b": X}]
    mx.eval(theirs)
    run(ours)
    run(*both)
    run()
    assert mx.array_equal(ours, theirs) and mx.array_equal(both[0], theirs)
    assert mx.array_equal(both[1]["a"][0], theirs + 1)


def test_values_of_a_gradient_a_stream_and_mlx_together():
    def loss(x):
        return graph(x, 4).square().sum()

    want = mx.grad(loss)(X)
    mx.eval(want)
    value, slope = mx.value_and_grad(loss)(X)
    mlx_primitives.eval(value, slope)
    assert mx.array_equal(slope, want)
    with mx.stream(mx.new_stream(mx.cpu)):
        y = graph(X, 4)
    mixed = y + graph(X, 4)
    mlx_primitives.async_eval(y)
    mlx_primitives.eval(mixed)
    near = mx.allclose if DEVICE == "gpu" else mx.array_equal  # a GPU has other bits than a CPU's stream
    assert near(mixed, y * 2)


def test_what_is_no_array_does_not_count():
    y = graph(X)
    for tree in (1, "x", None, [y, object(), {"a": None}]):
        mx.eval(tree)
        mlx_primitives.eval(tree)


def test_it_takes_the_place_of_mlx(monkeypatch):
    want = graph(X)
    mx.eval(want)
    monkeypatch.setattr(mx, "eval", mlx_primitives.eval)
    monkeypatch.setattr(mx, "async_eval", mlx_primitives.async_eval)
    y = graph(X)
    mx.async_eval([y])
    mx.eval({"y": y})
    assert mx.array_equal(y, want)


def test_other_threads_run_while_one_waits():
    counted, over = [], threading.Event()

    def count():
        while not over.is_set():
            counted.append(time.perf_counter())
            time.sleep(0)

    thread = threading.Thread(target=count)
    thread.start()
    x = mx.random.normal((512, 512))
    mx.eval(x)
    while not counted:
        time.sleep(0)
    start = time.perf_counter()
    for _ in range(5):
        y = x
        for _ in range(20):
            y = ops.softmax(ops.matmul(y, x))
        mlx_primitives.eval(y)
    end = time.perf_counter()
    over.set()
    thread.join()
    assert sum(start < at < end for at in counted) > 5


PLAIN_FORK = """
mx.eval(mx.ones((2, 2)))
import os, signal
if os.fork() == 0:
    signal.alarm(20)  # MLX for CUDA may wait forever in a fork
    y = mx.ones((3,)) + 1
    os._exit(3)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_an_error_of_evaluation_is_raised(python):
    program = """
import mlx_primitives
from mlx_primitives import ops
x = mx.ones((2, 2))
mlx_primitives.eval(ops.softmax(x))
import os, signal
if os.fork() == 0:
    signal.alarm(20)  # MLX for CUDA may wait forever in a fork
    y = mx.ones((3,)) + 1
    try:
        mlx_primitives.eval(y)
    except RuntimeError as error:
        os._exit("[fork]" in str(error))
    os._exit(3)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    code, out, said = python(program)
    if mx.is_available(mx.gpu) and out.startswith("-"):  # a signal ended the child
        alone = python(PLAIN_FORK)
        if alone[1].startswith("-"):
            pytest.skip("MLX for CUDA alone does not live through a fork either: " + alone[2])
    assert (code, out) == (0, "1\n"), said
