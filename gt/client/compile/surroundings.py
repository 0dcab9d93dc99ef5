"""The variables around a compiled function: those of its file and of the functions around it.

A number or a flag there decides what the function does, just as an argument does. So a recording is made for certain
values of the variables that the code names. The code is that of the function, of the functions of the same file that
it names, and of the modules that it calls.

If the function is a method of an object, or an object that is called, then the attributes that its code names are such
variables too.

A variable that the function itself changes, such as a counter, is not compared: no call would be like the one before.
"""

from __future__ import annotations

import dis
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from gt.client.compile.module_states import MAX_DEPTH, MAX_ITEMS, PLAIN, TABLES
from gt.client.tensor.tensor import Tensor

_MISSING, _CHANGED = "no such variable", "changed by the function"


class Surroundings:
    """The variables that a function reads, and their values in a form that can be compared."""

    def __init__(self) -> None:
        self._variables: list[_Variable] = []
        self._functions: set[FunctionType] = set()

    def include(self, functions: Iterable[Any]) -> None:
        """Compare the variables of these functions as well, and of those they name."""
        pending = [inner for function in functions if (inner := _plain_function(function)) is not None]
        while pending:
            function, owner = pending.pop()
            # a function that exec made may have no module
            if function in self._functions or (function.__module__ or "").partition(".")[0] == "gt":
                continue
            self._functions.add(function)
            for variable in (*_variables(function), *_attributes(function, owner)):
                value = variable.read()
                if isinstance(value, ModuleType) and value.__name__.partition(".")[0] == "gt":
                    continue
                self._variables.append(variable)
                named = _plain_function(value)
                if named is not None and named[0].__globals__ is function.__globals__:
                    pending.append(named)
            if owner is not None:  # its other methods that the function names
                methods = [getattr(type(owner), name, None) for name in _names_in(function.__code__)[0]]
                pending += [(method, owner) for method in methods if isinstance(method, FunctionType)]

    def state(self) -> tuple[Any, ...]:
        """The values of all variables now."""
        return tuple([variable.state() for variable in self._variables])

    def skip_changed(self, before: tuple[Any, ...], after: tuple[Any, ...]) -> None:
        """From now on, leave out the variables that differ between these two states."""
        for variable, old, new in zip(self._variables, before, after, strict=False):
            if old != new:
                variable.changes = True


class _Variable:
    """One variable of a function: how to read it, and the attributes of it that may matter."""

    __slots__ = ("_identities", "_names", "_whole", "changes", "read")

    def __init__(self, read: Callable[[], Any], names: frozenset[str]) -> None:
        self.read, self._names, self.changes = read, names, False
        #: id -> the last object with it
        self._identities: dict[int, _Identity] = {}
        #: the last value, if nothing in it is compared
        self._whole: _Identity | None = None

    def state(self) -> Any:
        if self.changes:
            return _CHANGED
        x = self.read()
        if self._whole is not None and self._whole.reference() is x:
            return self._whole
        state = self._state(x, MAX_DEPTH)
        self._whole = state if isinstance(state, _Identity) else None
        return state

    def _state(self, x: Any, depth: int) -> Any:
        kind = type(x)
        if kind in PLAIN:
            return kind, x.hex() if kind is float else x  # 0.0 equals -0.0, and NaN does not equal itself
        if isinstance(x, Tensor):
            return Tensor, id(x) if x._view is not None else x._cell.id, x._node is not None
        if depth and kind in (list, tuple) and len(x) <= MAX_ITEMS:
            return kind, *[self._state(item, depth - 1) for item in x]
        if depth and kind is dict and len(x) <= MAX_ITEMS:
            return dict, *[(self._state(key, 0), self._state(item, depth - 1)) for key, item in x.items()]
        # GT's own modules and optimizers are compared where they are called
        if not depth or kind is FunctionType or kind.__module__.startswith("gt."):
            return self._identity(x)
        attributes = getattr(x, "__dict__", {})
        return self._identity(x), *[
            (name, self._state(attributes[name], depth - 1)) for name in self._names if name in attributes
        ]

    def _identity(self, x: Any) -> _Identity:
        known = self._identities.get(id(x))
        if known is None or known.reference() is not x:
            known = _Identity(x)
            if len(self._identities) >= MAX_ITEMS:
                self._identities.clear()
            self._identities[id(x)] = known
        return known


class _Identity:
    """Equal only to one of the same object. It does not keep the object alive, where Python allows that."""

    __slots__ = ("_hash", "reference")

    def __init__(self, x: Any) -> None:
        self._hash = id(x)
        try:
            self.reference: Callable[[], Any] = weakref.ref(x)
        except TypeError:
            self.reference = functools.partial(_itself, x)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, _Identity) and (x := self.reference()) is not None and x is other.reference()
        )


def _itself(x: Any) -> Any:
    return x


def _plain_function(x: Any) -> tuple[FunctionType, Any] | None:
    """The function in Python that a call of this object runs, and the object whose method it is (None if it is none, or
    the ``forward`` of a module, which is compared where it is called); None if there is no function to be seen."""
    owner = None
    for _ in range(8):  # wrappers around wrappers
        if isinstance(x, FunctionType):
            wrapped = x.__dict__.get("__wrapped__")
            if wrapped is None:
                return x, owner
            x = wrapped
        elif isinstance(x, MethodType):
            x, owner = x.__func__, x.__self__
        else:
            names = ("func", "_function", "forward") if callable(x) else ()
            inner = next((part for name in names if callable(part := getattr(x, name, None))), None)
            if inner is None and isinstance(method := type(x).__dict__.get("__call__"), FunctionType):
                return method, x
            x = inner.__func__ if isinstance(inner, MethodType) and inner.__self__ is x else inner
    return None


def _variables(function: FunctionType) -> Iterator[_Variable]:
    names, read_globals = _names_in(function.__code__)
    for cell in function.__closure__ or ():
        yield _Variable(functools.partial(_read_cell, cell), names)
    for name in read_globals:
        yield _Variable(functools.partial(function.__globals__.get, name, _MISSING), names)


def _attributes(function: FunctionType, owner: Any) -> Iterator[_Variable]:
    """What the code of a method may read of its object."""
    names, _ = _names_in(function.__code__)
    if hasattr(owner, "__dict__") and not isinstance(owner, type | ModuleType):
        reference = _Identity(owner).reference
        for name in sorted(names):
            yield _Variable(functools.partial(_attribute, reference, name), names)


def _attribute(reference: Callable[[], Any], name: str) -> Any:
    owner = reference()
    attributes = getattr(owner, "__dict__", {})
    tables = (attributes, *(attributes.get(table, {}) for table in TABLES))
    return next((table[name] for table in tables if name in table), getattr(type(owner), name, _MISSING))


def _read_cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not assigned yet
        return _MISSING


@functools.cache
def _names_in(code: CodeType) -> tuple[frozenset[str], tuple[str, ...]]:
    """All names in the code of a function and of those inside it, and which of them are read as global variables."""
    names, read_globals = set(code.co_names), {
        step.argval: None for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }  # fmt: skip
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            inner_names, inner_globals = _names_in(inner)
            names |= inner_names
            read_globals |= dict.fromkeys(inner_globals)
    return frozenset(names), tuple(read_globals)
