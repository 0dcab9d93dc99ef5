"""The structure of a saved object as JSON, with names for its tensors. Nothing in it can run code.

A JSON object has a single key, its kind, and DECODERS says what each kind stands for. Modules, dataclasses, enums,
`argparse.Namespace` and plain objects are saved as the name of their class and their attributes. They are restored only
if their class is imported already: nothing is imported for a file. No method of a class runs: the attributes are set
directly, and a class with ``__del__`` is refused, because that would run later. Keys of dicts and elements of sets are
plain values or enums, because those are hashed at once. Functions and classes as values are saved by name, and
only GT's own layers and functions.
"""

from __future__ import annotations

import base64
import enum
import pathlib
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from gt.client.compile.module import CompiledCall
from gt.client.tensor.emit import detached
from gt.client.tensor.tensor import Tensor
from gt.functions.creation import as_tensor
from gt.nn.module import KINDS
from gt.nn.parameter import Parameter
from gt.types import DTYPES, DType

#: These are the same in JSON.
PLAIN = (type(None), bool, int, float, str)
FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)
#: Functions and classes are saved by name if their module is one of these.
OWN = ("gt.nn.", "gt.functions.")


def flatten(obj: Any) -> tuple[dict[str, Tensor], Any]:
    """The tensors by name, and the structure as JSON with names for tensors; None for a flat dict of tensors."""
    if _is_flat(obj):
        return {key: detached(as_tensor(x)) for key, x in obj.items()}, None
    saving = _Saving()
    return saving.tensors, saving.describe(obj, "")


def _is_flat(obj: Any) -> bool:
    is_dict = isinstance(obj, dict) and "__metadata__" not in obj
    return is_dict and all(
        isinstance(key, str) and hasattr(x, "__array__") and not isinstance(x, np.ndarray) for key, x in obj.items()
    )


class _Saving:
    """One object that is being saved."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        #: the id of a tensor or an object that was described -> its number
        self._numbers: dict[int, int] = {}

    def describe(self, x: Any, name: str) -> Any:
        """A value as JSON. Its tensors are added to ``tensors``, under names that begin with ``name``."""
        if type(x) in PLAIN:
            return x
        if isinstance(x, list):
            return self.elements(x, name)
        for kind, (classes, encode) in ENCODERS.items():
            if isinstance(x, classes):
                return {kind: encode(self, x, name)} if kind else encode(self, x, name)
        if isinstance(x, CompiledCall):  # how a module is called is not part of its value
            x = x._orig_mod
        if id(x) in self._numbers:
            return {"same": self._numbers[id(x)]}
        self._numbers[id(x)] = len(self._numbers)
        if hasattr(x, "__array__"):
            return self._tensor(x, name)
        return {"object": [_class_name(x, name), self.describe(_attributes(x, name), name)]}

    def _tensor(self, x: Any, name: str) -> Any:
        name = name.lstrip(".") or "value"
        while name in self.tensors or name == "__metadata__":
            name += "_"
        self.tensors[name] = detached(as_tensor(x))
        if isinstance(x, np.ndarray):
            return {"array": name}
        return {"parameter": [name, bool(x.requires_grad)]} if isinstance(x, Parameter) else {"tensor": name}

    def items(self, x: dict[Any, Any], name: str) -> Any:
        # the tensors of a module get the names that they have in its state_dict
        names = (name if k in KINDS else f"{name}.{k}" for k in x)
        return [
            [self.key(k, f"a key of {name}"), self.describe(x[k], inner)] for k, inner in zip(x, names, strict=True)
        ]

    def elements(self, x: Any, name: str) -> Any:
        return [self.describe(v, f"{name}.{i}") for i, v in enumerate(x)]

    def keys(self, x: Any, name: str) -> Any:
        return [self.key(v, f"an element of {name}") for v in x]

    def key(self, x: Any, name: str) -> Any:
        """A value that is hashed when it is loaded."""
        if isinstance(x, tuple):
            return {"tuple": [self.key(v, name) for v in x]}
        if not isinstance(x, (*PLAIN, enum.Enum, bytes, complex, DType)):
            raise TypeError(f"save(): {name.replace(' .', ' ')} is a {type(x).__name__}, which cannot be saved there")
        return self.describe(x, name)


#: kind -> the classes, and (the saving, the value, its name) -> what the JSON object holds; "": it is no JSON object
ENCODERS: dict[str, tuple[Any, Callable[[_Saving, Any, str], Any]]] = {
    "enum": (enum.Enum, lambda saving, x, name: [_class_name(x, name), _member_name(x, name)]),
    "": (PLAIN, lambda saving, x, name: next(plain(x) for plain in PLAIN[1:] if isinstance(x, plain))),
    "dtype": (DType, lambda saving, x, name: x.name),
    "complex number": (complex, lambda saving, x, name: [x.real, x.imag]),
    "bytes": ((bytes, bytearray), lambda saving, x, name: base64.b64encode(x).decode()),
    "path": (pathlib.PurePath, lambda saving, x, name: str(x)),
    "dict": (dict, _Saving.items),
    "tuple": (tuple, _Saving.elements),
    "set": (set, _Saving.keys),
    "frozenset": (frozenset, _Saving.keys),
    "name": ((*FUNCTIONS, type), lambda saving, x, name: _own_name(x, name)),
}


def _class_name(x: Any, name: str) -> str:
    """The name under which the class of ``x`` can be found again. Raises TypeError if it cannot."""
    cls = type(x)
    found = f"{cls.__module__}:{cls.__qualname__}"
    if _find(found) is not cls:
        raise _cannot_save(x, name, "because its class cannot be found by its name")
    return found


def _member_name(x: enum.Enum, name: str) -> str:
    if x.name not in type(x).__members__:
        raise _cannot_save(x, name, "because it is a combination of members")
    return x.name


def _own_name(x: Any, name: str) -> str:
    found = f"{x.__module__}:{x.__qualname__}"
    if not found.startswith(OWN) or _find(found) is not x:
        raise _cannot_save(x, name, "unless it is one of GT's own")
    return found


def _attributes(x: Any, name: str) -> dict[str, Any]:
    """The attributes of an object. Raises TypeError if they are not all that it consists of."""
    cls = type(x)
    if reason := _refusal(cls):
        raise _cannot_save(x, name, reason)
    slots = {slot: getattr(x, slot) for slot in _slots(cls) if hasattr(x, slot)}
    return {**slots, **getattr(x, "__dict__", {})}


def _refusal(cls: type) -> str:
    """Why objects of a class cannot be saved or restored by their attributes; empty if they can."""
    if any("__del__" in vars(base) for base in cls.__mro__):
        return "because its class has __del__"
    try:
        object.__new__(cls)
    except TypeError:  # its class, or a base of it, is written in C
        return "because it has a part that is not in its attributes"
    return ""


def _slots(cls: type) -> list[str]:
    return [
        name
        for base in cls.__mro__
        for name, value in vars(base).items()
        if isinstance(value, types.MemberDescriptorType)
    ]


def _cannot_save(x: Any, name: str, reason: str) -> TypeError:
    return TypeError(
        f"save(): {name.lstrip('.') or 'the object'} is a {type(x).__name__}, which cannot be saved, {reason}"
    )


# -- loading -------------------------------------------------------------------------------


def unflatten(x: Any, tensors: dict[str, Tensor]) -> Any:
    """The object that `flatten` turned into this JSON. Raises ValueError if a class is not imported."""
    return _Loading(tensors).restore(x)


class _Loading:
    def __init__(self, tensors: dict[str, Tensor]) -> None:
        self.tensors = tensors
        #: the tensors and objects by number
        self.restored: list[Any] = []

    def restore(self, x: Any) -> Any:
        if isinstance(x, list):
            return [self.restore(item) for item in x]
        if isinstance(x, dict):
            ((kind, value),) = x.items()
            return DECODERS[kind](self, value)
        return x

    def remember(self, x: Any) -> Any:
        self.restored.append(x)
        return x

    def object(self, value: Any) -> Any:
        """An object of a class that is imported. No method of the class is called."""
        cls = _imported_class(value[0])
        if reason := _refusal(cls):
            raise ValueError(f"load(): an object of {value[0]} cannot be restored, {reason}")
        restored = self.remember(object.__new__(cls))
        attributes: dict[str, Any] = self.restore(value[1])
        for slot in set(_slots(cls)) & attributes.keys():
            object.__setattr__(restored, slot, attributes.pop(slot))
        if attributes:
            restored.__dict__.update(attributes)
        return restored


#: kind -> (the loading, what the JSON object holds) -> what it stands for
DECODERS: dict[str, Callable[[_Loading, Any], Any]] = {
    "tensor": lambda loading, value: loading.remember(loading.tensors[value]),
    "array": lambda loading, value: loading.remember(loading.tensors[value].numpy().copy()),
    "parameter": lambda loading, value: loading.remember(Parameter(loading.tensors[value[0]], value[1])),
    "object": _Loading.object,
    "same": lambda loading, value: loading.restored[value],
    "enum": lambda loading, value: _member(*value),
    "dtype": lambda loading, value: DTYPES[value],
    "complex number": lambda loading, value: complex(*value),
    "bytes": lambda loading, value: base64.b64decode(value),
    "path": lambda loading, value: pathlib.Path(value),
    "tuple": lambda loading, value: tuple(map(loading.restore, value)),
    "dict": lambda loading, value: {loading.restore(k): loading.restore(v) for k, v in value},
    "set": lambda loading, value: set(map(loading.restore, value)),
    "frozenset": lambda loading, value: frozenset(map(loading.restore, value)),
    "name": lambda loading, value: _own(value),
}


def _find(name: str) -> Any:
    """What ``module:qualified.name`` names, if the module is imported; otherwise None. No code of the module runs."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = None if found is None else vars(found).get(part)
    return found


def _imported_class(name: str) -> type:
    found = _find(name)
    if not isinstance(found, type):
        raise ValueError(f"load(): the file holds an object of {name}, which is not imported; import its class first")
    return found


def _member(name: str, member: str) -> Any:
    cls = _imported_class(name)
    if not issubclass(cls, enum.Enum) or member not in cls.__members__:
        raise ValueError(f"load(): {name} has no member {member}")
    return cls.__members__[member]


def _own(name: str) -> Any:
    found = _find(name)
    if not name.startswith(OWN) or not isinstance(found, (*FUNCTIONS, type)):
        raise ValueError(f"load(): {name} is not a function or a layer of GT")
    return found
