"""Which function of GT an overload of ATen is. Three places are searched, in this order:

1. `OVERLOADS` of `gt.torch_device.compositions.table`: what takes other arguments, or is several instructions.
2. The op of that name, or whose entry names the overload in `Op.aten`.
3. GT's Python function of the same name, in the place where torch has it: ``linalg_cross`` is `gt.linalg.cross`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from inspect import Parameter
from types import FunctionType
from typing import Any

from gt.client.tensor.tensor import Tensor
from gt.functions import inplace
from gt.functions.joining import broadcast_tensors
from gt.missing import Missing
from gt.ops import OPS, Op
from gt.torch_device.compositions.table import OVERLOADS
from gt.torch_device.kernels import Function, op_function

#: ATen's prefix of a name -> the module of GT that has it
_PREFIXES = {"linalg_": "gt.linalg", "fft_": "gt.fft", "special_": "gt.special", "": "gt.nn.functional"}
#: Overload or name -> its op.
_BY_NAME: dict[str, Op] = {
    name: op for op in OPS.values() for name in ((op.name, *op.aliases) if op.function else ()) + op.aten
}


def op_of(overload: str) -> Op | None:
    """The op that is an overload, ``"mul.Tensor"``."""
    return _BY_NAME.get(overload) or _BY_NAME.get(overload.partition(".")[0])


def composition_of(overload: str) -> Function | None:
    return OVERLOADS.get(overload) or OVERLOADS.get(overload.partition(".")[0])


def function_of(overload: str, schema: Any) -> Function | None:
    """GT's function that is an overload which writes nothing; None if there is none."""
    base = overload.partition(".")[0]
    if (composition := composition_of(overload)) is not None:
        return composition
    op = op_of(overload)
    function = None if op is None else op_function(op, schema)
    if function is None and (found := python_function(base)) is not None and _accepts(found, schema):
        function = found
    if function is not None and op is not None and op.file == "activations" and op.operands == "tt":
        function = broadcasting(function)
    return function


def broadcasting(function: Function) -> Function:
    """The gradient (g, x) of an activation for operands of different shapes, which `torch.vmap` passes."""

    def gradient(g: Tensor, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        if g._type.shape != x._type.shape:
            g, x = broadcast_tensors(g, x)
        return function(g, x, *args, **kwargs)

    return gradient


def python_function(name: str) -> Function | None:
    """GT's function, or method, of that name."""
    for place, short in _places(name):
        found = getattr(place, "__dict__", {}).get(short)
        if isinstance(found, FunctionType) and not isinstance(found, Missing):
            return found
    return None


def _accepts(function: Function, schema: Any) -> bool:
    """Whether the function takes as many positional arguments as the overload."""
    kinds = [p.kind for p in inspect.signature(function).parameters.values()]
    positional = sum(kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD) for kind in kinds)
    given = sum(not argument.kwarg_only for argument in schema.arguments)
    return given <= positional or Parameter.VAR_POSITIONAL in kinds


def method_in_place(name: str) -> Callable[..., Any] | None:
    """GT's method of that name, which ends in "_"."""
    return inplace.INPLACE.get(name)


def _places(name: str) -> Iterator[tuple[Any, str]]:
    yield import_module("gt"), name
    for prefix, module in _PREFIXES.items():
        if name.startswith(prefix):
            yield import_module(module), name.removeprefix(prefix)
    yield Tensor, name
