"""Kernels of `mx.fast.metal_kernel` without a Mac."""

from __future__ import annotations

import contextlib
from typing import Any, Iterator, Sequence

import mlx.core as mx

from ._metal import Body
from ._simulate import ORDERS, simulate

_OPTIONS = {"compile_options"}  # of the compiler, which the simulator has no use for


class Watch:
    """The kernels that a program launched while it was watched."""

    def __init__(self, orders: Sequence[str]) -> None:
        self.orders = tuple(orders)
        self.launches: dict[str, int] = {}

    def _made(self, name: str, input_names: Sequence[str], output_names: Sequence[str], source: str, **options: Any) -> Any:
        options = {name: value for name, value in options.items() if name not in _OPTIONS}
        body = Body(name, input_names, output_names, source, **options)

        def run(
            *,
            inputs: Sequence[Any],
            output_shapes: Sequence[Sequence[int]],
            output_dtypes: Sequence[mx.Dtype],
            grid: Sequence[int],
            threadgroup: Sequence[int],
            template: Sequence[tuple[str, Any]] | None = None,
            init_value: float | None = None,
            verbose: bool = False,
            stream: Any = None,
        ) -> list[mx.array]:
            with mx.stream(mx.cpu):
                arrays = [x if isinstance(x, mx.array) else mx.array(x) for x in inputs]
                like = [mx.zeros(shape, dtype) for shape, dtype in zip(output_shapes, output_dtypes)]
            words = dict(template or [])
            if verbose:
                print(body.text(arrays, like, words, init_value))
            self.launches[name] = self.launches.get(name, 0) + 1
            launch = lambda: body.launch(arrays, like, grid, threadgroup, words, init_value)
            results = [simulate(launch, order) for order in self.orders]
            return results[0]

        return run


@contextlib.contextmanager
def watch(orders: Sequence[str] = ORDERS) -> Iterator[Watch]:
    """A context in which kernels made by `mx.fast.metal_kernel` run in the simulator, on Linux.

        with mlx_primitives.watch() as watched:
            loss = model_with_kernels(x)
        print(watched.launches)     # how often each kernel ran

    A call runs its kernel at once, on the arrays that it is given and in each order of threads, and returns the
    results of the first. A fault of the kernel is a RuntimeError that names it, its line and the threads. Only kernels
    that are made inside of the context run so, and those of many modules are made when the module is imported.
    """
    found, original = Watch(orders), mx.fast.metal_kernel
    mx.fast.metal_kernel = found._made  # type: ignore[assignment]
    try:
        yield found
    finally:
        mx.fast.metal_kernel = original
