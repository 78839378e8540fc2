"""Loads the library for the MLX of this process, and calls its functions."""

import ctypes
import os
import re

import mlx.core as mx

NO_INT = -(1 << 63)  # stands for None where an int is optional
NO_FLOAT = float("nan")

_OBJECT = ctypes.py_object
_KINDS = {
    "array": _OBJECT,
    "optional": _OBJECT,
    "int": ctypes.c_int64,
    "maybe_int": ctypes.c_int64,
    "float": ctypes.c_float,
    "maybe_float": ctypes.c_float,
    "flag": ctypes.c_bool,
}
_ERRORS = {"T": TypeError, "V": ValueError, "R": RuntimeError}


class _Entry(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("arguments", ctypes.c_char_p),
        ("results", ctypes.c_size_t),
        ("function", ctypes.c_void_p),
    ]


def _choose(folder, version):
    """The path of the library for a version of MLX."""
    found = {}
    for name in os.listdir(folder):
        match = re.fullmatch(r"libmlx_primitives_(\d+(?:_\d+)*)\.(?:so|dylib)", name)
        if match:
            found[match.group(1).replace("_", ".")] = os.path.join(folder, name)
    path = found.get(version.split(".dev")[0].split("+")[0])
    if path is None:
        versions = " or ".join(sorted(found, key=lambda it: [int(part) for part in it.split(".")]))
        raise ImportError("mlx_primitives is for MLX %s, and this is MLX %s" % (versions or "(no library)", version))
    return path


def _load(path):
    """The library at a path, which holds Python's lock during calls: building an op takes microseconds."""
    try:
        return ctypes.PyDLL(path)
    except OSError as error:
        raise ImportError("mlx_primitives cannot be loaded with this MLX: %s" % error) from None


def _begin(library, array_type, probe, out, size):
    """Compares versions, and finds out where `mx.array` objects hold their arrays."""
    begin = library.mlx_primitives_begin
    begin.restype = ctypes.c_char_p
    begin.argtypes = [ctypes.c_size_t, ctypes.c_size_t, _OBJECT, _OBJECT, _OBJECT, _OBJECT]
    error = begin(object.__basicsize__, size, array_type, None, probe, out)
    if error is not None:
        raise ImportError("mlx_primitives does not fit this MLX or Python: %s" % error[1:].decode())


def _check(out, probe):
    if out.shape != probe.shape or out.dtype != probe.dtype:
        raise ImportError("mlx_primitives does not fit this MLX or Python: a result does not arrive")


def _functions(library):
    """The functions of the library's table, by name, each with its arguments and its number of results."""
    table = library.mlx_primitives_table
    table.restype = ctypes.POINTER(_Entry)
    functions, signatures = {}, {}
    for entry in table():
        if entry.name is None:
            return functions, signatures
        name = entry.name.decode()
        arguments = [tuple(word.split(":")) for word in entry.arguments.decode().split()]
        kinds = [_KINDS[kind] for _, kind in arguments] + [_OBJECT] * entry.results
        functions[name] = ctypes.PYFUNCTYPE(ctypes.c_char_p, *kinds)(entry.function)
        functions[name].__name__ = name
        signatures[name] = (arguments, entry.results)


def failure(name, error):
    """The error of a function from its text."""
    text = error[1:].decode()
    return _ERRORS[chr(error[0])](text if text.startswith("[") else "[%s] %s" % (name, text))


def call(function, stream, *arguments):
    """The result of a function of the table, built on a stream, a device or the default ones."""
    if stream is not None:
        with mx.stream(stream):
            return call(function, None, *arguments)
    out = _array(_zero)
    try:
        error = function(*arguments, out)
    except ctypes.ArgumentError as wrong:
        raise TypeError("[%s] %s" % (function.__name__, wrong)) from None
    if error is not None:
        raise failure(function.__name__, error)
    return out


def call_many(function, count, stream, *arguments):
    """The results of a function that has several, as a tuple."""
    if stream is not None:
        with mx.stream(stream):
            return call_many(function, count, None, *arguments)
    out = [_array(_zero) for _ in range(count)]
    try:
        error = function(*arguments, *out)
    except ctypes.ArgumentError as wrong:
        raise TypeError("[%s] %s" % (function.__name__, wrong)) from None
    if error is not None:
        raise failure(function.__name__, error)
    return tuple(out)


def _info(name, *arguments):
    function = getattr(library, name)
    function.restype = ctypes.c_char_p
    text = function(*arguments)
    if text[:1] != b"I":
        raise failure(name, text)
    return text[1:].decode()


_array = mx.array
_zero = mx.array(0)
_version = mx.__version__  # type: ignore[attr-defined]  # the stubs of MLX lack it
path = _choose(os.path.dirname(os.path.abspath(__file__)), _version)
library = _load(path)
_probe, _out = mx.zeros((3, 5, 7), mx.float16), mx.array(0)
_begin(library, mx.array, _probe, _out, mx.array.__basicsize__)
_check(_out, _probe)
functions, signatures = _functions(library)
QUERY_POSITIONS = 8
version, mlx_version, cpu_kernels, gpu_kernels = _info("mlx_primitives_info").split("\n")


def cpu_threads():
    """The number of threads that the CPU kernels use."""
    return int(_info("mlx_primitives_threads", ctypes.c_size_t(0)))


def set_cpu_threads(threads):
    """Sets the number of `cpu_threads`, before the first op runs on the CPU."""
    if not 1 <= threads <= 1024:
        raise ValueError("[set_cpu_threads] expected 1 to 1024 threads, got %s" % threads)
    _info("mlx_primitives_threads", ctypes.c_size_t(threads))


def set_row_order(order):
    """Sets the order of rows of the thread's ops, and returns the previous one, as numbers."""
    return library.mlx_primitives_row_order(ctypes.c_int(order))
