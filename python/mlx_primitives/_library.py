"""Loads the library for the MLX of this process, and calls its functions."""

import ctypes
import os
import re

import mlx.core as mx

# The functions of Python that the library calls, in the order of `Api` in crates/python/src/api.rs.
_OF_PYTHON = (
    "PyLong_AsLongLong",
    "PyFloat_AsDouble",
    "PyObject_IsTrue",
    "PyErr_Occurred",
    "PyErr_SetString",
    "PyObject_Call",
    "PyTuple_New",
    "PyTuple_SetItem",
)
_ERRORS = {"T": TypeError, "V": ValueError, "R": RuntimeError}


class _Method(ctypes.Structure):
    """A `PyMethodDef`."""

    _fields_ = [
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("arguments", ctypes.c_char_p),
    ]


def _choose(folder, version):
    """Returns the path of the library for a version of MLX."""
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
    """Loads the library at a path. Its calls hold Python's lock.

    The loader looks up a function of MLX only when the library calls it for the first time. MLX for CPUs lacks the
    functions of CUDA, which are then never called. ctypes would look up all functions at once, and fail.
    """
    system = ctypes.CDLL(None)
    open_, error = system.dlopen, system.dlerror  # looking up a function later would clear the error
    open_.restype, error.restype = ctypes.c_void_p, ctypes.c_char_p
    open_.argtypes = [ctypes.c_char_p, ctypes.c_int]
    handle = open_(os.fsencode(path), os.RTLD_LAZY)
    if not handle:
        raise ImportError("mlx_primitives cannot be loaded with this MLX: %s" % os.fsdecode(error() or b""))
    return ctypes.PyDLL(path, handle=handle)


def _begin(library, array_type, probe, size):
    """Prepares the library, which compares versions and finds out where `mx.array` objects store their arrays."""
    functions = [ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value for name in _OF_PYTHON]
    objects = (array_type, None, _for_results, TypeError, ValueError, RuntimeError)
    for it in objects:  # the library uses them until Python ends, even while modules are unloaded
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(it))
    api = functions + [id(it) for it in objects]
    begin = library.mlx_primitives_begin
    begin.restype = ctypes.c_char_p
    begin.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.py_object]
    error = begin((ctypes.c_void_p * len(api))(*api), object.__basicsize__, size, probe)
    if error is not None:
        raise ImportError("mlx_primitives does not fit this MLX or Python: %s" % error[1:].decode())


def _functions(library):
    """Returns the ops of the library's table as Python functions, by name."""
    table = library.mlx_primitives_table
    table.restype = ctypes.POINTER(_Method)
    make = ctypes.pythonapi.PyCFunction_NewEx
    make.restype = ctypes.py_object
    make.argtypes = [ctypes.POINTER(_Method), ctypes.c_void_p, ctypes.c_void_p]
    functions = {}
    for method in table():
        if method.name is None:
            return functions
        functions[method.name.decode()] = make(ctypes.pointer(method), None, None)


def _check(functions, probe):
    shared = functions["share"](probe)
    if shared.shape != probe.shape or shared.dtype != probe.dtype:
        raise ImportError("mlx_primitives does not fit this MLX or Python: a result does not arrive")


def failure(name, error):
    """Makes an exception from the error text of the function `name`."""
    text = error[1:].decode()
    return _ERRORS[chr(error[0])](text if text.startswith("[") else "[%s] %s" % (name, text))


def call(function, stream, *arguments):
    """Calls a function of the table. Its results are built on a stream, a device, or the default stream."""
    if stream is None:
        return function(*arguments)
    with mx.stream(stream):
        return function(*arguments)


def _info(name, *arguments):
    function = getattr(library, name)
    function.restype = ctypes.c_char_p
    text = function(*arguments)
    if text[:1] != b"I":
        raise failure(name, text)
    return text[1:].decode()


_for_results = (mx.array(0),)  # the arguments of an `mx.array` that becomes a result
_version = mx.__version__  # type: ignore[attr-defined]  # the stubs of MLX lack it
path = _choose(os.path.dirname(os.path.abspath(__file__)), _version)
library = _load(path)
_probe = mx.zeros((3, 5, 7), mx.float16)
_begin(library, mx.array, _probe, mx.array.__basicsize__)
functions = _functions(library)
_check(functions, _probe)
QUERY_POSITIONS = 8
version, mlx_version, cpu_kernels, gpu_kernels = _info("mlx_primitives_info").split("\n")


def cpu_threads():
    """Returns the number of threads that the CPU kernels use."""
    return int(_info("mlx_primitives_threads", ctypes.c_size_t(0)))


def set_cpu_threads(threads):
    """Sets the number of `cpu_threads`. Call it before the first op runs on the CPU."""
    if not 1 <= threads <= 1024:
        raise ValueError("[set_cpu_threads] expected 1 to 1024 threads, got %s" % threads)
    _info("mlx_primitives_threads", ctypes.c_size_t(threads))


def set_row_order(order):
    """Sets the order in which this thread's ops add up a row, and returns the previous one (see ops/_order.py)."""
    return library.mlx_primitives_row_order(ctypes.c_int(order))
