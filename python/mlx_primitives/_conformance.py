"""The checks of a user-written primitive, which `conformance` runs."""

from __future__ import annotations

import functools
from typing import Any, Callable

import mlx.core as mx

from ._library import gpu_kernels
from ._simulate import ORDERS, can_simulate, simulate
from ._kernel import Kernel, _all

# The largest allowed error, as a fraction of the largest value of the reference. It covers the
# rounding of sums of a few thousand products.
_NEAR = {mx.float32: 1e-5, mx.float16: 4e-3, mx.bfloat16: 3e-2}
# The largest allowed error of a derivative along the gradient's direction, as a fraction of the
# reference, which is a difference of values in float64.
_SLOPE = {mx.float32: 1e-3, mx.float16: 2e-2, mx.bfloat16: 1e-1}


class Report:
    """The results of the checks of a primitive, in the order in which they ran. As text they are a table."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: list[tuple[str, bool, str]] = []

    @property
    def passed(self) -> bool:
        return all(passed for _, passed, _ in self.rows)

    def __str__(self) -> str:
        width = max((len(check) for check, _, _ in self.rows), default=0)
        lines = [f"{check:<{width}}  {'ok' if passed else 'FAILED'}  {why}" for check, passed, why in self.rows]
        return "\n".join([f"{self.name}:", *(line.rstrip() for line in lines)])


def _floating(x: mx.array) -> bool:
    return mx.issubdtype(x.dtype, mx.floating)


def _largest(x: mx.array) -> float:
    return float(mx.max(mx.abs(x)).item()) if x.size else 0.0  # type: ignore[arg-type]  # not complex


def _far(got: mx.array, want: mx.array, tolerance: float | None) -> str:
    """Says how values differ from the reference. Returns an empty text if they agree."""
    if (got.shape, got.dtype) != (want.shape, want.dtype):
        return f"{got.dtype} {got.shape}, and the reference has {want.dtype} {want.shape}"
    if not _floating(got):
        return "" if mx.array_equal(got, want).item() else "other values"
    near = _NEAR.get(want.dtype, 1e-5) if tolerance is None else tolerance
    got, want = got.astype(mx.float32), want.astype(mx.float32)
    finite = mx.isfinite(want)
    same = mx.where(mx.isnan(want), mx.isnan(got), got == want)
    if not mx.all(finite | same).item():
        return "other NaNs or infinities"
    largest = _largest(mx.where(finite, want, 0.0))
    error = _largest(mx.where(finite, got - want, 0.0))
    # If the error is NaN, the comparison is false, and the check fails.
    return "" if error <= near * max(largest, 1e-30) else f"an error of {error:.2g}, where the largest is {largest:.2g}"


def _views(x: mx.array) -> list[mx.array]:
    """Arrays with the same values, in other layouts in memory."""
    if x.ndim == 0 or x.size == 0:
        return [x]
    spaced = mx.stack([x, mx.full(x.shape, 7, x.dtype)], -1)[..., 0]
    turned = mx.contiguous(mx.swapaxes(x, 0, -1))
    return [spaced, mx.swapaxes(turned, 0, -1), mx.contiguous(x[::-1])[::-1]]


def _special(x: mx.array) -> mx.array:
    """An array with values that kernels often handle wrongly: NaN, infinities, both zeros, large numbers."""
    values = [float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 3e4, -3e4]
    at = mx.arange(x.size)
    flat = x.reshape(-1)
    for i, value in enumerate(values):
        flat = mx.where(at % (len(values) + 4) == i, mx.array(value, x.dtype), flat)
    return flat.reshape(x.shape)


class _Checks:
    def __init__(self, op: Kernel, inputs: tuple, tolerance: float | None) -> None:
        self.op, self.inputs, self.tolerance = op, inputs, tolerance
        self.report = Report(op.name)
        self.on_gpu = not gpu_kernels.startswith("none") and mx.is_available(mx.gpu)
        if not self.on_gpu and not can_simulate():
            raise RuntimeError("[conformance] expected a GPU that has kernels, or the simulator, which needs Linux")

    def run(self, function: Callable, order: str = "forward") -> tuple:
        """Runs a function and its kernels on a GPU or in the simulator, and returns the evaluated results."""
        if not self.on_gpu:
            return _all(simulate(function, order))
        with mx.stream(mx.gpu):
            results = function()
            mx.eval(results)
        return _all(results)

    def reference(self, inputs: tuple) -> tuple:
        with mx.stream(mx.cpu):
            results = _all(self.op.cpu(*inputs))
            mx.eval(results)
        return results

    def check(self, name: str, why: Callable[[], str]) -> None:
        try:
            text = why()
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
        self.report.rows.append((name, not text, text))

    def all_near(self, got: tuple, want: tuple) -> str:
        if len(got) != len(want):
            return f"{len(got)} results, and the reference has {len(want)}"
        return next(filter(None, (_far(a, b, self.tolerance) for a, b in zip(got, want))), "")

    def all_equal(self, got: tuple, want: tuple) -> str:
        same = all(mx.array_equal(a, b, equal_nan=True).item() for a, b in zip(got, want))
        return "" if same else "other bits than with plain inputs"

    def values(self) -> None:
        op, inputs = self.op, self.inputs
        want = self.reference(inputs)
        plain: list[tuple] = []
        for order in ("on the GPU",) if self.on_gpu else ORDERS:

            def near(order: str = order) -> str:
                plain.append(self.run(lambda: op(*inputs), order))
                return self.all_near(plain[-1], want)

            self.check(f"values, {order}", near)
        if not plain:
            return
        for at, name in enumerate(op.inputs):
            for view, kind in zip(_views(inputs[at]), ("spaced", "transposed", "reversed")):
                viewed = (*inputs[:at], view, *inputs[at + 1 :])

                def same(viewed: tuple = viewed) -> str:
                    return self.all_equal(self.run(lambda: op(*viewed)), plain[0])

                self.check(f"{name} {kind} in memory", same)

        def special() -> str:
            hard = tuple(_special(x) if _floating(x) else x for x in inputs)
            return self.all_near(self.run(lambda: op(*hard)), self.reference(hard))

        self.check("NaN, infinities, large numbers", special)

        def mapped() -> str:
            twice = [mx.stack([x, x[::-1] if x.ndim else x]) for x in inputs]
            got = self.run(lambda: mx.vmap(op)(*twice))
            each = [self.reference(tuple(x[i] for x in twice)) for i in range(2)]
            return self.all_near(got, tuple(mx.stack(list(results)) for results in zip(*each)))

        self.check("vmap", mapped)

    def gradients(self) -> None:
        wanted = [at for at, x in enumerate(self.inputs) if _floating(x)]
        results = self.reference(self.inputs)
        if not wanted or not any(map(_floating, results)):
            return
        keys = iter(mx.random.split(mx.random.key(7), len(results)))
        weights = [mx.random.normal(y.shape, key=next(keys)) if _floating(y) else None for y in results]

        def weighed(results: Any, dtype: mx.Dtype) -> mx.array:
            parts = [
                (y.astype(dtype) * w.astype(dtype)).sum() for y, w in zip(_all(results), weights) if w is not None
            ]
            return mx.sum(mx.stack(parts))

        for at in wanted:
            self.check(f"gradient in {self.op.inputs[at]}", functools.partial(self.gradient, at, weighed))

    def gradient(self, at: int, weighed: Callable) -> str:
        inputs = self.inputs
        loss = lambda *inputs: weighed(self.op(*inputs), mx.float32)
        gradient = self.run(lambda: mx.grad(loss, argnums=at)(*inputs))[0]
        with mx.stream(mx.cpu):
            wide = tuple(x.astype(mx.float64) if _floating(x) else x for x in inputs)
            slope = gradient.astype(mx.float64)
            length = mx.sqrt(mx.sum(slope * slope))
            if length.item() == 0.0:
                slope, length = mx.ones(slope.shape, mx.float64), mx.array(1.0, mx.float64)
            step = 1e-2 * slope / length
            value = lambda sign: weighed(self.op.cpu(*wide[:at], wide[at] + sign * step, *wide[at + 1 :]), mx.float64)
            difference = ((value(1) - value(-1)) / 2e-2).item()
            along = (mx.sum(gradient.astype(mx.float64) * slope) / length).item()
        near = _SLOPE.get(inputs[at].dtype, 1e-3) * max(abs(difference), 1e-3)
        return "" if abs(along - difference) <= near else f"{along:.6g} along it, and a difference of {difference:.6g}"


def conformance(op: Kernel, *inputs: mx.array, tolerance: float | None = None) -> Report:
    """Checks a primitive of `kernel` with these inputs. Returns the report, or raises AssertionError with it.

        print(conformance(square, mx.random.normal((33, 7))))

    The kernel runs on the GPU, or in the simulator, which runs the given inputs in three orders of threads: forward,
    reversed and shuffled. The checks compare its results with the results of `cpu` for the given inputs, for inputs
    with NaN, infinities and large numbers, and for inputs under `mx.vmap`. With each input spaced, transposed and
    reversed in memory, the results must have the same bits as for the given inputs. The checks also compare the
    gradient of each floating input with a difference of values of `cpu` in float64.

    `tolerance` is the largest allowed error, as a fraction of the largest value. The default is 1e-5 in float32, 4e-3
    in float16 and 3e-2 in bfloat16.
    """
    checks = _Checks(op, inputs, tolerance)
    checks.values()
    checks.gradients()
    if not checks.report.passed:
        raise AssertionError(str(checks.report))
    return checks.report
