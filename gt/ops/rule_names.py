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
        for word in _words(function).difference(known):
            raise RuleError(f"{_place(op, rule, function)} emits the op {word!r}, which does not exist")


def check_methods(ops: Mapping[str, Op], tensor: type) -> None:
    """Every method that a gradient rule uses is one of the tensor's."""
    known = {*dir(tensor), *OTHER_ATTRIBUTES, *vars(builtins)}
    for op, rule, function in _functions(ops.values()):
        for code in _codes(function):
            for name in set(code.co_names).difference(known, function.__globals__):
                raise RuleError(f"{_place(op, rule, function)} uses {name!r}, which a tensor does not have")


def _place(op: Op, rule: int, function: FunctionType) -> str:
    code = function.__code__
    which = f"for operand {rule}" if isinstance(op.vjp, tuple) else "for all operands"
    return f"the gradient rule {which} of {op.name!r} ({code.co_name}, {code.co_filename}:{code.co_firstlineno})"


def _functions(ops: Iterable[Op]) -> Iterator[tuple[Op, int, FunctionType]]:
    """(op, the number of its rule, a function that the rule is or uses), each function once."""
    seen: set[int] = set()
    for op in ops:
        for number, rule in enumerate(op.vjp if isinstance(op.vjp, tuple) else (op.vjp,)):
            waiting = [rule]
            while waiting:
                function = waiting.pop()
                if type(function) is FunctionType and id(function) not in seen:
                    seen.add(id(function))
                    if function.__module__.startswith("gt.ops"):
                        yield op, number, function
                        waiting += _used(function)


def _used(function: FunctionType) -> list[Any]:
    """What is in its closure, and the global values that it names."""
    values = [cell.cell_contents for cell in function.__closure__ or ()]
    for code in _codes(function):
        values += [function.__globals__.get(name) for name in code.co_names]
    return [value.func if isinstance(value, partial) else value for value in values]


def _codes(function: FunctionType) -> list[CodeType]:
    """The code of a function, and of the functions inside it."""
    codes = [function.__code__]
    for code in codes:
        codes += [constant for constant in code.co_consts if isinstance(constant, CodeType)]
    return codes


def _attribute_names(ops: Iterable[Op]) -> set[str]:
    names: set[str] = set()
    for op in ops:
        for function in (op.infer, op.kernel, op.torch):
            code = getattr(function, "__code__", None)
            if code is not None and code.co_kwonlyargcount:
                names.update(code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount])
    return names


def _words(function: FunctionType) -> set[str]:
    """The texts in a function that emits ops that may be names: no docstring, no sentence."""
    codes = _codes(function)
    if all(EMITTERS.isdisjoint(code.co_names) for code in codes):
        return set()
    texts = [cell.cell_contents for cell in function.__closure__ or ()]
    for code in codes:
        texts += code.co_consts
    return {text for text in texts if isinstance(text, str) and " " not in text and text != function.__doc__}
