"""Checks the names in gradient rules: a wrong one is an error at import, not at the first backward pass.

A rule emits ops by name, through the methods and functions in `EMITTERS`. In a function that uses one of these, every
word in quotes is the name of an op or of an attribute, so the constants of its code are compared with the table. A rule
uses methods of tensors, too; `check_methods` compares these once the tensor class is complete. Neither calls a rule,
parses source or imports anything.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from types import CodeType, FunctionType
from typing import Any

from gt.ops.op import Op

#: How rules emit ops: methods of a tensor, and the functions of `gt.ops.gradient_rules`.
EMITTERS = frozenset(("_op", "_ops", "one", "many", "chosen"))
#: Attributes that a rule may use of a shape, a dtype, a type or a list.
OTHER_ATTRIBUTES = frozenset(("append", "get", "items", "itemsize", "kind", "name", "pop"))


class RuleError(Exception):
    """A gradient rule uses a name that does not exist."""


def check_op_names(ops: Mapping[str, Op]) -> None:
    """Every op that a gradient rule emits is in the table."""
    known = _attribute_names(ops.values()).union(ops)
    for op, rule, function in _functions(ops.values()):
        if EMITTERS.isdisjoint(function.__code__.co_names):
            continue
        for word in _words(function):
            if word not in known:
                raise RuleError(f"{_place(op, rule, function)} emits the op {word!r}, which does not exist")


def check_methods(ops: Mapping[str, Op], tensor: type) -> None:
    """Every method that a gradient rule uses is one of the tensor's."""
    known = {*dir(tensor), *OTHER_ATTRIBUTES, *vars(builtins)}
    for op, rule, function in _functions(ops.values()):
        for code in _codes(function.__code__):
            for name in code.co_names:
                if name not in known and name not in function.__globals__:
                    raise RuleError(f"{_place(op, rule, function)} uses {name!r}, which a tensor does not have")


def _place(op: Op, rule: str, function: FunctionType) -> str:
    code = function.__code__
    return f"the gradient rule {rule} of {op.name!r} ({code.co_qualname}, {code.co_filename}:{code.co_firstlineno})"


def _functions(ops: Iterable[Op]) -> Iterator[tuple[Op, str, FunctionType]]:
    """(op, which of its rules, a function that the rule is or calls), each function once."""
    seen: set[int] = set()
    for op in ops:
        rules = op.vjp if isinstance(op.vjp, tuple) else (op.vjp,)
        for i, rule in enumerate(rules):
            name = f"for operand {i}" if isinstance(op.vjp, tuple) else "for all operands"
            for function in _reached(rule, seen):
                yield op, name, function


def _reached(value: Any, seen: set[int]) -> Iterator[FunctionType]:
    """The function, those in its closure, and those of `gt.ops` that it calls by their names."""
    if isinstance(value, partial):
        value = value.func
    if not isinstance(value, FunctionType) or id(value) in seen or not value.__module__.startswith("gt.ops"):
        return
    seen.add(id(value))
    yield value
    for cell in value.__closure__ or ():
        yield from _reached(cell.cell_contents, seen)
    for code in _codes(value.__code__):
        for name in code.co_names:
            yield from _reached(value.__globals__.get(name), seen)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """The code of a function and of the functions inside it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _attribute_names(ops: Iterable[Op]) -> set[str]:
    names: set[str] = set()
    for op in ops:
        for function in (op.infer, op.kernel, op.torch):
            code = getattr(function, "__code__", None)
            if code is not None:
                names.update(code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount])
    return names


def _words(function: FunctionType) -> Iterator[str]:
    """The texts in the function's code that may be names: no docstring, no sentence."""
    for code in _codes(function.__code__):
        for constant in code.co_consts:
            if isinstance(constant, str) and " " not in constant and constant != function.__doc__:
                yield constant
    for cell in function.__closure__ or ():
        if isinstance(cell.cell_contents, str):
            yield cell.cell_contents
