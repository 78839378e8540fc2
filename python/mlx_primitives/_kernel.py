"""Primitives that users write: a Metal kernel, and a reference function of MLX ops."""

from __future__ import annotations

from typing import Any, Callable, Sequence

import mlx.core as mx

from ._library import library
from ._metal import Body

Threads = tuple[int, int, int]
_KEPT = 256  # shapes of calls whose outputs are known


def _all(x: Any) -> tuple:
    return tuple(x) if isinstance(x, (list, tuple)) else (x,)


def _of(given: Any, inputs: tuple) -> Any:
    """Returns `given`. If it is a function, returns its result for the inputs."""
    return given(*inputs) if callable(given) else given


def simulating() -> bool:
    """Whether kernels of this thread run in the simulator, because `simulate` called the code."""
    return library.mlx_primitives_simulates() == 1


def _on_gpu(stream: Any) -> bool:
    device = mx.default_device() if stream is None else getattr(stream, "device", stream)
    return device == mx.gpu or device == mx.Device(mx.gpu)


class Kernel:
    """A user-written primitive, which `kernel` makes."""

    def __init__(
        self,
        name: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        metal: str,
        cpu: Callable,
        vjp: Callable | None,
        grid: Any,
        threadgroup: Any,
        template: Any,
        header: str,
        ensure_row_contiguous: bool,
    ) -> None:
        self.body = Body(name, inputs, outputs, metal, header, ensure_row_contiguous)
        self.name, self.inputs, self.outputs = self.body.name, self.body.inputs, self.body.outputs
        self.cpu, self._vjp = cpu, vjp
        self._grid, self._threadgroup, self._template = grid, threadgroup, template
        self._like: dict = {}
        self._op = self._differentiable()

    def __call__(self, *inputs: mx.array, stream: mx.Stream | mx.Device | None = None) -> Any:
        """Returns the lazy results: an array, or a tuple if there are several outputs."""
        if len(inputs) != len(self.inputs):
            raise ValueError(f"[{self.name}] expected {', '.join(self.inputs)}, got {len(inputs)} arrays")
        for name, x in zip(self.inputs, inputs):
            if not isinstance(x, mx.array):
                raise TypeError(f"[{self.name}] expected {name} to be an mx.array, got {type(x).__name__}")
        if stream is not None:
            with mx.stream(stream):
                return self(*inputs)
        if self._vjp is None and not self._launches():
            return self.cpu(*inputs)
        return self._op(*inputs)

    def _launches(self) -> bool:
        return simulating() or _on_gpu(None)

    def _forward(self, *inputs: mx.array) -> Any:
        # MLX does not differentiate through stop_gradient, so only the derivatives of the custom
        # function count.
        return self._launch(tuple(map(mx.stop_gradient, inputs))) if self._launches() else self.cpu(*inputs)

    def _differentiable(self) -> Callable:
        """Makes the op with its derivatives. `cpu` gives them, except the gradients if `vjp` is given."""
        op = mx.custom_function(self._forward)
        op.vjp(lambda primals, cotangents, outputs: self._backward(_all(primals), cotangents, outputs))
        op.jvp(lambda primals, tangents: self._along(_all(primals), _all(tangents)))
        return op

    def _backward(self, primals: tuple, cotangents: Any, outputs: Any) -> Any:
        if self._vjp is not None:
            gradients = _all(self._vjp(primals, cotangents, outputs))
        else:
            gradients = _all(mx.vjp(self.cpu, list(primals), list(_all(cotangents)))[1])
        return gradients if len(primals) > 1 else gradients[0]

    def _along(self, primals: tuple, tangents: tuple) -> Any:
        along = mx.jvp(self.cpu, list(primals), list(tangents))[1]
        return tuple(along) if len(self.outputs) > 1 else along[0]

    def _known(self, inputs: tuple) -> list:
        """Returns arrays with the shapes and types of the outputs, which `cpu` determines."""
        key = tuple((x.shape, x.dtype) for x in inputs)
        like = self._like.get(key)
        if like is None:
            results = _all(self.cpu(*inputs))
            if len(results) != len(self.outputs):
                raise ValueError(f"[{self.name}] expected {len(self.outputs)} results of cpu, got {len(results)}")
            like = [mx.zeros(y.shape, y.dtype) for y in results]
            if len(self._like) >= _KEPT:
                self._like.clear()
            self._like[key] = like
        return like

    def source(self, *inputs: mx.array) -> str:
        """Returns the Metal source for these inputs."""
        return self.body.text(inputs, self._known(inputs), _of(self._template, inputs))

    def _launch(self, inputs: tuple) -> Any:
        results = self.body.launch(
            inputs,
            self._known(inputs),
            _of(self._grid, inputs),
            _of(self._threadgroup, inputs),
            _of(self._template, inputs),
        )
        return tuple(results) if len(results) > 1 else results[0]


def kernel(
    name: str,
    *,
    inputs: Sequence[str],
    outputs: Sequence[str],
    metal: str,
    cpu: Callable,
    grid: Threads | Callable[..., Threads],
    threadgroup: Threads | Callable[..., Threads] = (256, 1, 1),
    template: dict | Callable[..., dict] = {},
    header: str = "",
    vjp: Callable | None = None,
    ensure_row_contiguous: bool = True,
) -> Kernel:
    """Makes a primitive from a Metal kernel and a reference. It is a function of `mx.array` objects.

        square = kernel(
            "square",
            inputs=["x"],
            outputs=["y"],
            metal="uint i = thread_position_in_grid.x; y[i] = x[i] * x[i];",
            cpu=lambda x: x * x,
            grid=lambda x: (x.size, 1, 1),
        )
        y = square(mx.array([1.0, 2.0]))

    `metal` is the body of a kernel as in `mx.fast.metal_kernel`. Inputs and outputs are pointers with the given names,
    but a scalar input is a value. The body can use built-in variables such as `thread_position_in_grid`, and for an
    input `x` the variables `x_shape`, `x_strides` and `x_ndim`. `header` is source that comes before the function. The
    kernel starts `grid` threads in groups of `threadgroup`. Both are three numbers, or a function of the inputs that
    returns them. The kernel must write all outputs. `template` defines names of types, ints and bools for the body:
    `lambda x: {"T": x.dtype}`.

    `cpu` computes the same results from the same inputs by MLX ops. It runs on a CPU, and determines the shapes and
    types of the outputs. It also gives the derivatives, unless `vjp(primals, cotangents, outputs)` returns the
    gradients of all inputs, as for an `mx.custom_function`.

    Under `mx.vmap` the kernel is launched for each entry. Inside `simulate`, it runs in a simulator on the CPU. With a
    library that has CUDA, it runs on an NVIDIA GPU. It is also built to run on a Mac's GPU, but has not run there yet.
    Inputs that are not row-contiguous are copied first, unless `ensure_row_contiguous` is False.
    """
    return Kernel(
        name, inputs, outputs, metal, cpu, vjp, grid, threadgroup, template, header, ensure_row_contiguous
    )
