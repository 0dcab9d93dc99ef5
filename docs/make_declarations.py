"""``python -m docs.make_declarations`` writes gt/client/tensor/declared.pyi from the real methods of a tensor.

`gt.functions.methods` attaches most methods of `gt.Tensor` at import, so type checkers and editors cannot see them. The
stub declares them with their real parameters and results.
"""

from __future__ import annotations

import builtins
import inspect
import math
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import gt
from gt.missing import Missing

FILE = pathlib.Path(gt.__file__).parent / "client" / "tensor" / "declared.pyi"
HOME = "gt.client.tensor.tensor"

HEAD = '''"""Declares the methods that `gt.functions.methods` attaches. Written by docs/make_declarations.py."""

from builtins import bool as _bool
from builtins import float as _float
from builtins import int as _int
from collections.abc import Callable, Sequence
from typing import Any

from gt.client.tensor.arguments import Device
from gt.client.tensor.tensor import Tensor
'''
#: Methods have these names too, so a class that declares them needs other names for the types.
SHADOWED = {"bool": "_bool", "float": "_float", "int": "_int"}
KNOWN = {"Any", "Callable", "None", "Sequence", "Tensor", "dict", "list", "str", "tuple"}
#: The results of methods and properties that are lambdas, which have no annotations.
RESULTS = {"device": "Device", "get_device": "_int", "polygamma": "Tensor", "type_as": "Tensor", "where": "Tensor"}
#: Operators that may return NotImplemented, which a caller never sees.
OPERATORS = re.compile(
    "__[ri]?(add|sub|mul|truediv|floordiv|mod|pow|and|or|xor|lshift|rshift|matmul|eq|ne|lt|le|gt|ge)__"
)


def text() -> str:
    imports: dict[str, set[str]] = {}
    lines = [line for name, value in _attached() for line in _declaration(name, value, imports)]
    named = [f"from {module} import {', '.join(sorted(names))}\n" for module, names in sorted(imports.items())]
    return f"{HEAD}{''.join(named)}\nclass Declared:\n" + "\n".join(lines) + "\n"


def _attached() -> Iterator[tuple[str, Any]]:
    """The attributes of `gt.Tensor` that are not defined in its class."""
    for name, value in sorted(vars(gt.Tensor).items()):
        function = value.fget if isinstance(value, property) else value
        if isinstance(value, Missing | staticmethod | classmethod) or not callable(function) or name == "__hash__":
            continue
        defined_in = getattr(function, "__globals__", {}).get("__name__")  # pickle needs another `__module__`
        in_class = function.__qualname__.startswith("Tensor.") and defined_in == HOME
        if not (in_class and function.__name__ == name):
            yield name, value


def _declaration(name: str, value: Any, imports: dict[str, set[str]]) -> Iterator[str]:
    if isinstance(value, property):
        yield "    @property"
        yield f"    def {name}(self) -> {_result(name, value.fget, imports)}: ..."
        if value.fset is not None:
            yield f"    @{name}.setter"
            yield f"    def {name}(self, value: Any) -> None: ..."
        return
    if OPERATORS.fullmatch(name):
        ignore = "  # type: ignore[override]" if name in ("__eq__", "__ne__") else ""
        yield f"    def {name}(self, other: Any) -> Tensor: ...{ignore}"
        return
    if not inspect.isfunction(value):  # a builtin, such as `bool` for `is_nonzero`
        yield f"    def {name}(self) -> {SHADOWED.get(value.__name__, 'Any')}: ..."
        return
    yield f"    def {name}({_parameters(value, imports)}) -> {_result(name, value, imports)}: ..."


def _result(name: str, function: Any, imports: dict[str, set[str]]) -> str:
    if function.__name__ == "<lambda>":
        return "_bool" if name.startswith("is_") else RESULTS.get(name, "Any")
    return _type(inspect.signature(function).return_annotation, function, imports)


def _parameters(function: Any, imports: dict[str, set[str]]) -> str:
    _, *rest = inspect.signature(function).parameters.values()
    shown = ["self"]
    starred = False
    for p in rest:
        if p.kind is p.KEYWORD_ONLY and not starred:
            shown.append("*")
        starred = starred or p.kind in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)
        mark = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        default = "" if p.default is p.empty else f" = {_default(p.default)}"
        shown.append(f"{mark}{p.name}: {_type(p.annotation, function, imports)}{default}")
    return ", ".join(shown)


def _default(value: Any) -> str:
    plain = value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and math.isfinite(value))
    return repr(value) if plain else "..."


def _type(annotation: Any, function: Any, imports: dict[str, set[str]]) -> str:
    """An annotation as the stub can write it: Any if one of its names cannot be imported there."""
    written = "None" if annotation is None else annotation if isinstance(annotation, str) else "Any"
    for name in set(re.findall(r"[A-Za-z_][\w.]*", written)) - KNOWN - set(SHADOWED):
        value: Any = inspect.unwrap(function).__globals__.get(name.split(".")[0], getattr(builtins, name, None))
        for part in name.split(".")[1:]:
            value = getattr(value, part, None)
        if not isinstance(value, type) or not value.__module__.startswith("gt."):
            return "Any"
        imports.setdefault(value.__module__, set()).add(value.__name__)
        written = written.replace(name, value.__name__)
    return re.sub(r"\b(bool|float|int)\b", lambda match: SHADOWED[match[0]], written)


if __name__ == "__main__":
    FILE.write_text(text())
