"""Reads the data in a pickle without running any of it.

A pickle is a program for a stack machine. Here its instructions are followed as far as they describe data: numbers,
texts, tuples, lists and dicts. A class or function that it names stays a `PickledName`, and a call of it a
`PickledCall`: nothing is imported or called. The caller looks at the names that it expects.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from typing import Any

#: The most instructions that are followed.
MAX_INSTRUCTIONS = 50_000_000


class PickledName:
    """A class, function or other object that a pickle names, as ``module.name``."""

    def __init__(self, text: str) -> None:
        self.text = text


class PickledCall:
    """An object that a pickle describes by a call: what is called, the arguments, and the state that it is given."""

    def __init__(self, name: str, arguments: tuple[Any, ...]) -> None:
        self.name, self.arguments = name, arguments
        self.state: Any = None


class Persistent:
    """A reference to something outside of the pickle."""

    def __init__(self, id: Any) -> None:
        self.id = id


_MARK = object()


class _Machine:
    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop(self) -> Any:
        return self.stack.pop()

    def pop_to_mark(self) -> list[Any]:
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise ValueError("no mark")
        items = self.stack[at + 1 :]
        del self.stack[at:]
        return items

    def tuple_of(self, count: int) -> None:
        items = tuple(self.stack[-count:])
        if len(items) < count:
            raise ValueError("too few items")
        self.stack[-count:] = [items]

    def extend(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list):
            raise ValueError("a list was expected")
        target.extend(items)

    def update(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if isinstance(target, PickledCall):  # an ordered dict
            return
        if not isinstance(target, dict):
            raise ValueError("a dict was expected")
        target.update(zip(items[::2], items[1::2], strict=True))

    def call(self) -> None:
        arguments, called = self.pop(), self.pop()
        if not isinstance(called, PickledName) or not isinstance(arguments, tuple):
            raise ValueError("it calls something other than a name")
        self.push(PickledCall(called.text, arguments))

    def build(self) -> None:
        state = self.pop()
        if not isinstance(self.stack[-1], PickledCall):
            raise ValueError("it gives a state to something other than an object")
        self.stack[-1].state = state

    def name(self, text: str) -> None:
        module, _, name = text.partition(" ")
        self.push(PickledName(f"{module}.{name}"))

    def stack_name(self) -> None:
        name, module = self.pop(), self.pop()
        self.push(PickledName(f"{module}.{name}"))

    def remember(self, number: int | None) -> None:
        self.memo[len(self.memo) if number is None else number] = self.stack[-1]


def _nothing(machine: _Machine, argument: Any) -> None:
    pass


def _push_argument(machine: _Machine, argument: Any) -> None:
    machine.push(argument)


#: instruction -> what it does: (machine, its argument) -> None
INSTRUCTIONS: dict[str, Callable[[_Machine, Any], None]] = {
    **dict.fromkeys(("PROTO", "FRAME", "STOP"), _nothing),
    **dict.fromkeys(
        (
            *("BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINFLOAT", "INT", "FLOAT", "LONG"),
            *("SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8", "SHORT_BINBYTES", "BINBYTES", "BINBYTES8"),
        ),
        _push_argument,
    ),
    "NONE": lambda machine, _: machine.push(None),
    "NEWTRUE": lambda machine, _: machine.push(True),
    "NEWFALSE": lambda machine, _: machine.push(False),
    "MARK": lambda machine, _: machine.push(_MARK),
    "POP": lambda machine, _: machine.pop(),
    "EMPTY_TUPLE": lambda machine, _: machine.push(()),
    "EMPTY_LIST": lambda machine, _: machine.push([]),
    "EMPTY_DICT": lambda machine, _: machine.push({}),
    "TUPLE": lambda machine, _: machine.push(tuple(machine.pop_to_mark())),
    "TUPLE1": lambda machine, _: machine.tuple_of(1),
    "TUPLE2": lambda machine, _: machine.tuple_of(2),
    "TUPLE3": lambda machine, _: machine.tuple_of(3),
    "APPEND": lambda machine, _: machine.extend([machine.pop()]),
    "APPENDS": lambda machine, _: machine.extend(machine.pop_to_mark()),
    "SETITEM": lambda machine, _: machine.update([machine.pop(), machine.pop()][::-1]),
    "SETITEMS": lambda machine, _: machine.update(machine.pop_to_mark()),
    "GLOBAL": _Machine.name,
    "STACK_GLOBAL": lambda machine, _: machine.stack_name(),
    "REDUCE": lambda machine, _: machine.call(),
    "NEWOBJ": lambda machine, _: machine.call(),
    "BUILD": lambda machine, _: machine.build(),
    "MEMOIZE": _Machine.remember,
    **dict.fromkeys(("BINPUT", "LONG_BINPUT"), _Machine.remember),
    **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda machine, number: machine.push(machine.memo[number])),
    "BINPERSID": lambda machine, _: machine.push(Persistent(machine.pop())),
}


def parse(data: bytes) -> Any:
    """What a pickle describes. Raises ValueError if it is malformed, or describes more than data."""
    machine = _Machine()
    try:
        for count, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if count > MAX_INSTRUCTIONS:
                raise ValueError("it is too long")
            if (step := INSTRUCTIONS.get(opcode.name)) is None:
                raise ValueError(f"the instruction {opcode.name} is not read")
            step(machine, argument)
        (result,) = machine.stack
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, UnicodeError) as error:
        raise ValueError(f"the pickle is malformed: {error}") from None
    return result
