"""Reports which functions and modules ran on our ops, and why others did not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from ._hook import Hook


class Report(NamedTuple):
    """The calls of a replaced function since `patch`: the number that our ops computed, and why MLX computed others."""

    name: str
    served: int
    reasons: dict[str, int]

    def __str__(self) -> str:
        lines = []
        if self.served or not self.reasons:
            lines.append("%-66s %8d ours" % (self.name, self.served))
        lines += ["%-66s %8d MLX's: %s" % (self.name, count, why) for why, count in self.reasons.items()]
        return "\n".join(lines)


class ModuleReport(NamedTuple):
    """The modules of one class in a model: their number, and the replaced functions that their calls use."""

    name: str
    modules: int
    functions: tuple[str, ...]

    def __str__(self) -> str:
        what = ", ".join(self.functions) or "MLX's: its call names no function that is replaced"
        return "%-48s %6d  %s" % (self.name, self.modules, what)


class _Table(tuple):
    """A tuple of reports, which prints as a table."""

    def __str__(self) -> str:
        return "\n".join(map(str, self))

    __repr__ = __str__


def of_functions(hooks: list[Hook]) -> tuple[Report, ...]:
    """Returns a report for each replaced function."""
    return _Table(Report(hook.name, hook.served, dict(hook.reasons)) for hook in hooks)


def of_modules(model: Any, hooks: list[Hook]) -> tuple[ModuleReport, ...]:
    """Returns a report for each class of modules in an `mlx.nn.Module`, except classes of mere containers."""
    counts: dict[type, int] = {}
    holders = set()
    for module in model.modules():
        counts[type(module)] = counts.get(type(module), 0) + 1
        if module.children():
            holders.add(type(module))
    functions = {hook.name.rsplit(".", 1)[-1]: hook.name for hook in hooks if not hook.of_class}
    methods = {id(hook.replacement): hook.name for hook in hooks}
    rows = []
    for kind, count in counts.items():
        call: Any = getattr(kind, "__call__", None)
        own = methods.get(id(call))
        names = getattr(getattr(call, "__code__", None), "co_names", ())
        found = (own,) if own else tuple(functions[name] for name in names if name in functions)
        if found or kind not in holders:
            rows.append(ModuleReport("%s.%s" % (kind.__module__, kind.__qualname__), count, found))
    return _Table(rows)
