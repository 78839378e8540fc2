"""Compares transforms of this package's ops with the same transforms of MLX's ops."""

import mlx.core as mx
import pytest

from mlx_primitives import ops

mx.random.seed(0)
X = mx.random.normal((3, 5, 64))
W = mx.random.normal((64,))
mx.eval(X, W)

# Functions of X: (ours, MLX's).
PAIRS = {
    "rms_norm": (lambda x: ops.rms_norm(x, W, 1e-5), lambda x: mx.fast.rms_norm(x, W, 1e-5)),
    "softmax": (ops.softmax, lambda x: mx.softmax(x, axis=-1, precise=True)),
    "rope": tuple(
        lambda x, f=f: f(x, 64, traditional=False, base=1e4, scale=1.0, offset=3) for f in (ops.rope, mx.fast.rope)
    ),
    "attention": tuple(
        lambda x, f=f: f(x[None], x[None], x[None], scale=0.125, mask="causal")
        for f in (ops.attention, mx.fast.scaled_dot_product_attention)
    ),
}


def close(ours, theirs, bound=2e-5):
    """The bound is relative to the largest number, and allows for sums of 64 float32 terms in another order."""
    for a, b in zip(ours, theirs):
        assert a.shape == b.shape and a.dtype == b.dtype
        assert mx.abs(a - b).max().item() <= bound * max(1.0, mx.abs(b).max().item())


@pytest.mark.parametrize("name", PAIRS)
def test_transforms(name, compiling):
    ours, theirs = PAIRS[name]
    weight = mx.cos(mx.arange(64, dtype=mx.float32))

    def loss(f):
        return lambda x: (f(x) * weight).sum()

    def results(f, compiled):
        (value,), (slope,) = mx.vjp(f, [X], [mx.ones_like(f(X)) * weight])
        _, (tangent,) = mx.jvp(f, [X], [mx.sin(X)])
        return [
            f(X),
            mx.grad(loss(f))(X),
            mx.grad(lambda x: (mx.grad(loss(f))(x) ** 2).sum())(X),
            value,
            slope,
            tangent,
            compiled(f)(X),
            compiled(mx.grad(loss(f)))(X),
            compiled(f, shapeless=True)(X),
            mx.checkpoint(f)(X),
        ]

    # MLX's rope for NVIDIA GPUs is wrong for a cotangent that was broadcast (docs/upstream, section 12).
    with mx.stream(mx.cpu if name == "rope" else mx.default_device()):
        want = results(theirs, lambda f, shapeless=False: f)
        mx.eval(want)
    close(results(ours, mx.compile), want, 2e-4)


@pytest.mark.parametrize("name", ["rms_norm", "softmax", "rope"])
def test_vmap(name):
    ours, theirs = PAIRS[name]
    batch = mx.stack([X, X * 0.5], axis=1)
    close([mx.vmap(ours, in_axes=1)(batch)], [mx.vmap(theirs, in_axes=1)(batch)])


def test_a_compiled_function_runs_again_with_other_values(compiling):
    f = mx.compile(lambda x, w: ops.rms_norm(ops.softmax(x), w, 1e-5))
    for scale in (1.0, 2.0, 3.0):
        x = X * scale
        close([f(x, W)], [mx.fast.rms_norm(mx.softmax(x, axis=-1, precise=True), W, 1e-5)])
