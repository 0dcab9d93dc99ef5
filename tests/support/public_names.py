"""Every public callable of GT, by its full name: functions, classes, methods and properties."""

from __future__ import annotations

import importlib
import inspect
import types
from collections.abc import Iterator
from typing import Any

import gt

#: The public namespaces; the empty one is gt itself.
NAMESPACES = (
    "", "accelerator", "amp", "ao.quantization", "array_api", "autograd", "autograd.function", "autograd.functional",
    "autograd.graph", "backends.cuda", "backends.cudnn", "backends.mkl", "backends.mkldnn", "backends.mps",
    "backends.openmp", "backends.opt_einsum", "backends.settings", "compiler", "cuda", "cuda.amp", "data", "debug",
    "distributed", "func", "fx", "hub", "jit", "launch", "library", "linalg", "multiprocessing", "nn", "nn.attention",
    "nn.attention.flex_attention", "nn.functional", "nn.init", "nn.parallel", "nn.utils", "nn.utils.fusion",
    "nn.utils.parametrizations", "nn.utils.parametrize", "nn.utils.rnn", "optim", "optim.lr_scheduler",
    "optim.swa_utils", "saving", "serialization", "signal", "sparse", "special", "testing", "utils.checkpoint",
)  # fmt: skip


def namespace(place: str) -> Any:
    if not place:
        return gt
    return importlib.import_module(f"gt.{place}")


def names_in(place: str) -> list[str]:
    module = namespace(place)
    if place == "":
        return sorted({*gt.__all__, *gt._LAZY_NAMES})
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return sorted(listed)
    # a module without __all__ publishes what it defines
    return [n for n, x in vars(module).items() if n[0] != "_" and getattr(x, "__module__", "") == module.__name__]


def public_callables() -> dict[str, Any]:
    callables: dict[str, Any] = {}
    for place in NAMESPACES:
        for name in names_in(place):
            value, path = getattr(namespace(place), name), f"gt.{place}.{name}".replace("..", ".")
            if isinstance(value, type):
                callables[path] = value
                callables.update(_members(path, value))
            elif callable(value):
                callables[path] = value
    return callables


def _members(path: str, kind: type) -> Iterator[tuple[str, Any]]:
    """The methods and properties that a class defines; errors have none of their own."""
    if issubclass(kind, BaseException):
        return
    for name, value in vars(kind).items():
        if name.startswith("_"):
            continue
        if isinstance(value, property):
            yield f"{path}.{name}", value
        elif isinstance(value, types.FunctionType | staticmethod | classmethod) or inspect.isbuiltin(value):
            yield f"{path}.{name}", getattr(kind, name)
