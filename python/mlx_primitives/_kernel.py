"""Primitives that you write: a kernel in the Metal language, and a function of MLX ops."""

from __future__ import annotations

import ctypes
import re
from typing import Any, Callable, Sequence

import mlx.core as mx

from ._library import failure, library

Threads = tuple[int, int, int]
_DIMENSIONS = 8  # of an input whose shape or strides a kernel reads, as in crates/python/src/kernel.rs
_KEPT = 256  # shapes of calls whose outputs are known
_READ = {"shape": 1, "strides": 2, "ndim": 4}
_TYPES = {
    mx.float32: "float",
    mx.float16: "half",
    mx.bfloat16: "bfloat",
    mx.bool_: "bool",
    mx.int8: "char",
    mx.uint8: "uchar",
    mx.int16: "short",
    mx.uint16: "ushort",
    mx.int32: "int",
    mx.uint32: "uint",
    mx.int64: "long",
    mx.uint64: "ulong",
}
# The built-in variables of a thread, by name, and their types.
_PLACES = {
    **dict.fromkeys(
        (
            "thread_position_in_grid",
            "threads_per_grid",
            "thread_position_in_threadgroup",
            "threads_per_threadgroup",
            "threadgroup_position_in_grid",
            "threadgroups_per_grid",
        ),
        "uint3",
    ),
    **dict.fromkeys(
        (
            "thread_index_in_threadgroup",
            "thread_index_in_simdgroup",
            "simdgroup_index_in_threadgroup",
            "simdgroups_per_threadgroup",
            "threads_per_simdgroup",
        ),
        "uint",
    ),
}


class _Request(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("source", ctypes.c_char_p),
        ("input_count", ctypes.c_size_t),
        ("inputs", ctypes.POINTER(ctypes.py_object)),
        ("read", ctypes.POINTER(ctypes.c_ubyte)),
        ("output_count", ctypes.c_size_t),
        ("like", ctypes.POINTER(ctypes.py_object)),
        ("outputs", ctypes.POINTER(ctypes.py_object)),
        ("threads", ctypes.c_uint32 * 6),
        ("contiguous", ctypes.c_bool),
    ]


_kernel = library.mlx_primitives_kernel
_kernel.restype = ctypes.c_char_p
_kernel.argtypes = [ctypes.POINTER(_Request)]


def _all(x: Any) -> tuple:
    return tuple(x) if isinstance(x, (list, tuple)) else (x,)


def simulating() -> bool:
    """Whether kernels of this thread run in the simulator: see `simulate`."""
    return library.mlx_primitives_simulates() == 1


def _on_gpu(stream: Any) -> bool:
    device = mx.default_device() if stream is None else getattr(stream, "device", stream)
    return device == mx.gpu or device == mx.Device(mx.gpu)


def _value(name: str, value: Any) -> str:
    """A line that gives a template parameter its value."""
    if isinstance(value, bool):
        return f"constexpr bool {name} = {str(value).lower()};"
    if isinstance(value, int):
        return f"constexpr int {name} = {value};"
    if value in _TYPES:
        return f"using {name} = {_TYPES[value]};"
    raise TypeError(f"expected a dtype, an int or a bool for {name}, got {value!r}")


class Kernel:
    """A primitive of a program: `kernel` makes it."""

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
        words = [name, *inputs, *outputs]
        for word in words:
            if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", word):
                raise ValueError(f"[kernel] expected a name of letters and digits, got {word!r}")
        if len(set(words)) < len(words) or not outputs:
            raise ValueError(f"[{name}] expected one output or more, and different names, got {words}")
        self.name, self.inputs, self.outputs = name, tuple(inputs), tuple(outputs)
        self.metal, self.header, self.cpu = metal, header, cpu
        self._vjp, self._grid, self._threadgroup, self._template = vjp, grid, threadgroup, template
        self.ensure_row_contiguous = ensure_row_contiguous
        self._words = set(re.findall(r"[A-Za-z_]\w*", metal))
        self._like: dict = {}
        self._op = self._differentiable()

    def __call__(self, *inputs: mx.array, stream: mx.Stream | mx.Device | None = None) -> Any:
        """The lazy results: an array, or a tuple where there are several outputs."""
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
        # MLX asks no derivatives of what is behind a stop: those of the custom function count.
        return self._launch(tuple(map(mx.stop_gradient, inputs))) if self._launches() else self.cpu(*inputs)

    def _differentiable(self) -> Callable:
        """The op, with its derivatives: those of `vjp` if there is one, or of `cpu`."""
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
        """Arrays of the shapes and types of the outputs, which those of `cpu` have."""
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

    def _threads(self, given: Any, inputs: tuple, what: str) -> Threads:
        threads = tuple(int(n) for n in (given(*inputs) if callable(given) else given))
        if len(threads) != 3 or not all(0 < n < 1 << 32 for n in threads):
            raise ValueError(f"[{self.name}] expected three positive numbers for the {what}, got {threads}")
        return threads

    def source(self, *inputs: mx.array) -> str:
        """The Metal source for these inputs."""
        return self._source(inputs, self._known(inputs))

    def _read(self, name: str) -> list[str]:
        return [what for what in _READ if f"{name}_{what}" in self._words]

    def _source(self, inputs: tuple, like: list) -> str:
        parameters: list[str] = []
        begin: list[str] = []
        template = self._template(*inputs) if callable(self._template) else self._template
        begin += [_value(name, value) for name, value in dict(template).items()]

        def buffer(kind: str, name: str) -> None:
            parameters.append(f"{kind} {name} [[buffer({len(parameters)})]]")

        for name, x in zip(self.inputs, inputs):
            scalar = "_at" if x.ndim == 0 else ""
            buffer(f"const device {self._type(name, x)}*", name + scalar)
            if scalar:
                begin.append(f"const device {self._type(name, x)}& {name} = *{name}_at;")
            for what in self._read(name):
                if what == "ndim":
                    buffer("constant int&", f"{name}_ndim")
                    continue
                of = "int" if what == "shape" else "long"
                buffer(f"constant mlxp_{of}s&", f"{name}_{what}_of")
                begin.append(f"constant {of}* {name}_{what} = {name}_{what}_of.all;")
        for name, y in zip(self.outputs, like):
            buffer(f"device {self._type(name, y)}*", name)
        places = [f"{of} {place} [[{place}]]" for place, of in _PLACES.items() if place in self._words]
        lines = [
            "#include <metal_stdlib>",
            "using namespace metal;",
            f"struct mlxp_ints {{ int all[{_DIMENSIONS}]; }};",
            f"struct mlxp_longs {{ long all[{_DIMENSIONS}]; }};",
            self.header,
            f"[[kernel]] void {self.name}(",
            ",\n".join(f"    {parameter}" for parameter in parameters + places) + ") {",
            *(f"  {line}" for line in begin),
            self.metal,
            "}",
        ]
        return "\n".join(lines) + "\n"

    def _type(self, name: str, x: mx.array) -> str:
        try:
            return _TYPES[x.dtype]
        except KeyError:
            raise TypeError(f"[{self.name}] the Metal language has no {x.dtype}, of {name}") from None

    def _launch(self, inputs: tuple) -> Any:
        like = self._known(inputs)
        grid = self._threads(self._grid, inputs, "grid")
        group = self._threads(self._threadgroup, inputs, "threadgroup")
        results = [mx.array(0) for _ in like]
        read = [sum(_READ[what] for what in self._read(name)) for name in self.inputs]
        objects = lambda arrays: (ctypes.py_object * len(arrays))(*arrays)
        request = _Request(
            self.name.encode(),
            self._source(inputs, like).encode(),
            len(inputs),
            objects(inputs),
            (ctypes.c_ubyte * len(read))(*read),
            len(like),
            objects(like),
            objects(results),
            (ctypes.c_uint32 * 6)(*grid, *map(min, group, grid)),
            self.ensure_row_contiguous,
        )
        error = _kernel(request)
        if error is not None:
            raise failure(self.name, error)
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
    """A primitive with a Metal kernel and a reference, as a function of `mx.array`.

        square = kernel(
            "square",
            inputs=["x"],
            outputs=["y"],
            metal="uint i = thread_position_in_grid.x; y[i] = x[i] * x[i];",
            cpu=lambda x: x * x,
            grid=lambda x: (x.size, 1, 1),
        )
        y = square(mx.array([1.0, 2.0]))

    `metal` is the body of a kernel as in `mx.fast.metal_kernel`: inputs and outputs are pointers of these names, a
    scalar input is a value, and built-in variables such as `thread_position_in_grid` and, of an input `x`,
    `x_shape`, `x_strides` and `x_ndim` are there if the body names them. `header` comes before the function. The
    kernel starts `grid` threads in groups of `threadgroup`, each of three numbers or a function of the inputs, and
    writes all outputs. `template` gives names in the body to types, ints and bools: `lambda x: {"T": x.dtype}`.

    `cpu` computes the same from the same inputs by MLX ops. It runs on a CPU, says the shapes and types of the
    outputs, and has the derivatives, unless `vjp(primals, cotangents, outputs)` returns the gradients
    of all inputs, as of an `mx.custom_function`.

    Under `mx.vmap` the kernel is launched for each entry. It runs on a Mac's GPU, on an NVIDIA GPU by a library built for it, and inside `simulate`. Inputs that
    are not row-contiguous are copied first, unless `ensure_row_contiguous` is False.
    """
    return Kernel(
        name, inputs, outputs, metal, cpu, vjp, grid, threadgroup, template, header, ensure_row_contiguous
    )
