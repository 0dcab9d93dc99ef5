"""Checks the names in gradient rules: a wrong one is an error at import, not at the first backward pass.

A rule emits ops by name, through the methods and functions in `EMITTERS`. In a function that uses one of these, every
word in quotes is the name of an op or of an attribute, so the constants of its code are compared with the table. A rule
uses methods of tensors, too, so the names in its code are compared with those of the tensor class. The check calls no
rule, parses no source and imports nothing; it takes a few milliseconds.
"""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from types import CodeType, FunctionType
from typing import Any

from gt.ops.op import Op

#: How rules emit ops: methods of a tensor, and the functions of `gt.ops.gradient_rules`.
EMITTERS = frozenset(("_op", "_op_", "_ops", "one", "many", "chosen"))
#: Attributes that a rule may use of a shape, a dtype, a type, a list or a dict.
OTHER_ATTRIBUTES = frozenset(("append", "get", "items", "itemsize", "kind", "name", "pop"))


class RuleError(Exception):
    """A gradient rule uses a name that does not exist."""


def check_rules(ops: Mapping[str, Op], tensor: type) -> None:
    """Every op that a gradient rule emits is in the table, and every method that it uses is one of the tensor's."""
    words = _attribute_names(ops.values()).union(ops)
    methods = {*dir(tensor), *OTHER_ATTRIBUTES, *vars(builtins)}
    for op, rule, function, codes in _functions(ops.values()):
        names = set().union(*[code.co_names for code in codes])
        if not names <= methods:
            for name in sorted(names - methods):
                if name not in function.__globals__:
                    raise RuleError(f"{_place(op, rule, function)} uses {name!r}, which a tensor does not have")
        if not EMITTERS.isdisjoint(names):
            for word in sorted(_words(function, codes, words) - words):
                raise RuleError(f"{_place(op, rule, function)} emits the op {word!r}, which does not exist")


def _place(op: Op, rule: int, function: FunctionType) -> str:
    code = function.__code__
    which = f"for operand {rule}" if isinstance(op.vjp, tuple) else "for all operands"
    return f"the gradient rule {which} of {op.name!r} ({code.co_name}, {code.co_filename}:{code.co_firstlineno})"


def _functions(ops: Iterable[Op]) -> Iterator[tuple[Op, int, FunctionType, list[CodeType]]]:
    """(op, the number of its rule, a function that the rule is or uses, its code), each function once."""
    seen: set[Any] = set()
    for op in ops:
        for number, rule in enumerate(op.vjp if isinstance(op.vjp, tuple) else (op.vjp,)):
            waiting = [rule]
            while waiting:
                function = waiting.pop()
                if isinstance(function, partial):
                    function = function.func
                if type(function) is FunctionType and function not in seen:
                    seen.add(function)
                    if function.__module__.startswith("gt.ops"):
                        codes = _codes(function.__code__)
                        yield op, number, function, codes
                        waiting += [cell.cell_contents for cell in function.__closure__ or ()]
                        get = function.__globals__.get
                        waiting += [get(name) for code in codes for name in code.co_names]


def _codes(code: CodeType) -> list[CodeType]:
    """The code of a function, and of the functions inside it."""
    codes = [code]
    for outer in codes:
        codes += [constant for constant in outer.co_consts if type(constant) is CodeType]
    return codes


def _attribute_names(ops: Iterable[Op]) -> set[str]:
    names: set[str] = set()
    for op in ops:
        for function in (op.infer, op.kernel, op.torch):
            code = getattr(function, "__code__", None)
            if code is not None and code.co_kwonlyargcount:
                names.update(code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount])
    return names


def _words(function: FunctionType, codes: list[CodeType], known: set[str]) -> set[str]:
    """The texts that may be names: single words."""
    texts = [cell.cell_contents for cell in function.__closure__ or ()]
    for code in codes:
        texts += code.co_consts
        in_tuples = [text for constant in code.co_consts if type(constant) is tuple for text in constant]
        if any(type(text) is str and text not in known for text in in_tuples):
            texts += _folded_arguments(code)
    return {text for text in texts if isinstance(text, str) and " " not in text}


def _folded_arguments(code: CodeType) -> list[Any]:
    """The arguments that Python 3.12 and later keep as one tuple: ``("name",)`` in ``g._op("name", **attrs, dim=1)``.

    The code pushes that tuple and then begins the map of the keywords. Other tuples are names of keywords, or data.
    """
    from dis import get_instructions  # slow, and for few functions

    arguments: list[Any] = []
    before = None
    for instruction in get_instructions(code):
        if instruction.opname == "BUILD_MAP" and isinstance(before, tuple):
            arguments += before
        before = instruction.argval if instruction.opname == "LOAD_CONST" else None
    return arguments
