"""The variables around a compiled function: those of its file and of the functions around it.

A number or a flag there decides what the function does, just as an argument does. So a recording is made for certain
values of the variables that the code names. The code is that of the function, of the functions of the same file that
it names, and of the modules that it calls.

If the function is a method of an object, or an object that is called, then the attributes that its code names are such
variables too. Of an object in a variable, an argument or an attribute of a module, the attributes are compared that the
code names, and those that are named by the methods and properties that it names.

What the function itself changes, such as a counter, is not compared: no call would be like the one before.
"""

from __future__ import annotations

import dis
import functools
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

from gt.client.compile.module_states import MAX_DEPTH, MAX_ITEMS, PLAIN, TABLES, are_compared
from gt.client.tensor.tensor import Tensor

_MISSING, _CHANGED = "no such variable", "changed by the function"


class Surroundings:
    """The variables that a function reads, and their values in a form that can be compared."""

    def __init__(self, owner: Any = None) -> None:
        """``owner``: the object, if the function is a method."""
        self._owner = None if owner is None else _Identity(owner)
        self._names = _Names()
        self._variables: list[_Variable] = []
        #: the functions, each with the object or class that it is a method of
        self._functions: set[tuple[FunctionType, _Identity | None]] = set()
        #: the objects in attributes of modules
        self._objects: set[_Identity] = set()
        self._arguments = _Variable(_nothing, self._names)

    def include(self, functions: Iterable[Any]) -> None:
        """Compare the variables of these functions as well, and of those they name."""
        self._include([inner for function in functions if (inner := _plain_function(function)) is not None])

    def include_modules(self, modules: Iterable[Any]) -> None:
        """Compare the variables of their ``forward``, and the objects in their attributes that it names."""
        for module in modules:
            kind = type(module)
            forward = _plain_function(kind.forward)
            if forward is None or _is_gts(forward[0]):
                continue
            self._include([(forward[0], kind)])
            names = self._names.of(kind)[0]
            for name, x in module.__dict__.items():
                if _is_object(x) and name in names and (identity := _Identity(x)) not in self._objects:
                    self._objects.add(identity)
                    self._variables.append(_Variable(identity.reference, self._names))

    def _include(self, pending: list[tuple[FunctionType, Any]]) -> None:
        while pending:
            function, owner = pending.pop()
            key = function, None if owner is None else _Identity(owner)
            if key in self._functions or _is_gts(function):
                continue
            self._functions.add(key)
            self._names.add(_names_in(function.__code__)[0])
            for read in (*_reads(function), *_attributes(function, owner)):
                value = read()
                if isinstance(value, ModuleType) and value.__name__.partition(".")[0] == "gt":
                    continue
                self._variables.append(_Variable(read, self._names))
                named = _plain_function(value)
                if named is not None and named[0].__globals__ is function.__globals__:
                    pending.append(named)
            if owner is not None:  # its other methods that the function names
                kind = owner if isinstance(owner, type) else type(owner)
                methods = [getattr(kind, name, None) for name in _names_in(function.__code__)[0]]
                pending += [(method, owner) for method in methods if isinstance(method, FunctionType)]

    def state(self) -> tuple[Any, ...]:
        """The values of all variables now."""
        return tuple([variable.state() for variable in self._variables])

    def skip_changed(self, before: tuple[Any, ...], after: tuple[Any, ...]) -> None:
        """From now on, leave out what differs between these two states."""
        for variable, old, new in zip(self._variables, before, after, strict=False):
            variable.changes = _difference(old, new, variable.changes)

    def of_argument(self, x: Any) -> Any:
        """The state of an object that is an argument; of a function, its variables."""
        if self._owner is not None and self._owner.reference() is x:
            return None
        if isinstance(x, FunctionType) and not _is_gts(x):
            self._names.add(_names_in(x.__code__)[0])
            return tuple([self._arguments.state_of(read()) for read in _reads(x)])
        return self._arguments.state_of(x)


#: what of a state the function changes: all of it (True), nothing (None), or of these parts something
_Changes = dict[Any, Any] | bool | None


def _parts(state: tuple[Any, ...]) -> dict[Any, Any]:
    """The parts of a state by their names or positions."""
    return {part[0] if _is_named(part) else k: part for k, part in enumerate(state)}


def _is_named(part: Any) -> bool:
    """Is it an attribute, or an item of a dict?"""
    return type(part) is tuple and len(part) == 2 and type(part[0]) in (str, tuple)


def _difference(old: Any, new: Any, known: _Changes) -> _Changes:
    """What differs between two states, and what was known to."""
    if old == new or known is True:
        return known
    if not type(old) is type(new) is tuple or (len(old) != len(new) and type(old[0]) is not _Identity):
        return True
    before, after = _parts(old), _parts(new)
    changes = dict(known or {})
    for key in before.keys() | after.keys():
        if (part := _difference(before.get(key), after.get(key), changes.get(key))) is not None:
            changes[key] = part
    return changes


def _without(state: Any, changes: _Changes) -> Any:
    """A state without what the function changes."""
    if changes is None or not isinstance(changes, dict) or type(state) is not tuple:
        return state if changes is None else _CHANGED
    return tuple(
        [_without(part, changes.get(key)) for key, part in _parts(state).items() if changes.get(key) is not True]
    )


class _Names:
    """The names in the code of all functions, and what they may mean of an object."""

    def __init__(self) -> None:
        self._names: frozenset[str] = frozenset()
        self._by_class: dict[Any, tuple[list[str], list[str]]] = {}

    def add(self, names: frozenset[str]) -> None:
        if not names <= self._names:
            self._names |= names
            self._by_class.clear()

    def of(self, kind: Any) -> tuple[list[str], list[str]]:
        """What the code may read of an object of this class: all names, and those of slots and values of the class."""
        known = self._by_class.get(kind)
        if known is None:
            known = self._by_class[kind] = _names_for(kind, self._names)
        return known


class _Variable:
    """One variable of a function: how to read it, and the attributes of it that may matter."""

    __slots__ = ("_identities", "_names", "_whole", "changes", "read")

    def __init__(self, read: Callable[[], Any], names: _Names) -> None:
        self.read, self._names = read, names
        #: what of it the function changes
        self.changes: _Changes = None
        #: id -> the last object with it
        self._identities: dict[int, _Identity] = {}
        #: the last value, if nothing in it is compared
        self._whole: _Identity | None = None

    def state(self) -> Any:
        if self.changes is True:
            return _CHANGED
        x = self.read()
        if self._whole is not None and self._whole.reference() is x:
            return self._whole
        state = self.state_of(x)
        self._whole = state if isinstance(state, _Identity) else None
        return _without(state, self.changes)

    def state_of(self, x: Any, depth: int = MAX_DEPTH) -> Any:
        kind = type(x)
        if kind in PLAIN:
            return kind, x.hex() if kind is float else x  # 0.0 equals -0.0, and NaN does not equal itself
        if isinstance(x, Tensor):
            return Tensor, id(x) if x._view is not None else x._cell.id, x._node is not None
        if depth and kind in (list, tuple) and are_compared(x):
            return kind, *[self.state_of(item, depth - 1) for item in x]
        if depth and kind is dict and are_compared(x):
            return dict, *[(self.state_of(key, 0), self.state_of(item, depth - 1)) for key, item in x.items()]
        # GT's own objects that are no modules, such as optimizers, are compared where they are called
        if not depth or (kind.__module__.startswith("gt.") and TABLES[0] not in getattr(x, "__dict__", ())):
            return self._identity(x)
        return self._state_of_object(x, kind, depth)

    def _state_of_object(self, x: Any, kind: Any, depth: int) -> Any:
        names, of_class = self._names.of(x if isinstance(x, type) else kind)
        attributes = getattr(x, "__dict__", {})
        states = [(name, self.state_of(attributes[name], depth - 1)) for name in names if name in attributes]
        for name in of_class:
            if name not in attributes:
                states.append((name, self.state_of(getattr(x, name, _MISSING), depth - 1)))
        return (self._identity(x), *states)

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


def _nothing() -> Any:
    return None


def _is_gts(function: FunctionType) -> bool:
    return (function.__module__ or "").partition(".")[0] == "gt"  # a function that exec made may have no module


def _is_object(x: Any) -> bool:
    """Is it an object with attributes, and none of GT's, nor a module?"""
    kind = type(x)
    if kind.__module__.startswith("gt.") or isinstance(x, Tensor):
        return False
    return TABLES[0] not in x.__dict__ if hasattr(x, "__dict__") else hasattr(kind, "__slots__")


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


def _reads(function: FunctionType) -> Iterator[Callable[[], Any]]:
    """What reads the variables of a function."""
    _, read_globals = _names_in(function.__code__)
    for cell in function.__closure__ or ():
        yield functools.partial(_read_cell, cell)
    for name in read_globals:
        yield functools.partial(function.__globals__.get, name, _MISSING)
    if function.__defaults__ or function.__kwdefaults__:
        yield lambda: (function.__defaults__, function.__kwdefaults__)


def _attributes(function: FunctionType, owner: Any) -> Iterator[Callable[[], Any]]:
    """What reads the attributes that the code of a method names; of the class alone, if ``owner`` is that."""
    if owner is None or isinstance(owner, ModuleType):
        return
    reference = _Identity(owner).reference
    names = _names_in(function.__code__)[0]
    every, of_class = _names_for(owner if isinstance(owner, type) else type(owner), names)
    for name in of_class if isinstance(owner, type) else every:
        yield functools.partial(_attribute, reference, name)


def _attribute(reference: Callable[[], Any], name: str) -> Any:
    owner = reference()
    attributes = getattr(owner, "__dict__", {})
    tables = (attributes, *(attributes.get(table, {}) for table in TABLES))
    for table in tables:
        if name in table:
            return table[name]
    value = getattr(owner if isinstance(owner, type) else type(owner), name, _MISSING)
    if isinstance(value, MemberDescriptorType):
        return getattr(owner, name, _MISSING)
    return getattr(value, "__func__", value)  # a method of a class is another object each time


#: what a class has in place of a function -> the attribute that is the function
_WRAPPED_IN = {property: "fget", functools.cached_property: "func", classmethod: "__func__", staticmethod: "__func__"}


def _names_for(kind: Any, names: frozenset[str]) -> tuple[list[str], list[str]]:
    """What code with these names may read of an object of a class: these, and the names in the code of the methods and
    properties among them. And which of all are slots, or values of the class."""
    every, pending, of_class = set(names), [*names], []
    while pending:
        name = pending.pop()
        value = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), _nothing)
        function = getattr(value, _WRAPPED_IN.get(type(value), ""), value)
        if isinstance(function, FunctionType):
            inner = frozenset() if _is_gts(function) else _names_in(function.__code__)[0] - every
            every |= inner
            pending += inner
        elif isinstance(value, MemberDescriptorType) or not hasattr(type(value), "__get__"):
            of_class.append(name)
    return sorted(every), sorted(of_class)


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
        elif "getattr" in names and isinstance(inner, str):
            names.add(inner)
    return frozenset(names), tuple(read_globals)
