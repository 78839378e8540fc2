"""The Metal source of a kernel, with the signature that `mx.fast.metal_kernel` gives it."""

from __future__ import annotations

import hashlib
import os
import pathlib
import threading
from typing import Any, Sequence

import mlx.core as mx

# MLX puts inputs with fewer elements than this into constant memory.
_DEVICE = 8
# For each of MLX's types: the name in MLX's headers, the name in the options of metal-check, and
# the number of elements of metal-check's type that make one element of MLX's type.
_TYPES = {
    mx.bool_: ("bool", "bool", 1),
    mx.int8: ("int8_t", "i8", 1),
    mx.uint8: ("uint8_t", "u8", 1),
    mx.int16: ("int16_t", "i16", 1),
    mx.uint16: ("uint16_t", "u16", 1),
    mx.int32: ("int32_t", "i32", 1),
    mx.uint32: ("uint32_t", "u32", 1),
    mx.int64: ("int64_t", "i64", 1),
    mx.uint64: ("uint64_t", "u64", 1),
    mx.float16: ("float16_t", "f16", 1),
    mx.bfloat16: ("bfloat16_t", "bf16", 1),
    mx.float32: ("float", "f32", 1),
    mx.complex64: ("complex64_t", "f32", 2),
}
# The built-in variables that a kernel gets if their names occur in its source.
_ATTRIBUTES = (
    [
        (name, "uint3")
        for name in (
            "dispatch_threads_per_threadgroup",
            "grid_origin",
            "grid_size",
            "thread_position_in_grid",
            "thread_position_in_threadgroup",
            "threadgroup_position_in_grid",
            "threadgroups_per_grid",
            "threads_per_grid",
            "threads_per_threadgroup",
        )
    ]
    + [
        (name, "uint")
        for name in (
            "dispatch_quadgroups_per_threadgroup",
            "dispatch_simdgroups_per_threadgroup",
            "quadgroup_index_in_threadgroup",
            "quadgroups_per_threadgroup",
            "simdgroup_index_in_threadgroup",
            "simdgroups_per_threadgroup",
            "thread_execution_width",
            "thread_index_in_quadgroup",
            "thread_index_in_simdgroup",
            "thread_index_in_threadgroup",
            "threads_per_simdgroup",
        )
    ]
)


def elements(dtype: mx.Dtype, count: int) -> str:
    """Describes `count` elements of a type in the format of the command's options."""
    _, name, each = _TYPES[dtype]
    return f"{name}:{count * each}"


def headers() -> str:
    """Returns the folder of the headers in MLX's package."""
    return os.path.join(os.path.dirname(os.path.abspath(mx.__file__)), "include")


class Source:
    """The arguments of a call of `mx.fast.metal_kernel`."""

    def __init__(
        self,
        name: str,
        input_names: Sequence[str],
        output_names: Sequence[str],
        source: str,
        header: str = "",
        ensure_row_contiguous: bool = True,
        atomic_outputs: bool = False,
        compile_options: Any = None,
    ) -> None:
        if not output_names:
            raise ValueError("[metal_kernel] Must specify at least one output.")
        self.name, self.inputs, self.outputs = name, tuple(input_names), tuple(output_names)
        self.source, self.header = source, header
        self.ensure_row_contiguous, self.atomic_outputs = ensure_row_contiguous, atomic_outputs
        self.entry = f"custom_kernel_{name}"
        options = dict(compile_options or {})
        mode = options.pop("math_mode", "safe")
        if mode not in ("safe", "relaxed", "fast"):
            raise ValueError("[metal_kernel] Expected math_mode to be 'safe', 'relaxed', or 'fast'.")
        if options:
            raise ValueError(f"[metal_kernel] Unknown compile option `{min(options)}`.")
        # The check always computes as in mode "safe". The macro only tells the kernel's source that
        # the mode is "fast".
        self.defines = ["-D", "__FAST_MATH__=1"] if mode == "fast" else []

    def reads(self, name: str) -> list[str]:
        """Returns which properties of an input the kernel reads: its shape, strides or number of dimensions."""
        return [what for what in ("shape", "strides", "ndim") if f"{name}_{what}" in self.source]

    def text(self, inputs: Sequence[mx.array], dtypes: Sequence[mx.Dtype], template: Sequence[tuple[str, Any]]) -> str:
        """Makes the Metal source for these inputs, outputs of these types, and these template arguments."""
        parameters: list[str] = []

        def buffer(kind: str, name: str) -> None:
            parameters.append(f"{kind} {name} [[buffer({len(parameters)})]]")

        for name, x in zip(self.inputs, inputs):
            space = "constant" if x.size < _DEVICE else "device"
            buffer(f"const {space} {self._type(x.dtype)}{'*' if x.ndim else '&'}", name)
            kinds = {"shape": "const constant int*", "strides": "const constant int64_t*", "ndim": "const constant int&"}
            for what in self.reads(name) if x.ndim else []:
                buffer(kinds[what], f"{name}_{what}")
        for name, dtype in zip(self.outputs, dtypes):
            kind = self._type(dtype)
            buffer(f"device atomic<{kind}>*" if self.atomic_outputs else f"device {kind}*", name)
        parameters += [f"{kind} {name} [[{name}]]" for name, kind in _ATTRIBUTES if name in self.source]
        lines = ['#include "mlx/backend/metal/kernels/utils.h"', self.header]
        if template:
            lines.append("template <%s>" % ", ".join(f"{self._kind(value)} {name}" for name, value in template))
        lines.append(f"[[kernel]] void {self.entry}(")
        lines.append(",\n".join(f"  {parameter}" for parameter in parameters) + ") {")
        lines += [self.source, "}"]
        if template:
            instance = "%s<%s>" % (self.entry, ", ".join(self._value(value) for _, value in template))
            lines.append(f'template [[host_name("{self.entry}")]] [[kernel]] decltype({instance}) {instance};')
        return "\n".join(lines) + "\n"

    def _type(self, dtype: mx.Dtype) -> str:
        if dtype not in _TYPES:
            raise TypeError(f"[metal_kernel] the Metal language has no {dtype}, which {self.name} is given")
        return _TYPES[dtype][0]

    def _kind(self, value: Any) -> str:
        return "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "typename"

    def _value(self, value: Any) -> str:
        return str(value).lower() if isinstance(value, bool) else str(value) if isinstance(value, int) else self._type(value)


def kept(name: str, text: str) -> str:
    """Writes the text to a file and returns its path. Equal texts get equal paths, since the cache finds kernels by path."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    path = pathlib.Path(cache, "metal-check", "sources", digest, f"{name}.metal")
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        draft.write_text(text)
        draft.replace(path)
    return str(path)
