"""Runs and checks kernels of `mx.fast.metal_kernel` without a Mac."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from typing import Any, Callable, Iterator, Sequence

import mlx.core as mx

from ._program import KernelFault, NotChecked, run
from ._source import Source, elements, headers, kept

ORDERS = ("all", "forward", "reversed", "shuffled")


class Watch:
    """The launches, faults and notes of the kernels that a program ran inside `watch`."""

    def __init__(self, order: str, stop: bool) -> None:
        self.order, self.stop = order, stop
        self.launches: dict[str, int] = {}
        """The number of launches of each kernel, by its name."""
        self.faults: list[KernelFault | NotChecked] = []
        """The errors of all launches, in the order of the launches."""
        self.notes: list[str] = []
        """The reports of launches that had no fault but a new note. They are also printed to stderr."""
        self._noted: set[tuple[str, str]] = set()
        self._known: set[str] = set()

    def _made(self, name: str, input_names: Sequence[str], output_names: Sequence[str], source: str, *options: Any, **named: Any) -> Any:
        kernel = Source(name, input_names, output_names, source, *options, **named)

        def launch(
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
            __tracebackhide__ = True  # hides this frame in pytest's report
            for what, names, given in (
                ("inputs", kernel.inputs, inputs),
                ("output_shapes", kernel.outputs, output_shapes),
                ("output_dtypes", kernel.outputs, output_dtypes),
            ):
                if len(names) != len(given):
                    raise ValueError(f"[metal_kernel] Expected `{what}` to have size {len(names)} but got size {len(given)}.")
            with mx.stream(mx.cpu):
                arrays = [x if isinstance(x, mx.array) else mx.array(x) for x in inputs]
                text = kernel.text(arrays, output_dtypes, template or [])
                if verbose:
                    print(text)
                size = (*map(int, grid), *map(int, threadgroup))
                outputs = list(zip(output_shapes, output_dtypes))
                return _underivable(lambda *x: self._launch(kernel, text, x, outputs, size, init_value))(*arrays)

        return launch

    def _launch(
        self,
        kernel: Source,
        text: str,
        inputs: Sequence[mx.array],
        outputs: list[tuple[Sequence[int], mx.Dtype]],
        size: tuple[int, ...],
        init_value: float | None,
    ) -> list[mx.array]:
        __tracebackhide__ = True
        self.launches[kernel.name] = self.launches.get(kernel.name, 0) + 1
        with tempfile.TemporaryDirectory(prefix="metal-check-") as folder:
            arguments = _Arguments(folder)
            for name, x in zip(kernel.inputs, inputs):
                arguments.input(x, kernel.reads(name) if x.ndim else [], kernel.ensure_row_contiguous)
            saved = [arguments.output(shape, dtype, init_value) for shape, dtype in outputs]
            # Along each axis, MLX shrinks a threadgroup that is larger than the grid to the grid.
            group = map(min, size[3:], size[:3])
            whole = [kept(kernel.name, text), "--entry", kernel.entry, "-I", headers(), "--order", self.order]
            whole += ["--grid", ",".join(map(str, size[:3])), "--threadgroup", ",".join(map(str, group))]
            whole += kernel.defines
            whole += ["--rules", "false"] if text in self._known else []
            try:
                report = run(whole + arguments.all)
            except NotChecked as error:
                self.faults.append(error)
                raise
            self._known.add(text)
            if report["faults"]:
                self.faults.append(KernelFault(report))
                if self.stop:
                    raise self.faults[-1]
            else:
                self._note(report)
            return [_array(path, shape, dtype) for path, (shape, dtype) in zip(saved, outputs)]

    def _note(self, report: dict[str, Any]) -> None:
        """Keeps and prints a report, if it has a note that no earlier report had."""
        found = {(note["kind"], str(note["places"])) for note in report["notes"]}
        if not found <= self._noted:
            self._noted |= found
            self.notes.append(report["text"])
            print(report["text"], file=sys.stderr)


class _Arguments:
    """The command's options for the buffers, in the order of their indices. Files in `folder` have the contents."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.all: list[str] = []
        self.count = 0

    def _next(self) -> int:
        self.count += 1
        return self.count - 1

    def _numbers(self, kind: str, numbers: Sequence[int]) -> None:
        self.all += ["--bytes", f"{self._next()}={kind}:{','.join(map(str, numbers))}"]

    def input(self, x: mx.array, reads: list[str], contiguous: bool) -> None:
        strides, begin = _strides(x), 0
        rows = mx.contiguous(x)
        if contiguous:
            strides, x = _strides(rows), rows
        else:
            x, begin = _spread(rows, strides)
        index = self._next()
        path = os.path.join(self.folder, f"input{index}")
        _write(path, x)
        self.all += ["--buffer", f"{index}={elements(x.dtype, x.size)}:@{path}"]
        if begin:
            self.all += ["--offset", f"{index}={begin * x.itemsize}"]
        numbers: dict[str, tuple[str, Sequence[int]]] = {
            "shape": ("i32", rows.shape),
            "strides": ("i64", strides),
            "ndim": ("i32", (rows.ndim,)),
        }
        for what in reads:
            self._numbers(*numbers[what])

    def output(self, shape: Sequence[int], dtype: mx.Dtype, init_value: float | None) -> str:
        count = 1
        for extent in shape:
            count *= int(extent)
        index = self._next()
        path = os.path.join(self.folder, f"output{index}")
        contents = ""
        if init_value is not None:
            _write(path, mx.full((count,), init_value, dtype))
            contents = f":@{path}"
        self.all += ["--buffer", f"{index}={elements(dtype, count)}{contents}", "--save", f"{index}={path}"]
        return path


def _memory(x: Any) -> memoryview:
    """Returns the memory of an array. The parameter has type `Any`, since MLX's stubs do not declare arrays as buffers."""
    mx.eval(x)
    return memoryview(x)


def _strides(x: mx.array) -> list[int]:
    """Returns the strides of an array in elements."""
    return [stride // x.itemsize for stride in _memory(x).strides or ()]


def _write(path: str, x: mx.array) -> None:
    with open(path, "wb") as file:
        file.write(_memory(mx.contiguous(x.reshape(-1)).view(mx.uint8)))


def _spread(rows: mx.array, strides: list[int]) -> tuple[mx.array, int]:
    """Lays out `rows` with these strides. Returns the memory, and the index of the array's first element in it."""
    if rows.size == 0 or strides == _strides(rows):
        return rows, 0
    reach = [(n - 1) * stride for n, stride in zip(rows.shape, strides)]
    begin = -sum(step for step in reach if step < 0)
    extent = 1 + begin + sum(step for step in reach if step > 0)
    at = mx.full(rows.shape, begin, mx.int64)
    for axis, (n, stride) in enumerate(zip(rows.shape, strides)):
        along = [1] * rows.ndim
        along[axis] = n
        at = at + (mx.arange(n) * stride).reshape(along)
    memory = mx.zeros((extent,), rows.dtype)
    memory[at.reshape(-1)] = rows.reshape(-1)
    return memory, begin


def _array(path: str, shape: Sequence[int], dtype: mx.Dtype) -> mx.array:
    with open(path, "rb") as file:
        content: Any = memoryview(file.read())
    return mx.array(content).view(dtype).reshape(tuple(shape)) if content.nbytes else mx.zeros(shape, dtype)


def _underivable(function: Callable) -> Callable:
    """Returns a function that raises an error if it is differentiated, as a kernel on a Mac does."""

    def refuse(*_: Any) -> Any:
        raise ValueError("[metal_kernel] a kernel has no derivative; give it one by mx.custom_function")

    made = mx.custom_function(function)
    made.vjp(refuse)
    made.jvp(refuse)
    return made


def _compiles() -> bool:
    """Tests whether `mx.compile` is enabled, since MLX has no function that returns this."""
    calls = []

    def traced(x: mx.array) -> mx.array:
        calls.append(x)
        return x

    function = mx.compile(traced)
    function(mx.array(0))
    function(mx.array(0))
    return len(calls) == 1


@contextlib.contextmanager
def watch(order: str = "all", gpu: bool = False, stop: bool = True) -> Iterator[Watch]:
    """A context in which kernels made by `mx.fast.metal_kernel` are checked on Linux.

        with metal_check.watch() as watched:
            loss = model_with_kernels(x)
        print(watched.launches)     # the number of launches of each kernel

    A call runs its kernel immediately on the given arrays. `order` is the order of threads: "forward", "reversed",
    "shuffled", or "all". With "all", a call returns the results of "forward". A fault raises a `KernelFault`,
    whose text names the lines and the threads. Without `stop`, the fault is only added to `watched.faults`. A kernel that
    cannot be run raises `NotChecked`. A note is a finding that looks like a fault but does not change a result. Notes are
    printed to stderr and added to `watched.notes`.

    Only kernels that are made inside the context are checked. Many modules make their kernels at import, so import them
    inside the context. With `gpu`, MLX reports a GPU as on a Mac (`mx.metal.is_available`, `mx.is_available`,
    `mx.default_device`), because some programs make kernels only on a GPU. MLX's own ops stay on the CPU. `mx.compile`
    has no effect inside the context, since a kernel needs the contents of its inputs.
    """
    if order not in ORDERS:
        raise ValueError(f"[watch] expected {', '.join(ORDERS)}, got {order!r}")
    found = Watch(order, stop)
    places: list[tuple[Any, str, Callable]] = [(mx.fast, "metal_kernel", found._made)]
    if gpu:
        choose = mx.set_default_device
        places += [
            (mx.metal, "is_available", lambda: True),
            (mx, "is_available", lambda device: True),
            (mx, "default_device", lambda: mx.Device(mx.gpu)),
            (mx, "set_default_device", lambda device: None if device == mx.gpu else choose(device)),
        ]
    originals = [getattr(module, name) for module, name, _ in places]
    compiles = _compiles()
    mx.disable_compile()
    for module, name, function in places:
        setattr(module, name, function)
    try:
        yield found
    finally:
        for (module, name, _), original in zip(places, originals):
            setattr(module, name, original)
        if compiles:
            mx.enable_compile()
