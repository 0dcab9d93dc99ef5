"""Generates the Python functions and methods that are just an op, from the op's entry.

An entry with a `function` gives ``gt.exp2``, ``x.exp2()``, ``x.exp2_()`` and ``gt.special.exp2``: each where torch has
that name, and the same for its aliases. An op whose Python function does more is written out in the file of its family.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable
from typing import Any, TypeVar

from gt.client.tensor.arguments import operands, require_tensor
from gt.client.tensor.emit import binary, call, call_into, call_many, unary
from gt.client.tensor.parameters import show_parameters
from gt.client.tensor.tensor import Tensor
from gt.missing import torch_names
from gt.ops import OPS, Attrs, Op
from gt.types import NUMBER_OF

Function = Callable[..., Any]
Generated = TypeVar("Generated", bound=Callable[..., Any])

#: place -> the names that torch has there: "" is its top, "Tensor" its methods
TORCH_NAMES = {place: frozenset(torch_names(place)) for place in ("", "Tensor", "special", "linalg")}


def pair(op: Op, a: Any, b: Any, attrs: Attrs = ()) -> Tensor:
    """A binary op with a tensor on either side, or on both."""
    if isinstance(a, Tensor):
        try:
            return binary(op, a, b, attrs)
        except KeyError:  # b is neither a tensor nor a Python number
            pass
    return call(op, operands(op.name, a, b), attrs)


def second_operand(op: Op, x: Tensor, other: Any) -> Any:
    """The second operand of an op in place: a tensor or a number."""
    if isinstance(other, Tensor) or type(other) in NUMBER_OF:
        return other
    return operands(op.name + "_", x, other)[1]


# -- one maker per value of `Op.function` --------------------------------------------------


def _unary(op: Op) -> Function:
    def function(input: Tensor) -> Tensor:
        return unary(op, input if isinstance(input, Tensor) else require_tensor(op.name, input))

    return function


def _unary_results(op: Op) -> Function:
    make: Any = namedtuple  # mypy accepts only literal names
    results = make(op.name, op.results)

    def function(input: Tensor) -> Any:
        return results(*call_many(op, (require_tensor(op.name, input),)))

    return function


def _tensors(op: Op) -> Function:
    def function(input: Tensor, other: Tensor) -> Tensor:
        return binary(op, require_tensor(op.name, input), require_tensor(op.name, other))

    return function


def _tensor_and_either(op: Op) -> Function:
    def function(input: Tensor, other: Any) -> Tensor:
        return pair(op, require_tensor(op.name, input), other)

    return function


def _either(op: Op) -> Function:
    def function(input: Any, other: Any) -> Tensor:
        return pair(op, input, other)

    return function


_FUNCTIONS = {"t": _unary, "tt": _tensors, "te": _tensor_and_either, "ee": _either}


def _unary_(op: Op) -> Function:
    def method(input: Tensor) -> Tensor:
        return call_into(op, input, ())

    return method


def tensors_(op: Op) -> Function:
    """In place, with a tensor as the second operand."""

    def method(input: Tensor, other: Tensor) -> Tensor:
        return call_into(op, input, (require_tensor(op.name + "_", other),))

    return method


def either_(op: Op) -> Function:
    """In place, with a tensor or a number as the second operand."""

    def method(input: Tensor, other: Any) -> Tensor:
        return call_into(op, input, (second_operand(op, input, other),))

    return method


_IN_PLACE = {"t": _unary_, "tt": tensors_, "te": either_, "ee": either_}

# -- by name -------------------------------------------------------------------------------


def functions() -> dict[str, Function]:
    """Every function that is just an op, also under its aliases."""
    functions: dict[str, Function] = {}
    for op in OPS.values():
        if op.function:
            functions.update(dict.fromkeys((op.name, *op.aliases), function_of(op)))
    return functions


def function_of(op: Op) -> Function:
    """The Python function that is just this op."""
    function = (_unary_results if op.results else _FUNCTIONS[op.function])(op)
    place = next((f"{place}." for place in ("special", "linalg") if op.name in TORCH_NAMES[place]), "")
    place = "" if op.name in TORCH_NAMES[""] else place
    function.__module__ = "gt.functions.derived"  # where pickle finds it
    return documented(function, op.name, f"{op.doc}\n\nSee `torch.{place}{op.name}`.")


def methods_in_place() -> dict[str, Function]:
    """The in-place methods that are just an op, where torch has them."""
    methods: dict[str, Function] = {}
    for op in OPS.values():
        names = [f"{name}_" for name in (op.name, *op.aliases) if op.function and f"{name}_" in TORCH_NAMES["Tensor"]]
        if names:
            method = documented(_IN_PLACE[op.function](op), names[0], with_prefix("In place: ", op.doc))
            methods.update(dict.fromkeys(names, method))
    return methods


def published(functions: dict[str, Function], place: str) -> dict[str, Function]:
    """Those of the functions whose names torch has in this place, a key of `TORCH_NAMES`."""
    return {name: function for name, function in functions.items() if name in TORCH_NAMES[place]}


def with_prefix(prefix: str, doc: str | None) -> str:
    """A docstring after a few words, such as "In place: ". Under ``python -OO`` there are no docstrings."""
    return f"{prefix}{doc[0].lower()}{doc[1:]}" if doc else ""


def documented(function: Generated, name: str, doc: str, like: Function | None = None) -> Generated:
    """Give a generated function its name and docstring, and the parameters of ``like`` if it only passes them on."""
    function.__name__ = function.__qualname__ = name
    function.__doc__ = doc
    if like is not None:
        show_parameters(function, like, first="input", returns="Tensor")
    return function
