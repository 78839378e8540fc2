"""Installs the replacements, and restores the originals."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
from typing import Any, Callable, Iterator, NamedTuple

from .. import _evaluate
from . import _blocks, _core, _experts, _layers, _models
from ._hook import Hook, on_nvidia
from ._imports import after_import
from ._report import ModuleReport, Report, of_functions, of_modules


class Target(NamedTuple):
    """A replaced attribute of a module or of a class in it, such as `QuantizedLinear.__call__`.

    On an NVIDIA GPU only the targets with `nvidia` are replaced, since MLX's ops are as fast or faster for the others.
    """

    module: str
    path: str
    make: Callable[[Hook], Callable]
    nvidia: bool = False  # whether it is replaced on an NVIDIA GPU too


TARGETS = (
    Target("mlx.core.fast", "rms_norm", _core.rms_norm),
    Target("mlx.core.fast", "layer_norm", _core.layer_norm),
    Target("mlx.core.fast", "rope", _core.rope),
    Target("mlx.core.fast", "scaled_dot_product_attention", _core.attention),
    Target("mlx.core", "quantized_matmul", _core.quantized_matmul, nvidia=True),
    Target("mlx.core", "eval", _core.evaluation(_evaluate.eval), nvidia=True),
    Target("mlx.core", "async_eval", _core.evaluation(_evaluate.async_eval), nvidia=True),
    Target("mlx.nn", "QuantizedLinear.__call__", _layers.quantized_linear, nvidia=True),
    Target("mlx.nn", "QuantizedEmbedding.__call__", _layers.quantized_embedding),
    Target("mlx.nn", "QuantizedEmbedding.as_linear", _layers.quantized_as_linear, nvidia=True),
    Target("mlx.nn", "Linear.__call__", _layers.linear),
    Target("mlx.nn", "Embedding.as_linear", _layers.as_linear),
    Target("mlx.nn", "silu", _layers.activation("silu")),
    Target("mlx.nn", "gelu", _layers.activation("gelu")),
    Target("mlx.nn", "gelu_approx", _layers.activation("gelu_tanh")),
    Target("mlx.nn", "SiLU.__call__", _layers.activation_layer("silu")),
    Target("mlx.nn.losses", "cross_entropy", _layers.cross_entropy),
    Target("mlx_lm.models.activations", "swiglu", _models.swiglu),
    Target("mlx_lm.tuner.lora", "LoRALinear.__call__", _models.lora_linear),
    Target("mlx_lm.models.llama", "TransformerBlock.__call__", _blocks.llama, nvidia=True),
    Target("mlx_lm.models.base", "quantized_scaled_dot_product_attention", _models.quantized_attention),
    Target("mlx_lm.models.switch_layers", "SwitchGLU.__call__", _models.switch_glu),
    Target("mlx_lm.models.switch_layers", "QuantizedSwitchLinear.__call__", _experts.switch_linear),
    Target("mlx_lm.models.switch_layers", "SwitchLinear.__call__", _experts.switch_linear),
)


class _State:
    lock = threading.RLock()
    hooks: list[tuple[object, str, Hook]] = []
    patched = False
    nvidia = False  # whether the patch is for an NVIDIA GPU


def _module(name: str) -> object:
    """Returns a module by its name. Some parts of `mlx.core` cannot be imported by name."""
    if name.startswith("mlx.core"):
        import mlx.core as mx

        return mx.fast if name.endswith("fast") else mx
    return importlib.import_module(name)


def _replace(target: Target) -> None:
    owner: Any = _module(target.module)
    *outer, name = target.path.split(".")
    for part in outer:
        owner = getattr(owner, part)
    original = vars(owner)[name]
    hook = Hook("%s.%s" % (target.module, target.path), original, bool(outer))
    hook.replacement = target.make(hook)
    if not outer:
        hook.replacement.__doc__ = original.__doc__
        _exchange({id(original): hook.replacement})
    setattr(owner, name, hook.replacement)
    _State.hooks.append((owner, name, hook))


def _exchange(new: dict[int, Callable]) -> None:
    """Replaces functions wherever a module refers to them, since many modules import functions by value."""
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if type(names) is dict:
            for name, value in list(names.items()):
                if id(value) in new:
                    names[name] = new[id(value)]


def _replace_in(name: str) -> None:
    with _State.lock:
        if _State.patched:
            for target in TARGETS:
                if target.module == name and (target.nvidia or not _State.nvidia):
                    _replace(target)


def patch() -> None:
    """Makes `mlx.core`, `mlx.nn` and `mlx_lm` use the ops of this package for the calls that the ops support.

    Modules of mlx-lm that are imported after this call are patched when they are imported. A second call does nothing.
    """
    with _State.lock:
        if _State.patched:
            return
        _State.hooks = []
        _State.patched, _State.nvidia = True, on_nvidia()
        for name in dict.fromkeys(target.module for target in TARGETS):
            if name in sys.modules or not name.startswith("mlx_lm"):
                _replace_in(name)
            else:
                after_import(name, _replace_in)


def unpatch() -> None:
    """Restores every original. Functions that `mx.compile` has traced already keep the ops of the trace."""
    with _State.lock:
        if not _State.patched:
            return
        _State.patched = False
        for owner, name, hook in reversed(_State.hooks):
            if vars(owner).get(name) is hook.replacement:
                setattr(owner, name, hook.original)
        _exchange({id(hook.replacement): hook.original for _, _, hook in _State.hooks})
        _experts.forget()


def is_patched() -> bool:
    """Whether the functions are replaced."""
    return _State.patched


@contextlib.contextmanager
def patched() -> Iterator[None]:
    """Patches for the duration of a `with` block, unless the functions are patched already."""
    before = _State.patched
    patch()
    try:
        yield
    finally:
        if not before:
            unpatch()


def report(model: Any = None) -> tuple[Report, ...] | tuple[ModuleReport, ...]:
    """Reports the calls of the replaced functions since `patch`, or, for a `model`, the ops that its modules use.

    The result prints as a table.
    """
    hooks = [hook for _, _, hook in _State.hooks]
    return of_functions(hooks) if model is None else of_modules(model, hooks)
