"""The Metal source of a user-written kernel, and its launches."""

from __future__ import annotations

import ctypes
import re
from typing import Any, Sequence

import mlx.core as mx

from ._library import failure, library

_DIMENSIONS = 8  # of an input whose shape or strides a kernel reads, as in crates/python/src/kernel.rs
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
# The names from MLX's headers that kernels use most often, and the function elem_to_loc.
_PRELUDE = """#include <metal_stdlib>
using namespace metal;
typedef half float16_t;
typedef bfloat bfloat16_t;
struct mlxp_ints { int all[%d]; };
struct mlxp_longs { long all[%d]; };
inline long elem_to_loc(long place, constant int* shape, constant long* strides, int ndim) {
  long at = 0;
  for (int axis = ndim - 1; axis >= 0; --axis) {
    at += place %% shape[axis] * strides[axis];
    place /= shape[axis];
  }
  return at;
}
""" % (_DIMENSIONS, _DIMENSIONS)
# The built-in variables that give a thread's position and the sizes of groups, with their types.
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


def _value(name: str, value: Any) -> str:
    """Returns a line of source that gives a template parameter its value."""
    if isinstance(value, bool):
        return f"constexpr bool {name} = {str(value).lower()};"
    if isinstance(value, int):
        return f"constexpr int {name} = {value};"
    if value in _TYPES:
        return f"using {name} = {_TYPES[value]};"
    raise TypeError(f"expected a dtype, an int or a bool for {name}, got {value!r}")


class Body:
    """The body of a kernel. It sees its arguments under the names that `mx.fast.metal_kernel` gives them."""

    def __init__(
        self,
        name: str,
        inputs: Sequence[str],
        outputs: Sequence[str],
        source: str,
        header: str = "",
        ensure_row_contiguous: bool = True,
    ) -> None:
        words = [name, *inputs, *outputs]
        for word in words:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", word):
                raise ValueError(f"[kernel] expected a name of letters and digits, got {word!r}")
        if len(set(words)) < len(words) or not outputs:
            raise ValueError(f"[{name}] expected one output or more, and different names, got {words}")
        self.name, self.inputs, self.outputs = name, tuple(inputs), tuple(outputs)
        self.source, self.header = source, header
        self.ensure_row_contiguous = ensure_row_contiguous
        self._words = set(re.findall(r"[A-Za-z_]\w*", source))

    def _read(self, name: str) -> list[str]:
        return [what for what in _READ if f"{name}_{what}" in self._words]

    def text(self, inputs: Sequence[mx.array], like: Sequence[mx.array], template: dict) -> str:
        """Returns the source of the kernel for inputs like `inputs` and outputs like `like`."""
        parameters: list[str] = []
        begin = [_value(name, value) for name, value in template.items()]

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
            _PRELUDE,
            self.header,
            f"[[kernel]] void {self.name}(",
            ",\n".join(f"    {parameter}" for parameter in parameters + places) + ") {",
            *(f"  {line}" for line in begin),
            self.source,
            "}",
        ]
        return "\n".join(lines) + "\n"

    def _type(self, name: str, x: mx.array) -> str:
        try:
            return _TYPES[x.dtype]
        except KeyError:
            raise TypeError(f"[{self.name}] the Metal language has no {x.dtype}, of {name}") from None

    def threads(self, given: Sequence[int], what: str) -> tuple[int, ...]:
        """Checks and returns the numbers of threads along three axes."""
        threads = tuple(int(n) for n in given)
        if len(threads) != 3 or not all(0 < n < 1 << 32 for n in threads):
            raise ValueError(f"[{self.name}] expected three positive numbers for the {what}, got {threads}")
        return threads

    def launch(
        self,
        inputs: Sequence[mx.array],
        like: Sequence[mx.array],
        grid: Sequence[int],
        threadgroup: Sequence[int],
        template: dict,
    ) -> list[mx.array]:
        """Launches the kernel. Returns the lazy outputs, with the shapes and types of `like`."""
        grid = self.threads(grid, "grid")
        group = map(min, self.threads(threadgroup, "threadgroup"), grid)
        results = [mx.array(0) for _ in like]
        read = [sum(_READ[what] for what in self._read(name)) for name in self.inputs]
        objects = lambda arrays: (ctypes.py_object * len(arrays))(*arrays)
        request = _Request(
            self.name.encode(),
            self.text(inputs, like, template).encode(),
            len(inputs),
            objects(inputs),
            (ctypes.c_ubyte * len(read))(*read),
            len(like),
            objects(like),
            objects(results),
            (ctypes.c_uint32 * 6)(*grid, *group),
            self.ensure_row_contiguous,
        )
        error = _kernel(request)
        if error is not None:
            raise failure(self.name, error)
        return results
