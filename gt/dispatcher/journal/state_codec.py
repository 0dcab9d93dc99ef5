"""The state of the dispatcher as bytes, and back.

The state is a graph: plans, tensors and tables refer to each other, and plans are looked up by the identity of interned
objects. So it is written as a list of nodes that name each other by their position, as pickle does. Unlike pickle, it
creates only objects of the classes in the tables below, and calls nothing but their constructors.

    value in a node      meaning
    nil, number, text    itself
    [n]                  the object of node n

Caches are part of the state. Without them the dispatcher would plan again, and would give other numbers to what the
workers know already.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from types import MethodType, ModuleType
from typing import Any

import msgspec

from gt.dispatcher import (
    core,
    delivery,
    inspection,
    instruction_plans,
    ledger,
    listeners,
    relay,
    requests,
    scheduling,
    state,
)
from gt.dispatcher.plan import hierarchy, layouts, moves, planner, signals, topology
from gt.dispatcher.recovery import kept_snapshots, program_log, recoveries, snapshots
from gt.dispatcher.replay import replay_plans
from gt.dispatcher.tenants import waits
from gt.ops import OPS, Op, Signature, placement
from gt.types import DTYPES, SCALARS, DType, Scalar, TensorType
from gt.wire import event_messages, fragments, identities, messages, numbering, recovery_messages, structures

_PRIMITIVES = (type(None), bool, int, float, str, bytes)
#: What may be the value of an attribute that holds a class: the Python types of numbers.
_TYPES: dict[str, type] = {t.__name__: t for t in (int, float, bool, bytes)}


def _classes(*modules: ModuleType) -> dict[str, type]:
    """The classes that these modules define, by name. Class names are unique in GT."""
    return {
        name: value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == module.__name__
    }


#: Classes whose attributes are the state.
_PLAIN: dict[str, type] = {
    "Signature": Signature,
    **_classes(core, delivery, inspection, instruction_plans, ledger, listeners, relay, requests, scheduling, state),
    **_classes(moves, planner, signals, kept_snapshots, program_log, recoveries, snapshots, replay_plans, fragments),
    **_classes(hierarchy, topology, waits),
    "Lost": layouts.Lost,
    "Numbering": numbering.Numbering,
}
#: Structs, which their constructors create from the values of their fields.
_STRUCTS: dict[str, type] = {
    name: cls
    for name, cls in _classes(
        event_messages, fragments, identities, messages, moves, placement, planner, recovery_messages, structures
    ).items()
    if issubclass(cls, msgspec.Struct)
}
#: Classes with constructors that return the one object with these values: (the values, the constructor).
_REBUILT: dict[type, tuple[Callable[[Any], tuple[Any, ...]], Callable[..., Any]]] = {
    DType: (lambda d: (d.name,), DTYPES.__getitem__),
    Scalar: (lambda s: (s.name,), SCALARS.__getitem__),
    Op: (lambda op: (op.name,), OPS.__getitem__),
    TensorType: (lambda t: (t.shape, t.dtype), TensorType),
    layouts.Mesh: (lambda m: (m.workers, m.parts), layouts.Mesh),
    layouts.Layout: (lambda y: (y.mesh, y.placements), layouts.Layout),
    layouts.TensorState: (lambda s: (s.type, s.home, s.copies), layouts.TensorState),
    type: (lambda t: (t.__name__,), _TYPES.__getitem__),
    array: (lambda a: (a.typecode, a.tobytes()), lambda code, data: array(code, data)),
    tuple: (tuple, lambda *values: values),
    frozenset: (lambda s: tuple(sorted(s)), lambda *values: frozenset(values)),
    MethodType: (lambda m: (m.__self__, m.__name__), getattr),
}
#: Attributes that `restored` of their object makes again.
_TRANSIENT = ("_handlers",)
_CONSTRUCTORS = {cls.__name__: constructor for cls, (_, constructor) in _REBUILT.items()}
_DICTS = {cls.__name__: cls for cls in (dict, OrderedDict)}


class UnknownState(TypeError):
    """The state has an object that cannot be written."""


def encode_state(root: Any, externals: Mapping[str, Any]) -> bytes:
    """``externals`` are not written: who reads the state provides them."""
    return msgspec.msgpack.encode(_StateWriter(externals).write(root))


def decode_state(data: bytes, externals: Mapping[str, Any]) -> Any:
    return _StateReader(msgspec.msgpack.decode(data), externals).read()


class _StateWriter:
    def __init__(self, externals: Mapping[str, Any]) -> None:
        self._numbers: dict[int, int] = {}
        #: objects without a node so far; kept, because their `id` is their name here
        self._objects: list[Any] = []
        self._externals = {id(value): name for name, value in externals.items()}

    def write(self, root: Any) -> list[Any]:
        self._value(root)
        nodes: list[Any] = []
        for value in self._objects:  # it grows meanwhile
            nodes.append(self._node(value))
        return nodes

    def _value(self, value: Any) -> Any:
        if type(value) in _PRIMITIVES:
            return value
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._objects)
            self._objects.append(value)
        return [number]

    def _values(self, values: Iterable[Any]) -> list[Any]:
        return list(map(self._value, values))

    def _node(self, value: Any) -> list[Any]:
        """[kind, …]; the kinds are the cases of `_StateReader`."""
        if (name := self._externals.get(id(value))) is not None:
            return ["external", name]
        cls = type(value)
        kind = cls.__name__
        if cls in (list, set):
            return [kind, *self._values(value)]
        if cls is deque:
            return [kind, value.maxlen, *self._values(value)]
        if kind in _DICTS and _DICTS[kind] is cls:
            return [kind, *self._values(part for item in value.items() for part in item)]
        if cls in _REBUILT:
            return ["rebuilt", kind, *self._values(_REBUILT[cls][0](value))]
        if _STRUCTS.get(kind) is cls:
            return ["struct", kind, *self._values(getattr(value, field) for field in cls.__struct_fields__)]
        if _PLAIN.get(kind) is cls:
            return ["plain", kind, {name: self._value(v) for name, v in _attributes(value)}]
        raise UnknownState(f"{cls.__module__}.{kind} cannot be written: {value!r:.100}")


def _attributes(value: Any) -> Iterable[tuple[str, Any]]:
    """The attributes of an object, except those that it makes again by itself."""
    for cls in type(value).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__weakref__", "__dict__") and hasattr(value, name):
                yield name, getattr(value, name)
    yield from ((name, v) for name, v in getattr(value, "__dict__", {}).items() if name not in _TRANSIENT)


class _StateReader:
    """First creates all objects, then fills those that can be changed: dicts and sets last, because a key must be
    complete before it is hashed."""

    def __init__(self, nodes: list[Any], externals: Mapping[str, Any]) -> None:
        self._nodes, self._externals = nodes, externals
        self._objects: list[Any] = [None] * len(nodes)
        self._created = [False] * len(nodes)

    def read(self) -> Any:
        for number in range(len(self._nodes)):
            self._object(number)
        hashed = []
        for node, value in zip(self._nodes, self._objects, strict=True):
            match node[0]:
                case "plain":
                    for name, v in node[2].items():
                        object.__setattr__(value, name, self._value(v))
                case "list":
                    value.extend(map(self._value, node[1:]))
                case "deque":
                    value.extend(map(self._value, node[2:]))
                case "set" | "dict" | "OrderedDict":
                    hashed.append((node, value))
        for node, value in hashed:
            if node[0] == "set":
                value.update(map(self._value, node[1:]))
            else:
                parts = map(self._value, node[1:])
                for key in parts:
                    value[key] = next(parts)
        for node, value in zip(self._nodes, self._objects, strict=True):
            if node[0] == "plain" and hasattr(value, "restored"):
                value.restored()
        return self._objects[0]

    def _value(self, value: Any) -> Any:
        return self._object(value[0]) if type(value) is list else value

    def _object(self, number: int) -> Any:
        """The object of a node; what cannot be changed later is complete."""
        if not self._created[number]:
            self._objects[number] = self._create(self._nodes[number])
            self._created[number] = True
        return self._objects[number]

    def _create(self, node: list[Any]) -> Any:
        match node[0]:
            case "external":
                return self._externals[node[1]]
            case "list":
                return []
            case "set":
                return set()
            case "deque":
                return deque(maxlen=node[1])
            case "rebuilt":
                return _CONSTRUCTORS[node[1]](*map(self._value, node[2:]))
            case "struct":
                return _STRUCTS[node[1]](*map(self._value, node[2:]))
            case "plain":
                return object.__new__(_PLAIN[node[1]])
        return _DICTS[node[0]]()
