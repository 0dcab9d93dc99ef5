"""``python -m docs.make_ops_page``: writes what follows from the op entries.

That is the table of all ops in docs/ops.md, and gt/functions/derived.pyi, which declares the functions that are just an
op to type checkers and editors.
"""

from __future__ import annotations

import inspect
import pathlib
import re
from collections.abc import Iterator
from functools import partial

from gt.functions.derived import FUNCTIONS
from gt.functions.derived import __all__ as PUBLIC
from gt.ops import OPS, Op

PAGE = pathlib.Path(__file__).with_name("ops.md")
STUB = pathlib.Path(__file__).parent.parent / "gt" / "functions" / "derived.pyi"
BEGIN, END = "<!-- begin: made by docs/make_ops_page.py -->\n", "<!-- end -->\n"


def page(text: str) -> str:
    """The page with a new table."""
    before, rest = text.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


def table() -> str:
    rows = [*map(_row, sorted(OPS.values(), key=lambda op: (_family(op), op.name)))]
    head = ["| op | family | operands | attributes | |", "| --- | --- | --- | --- | --- |"]
    return "\n".join([f"{len(rows)} ops.", "", *head, *rows, ""])


def _row(op: Op) -> str:
    marks = ", ".join(_marks(op))
    return f"| `{op.name}` | {_family(op)} | {_shown(_operands(op))} | {_shown(_attributes(op))} | {marks} |"


def _shown(names: list[str]) -> str:
    return f"`{', '.join(names)}`" if names else ""


def _family(op: Op) -> str:
    kernel = op.kernel.func if isinstance(op.kernel, partial) else op.kernel
    return kernel.__module__.removeprefix("gt.ops.")


def _operands(op: Op) -> list[str]:
    _, *parameters = inspect.signature(op.kernel).parameters.values()  # the first is the array library
    marks = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.POSITIONAL_OR_KEYWORD: ""}
    return [marks[p.kind] + p.name for p in parameters if p.kind in marks]


def _attributes(op: Op) -> list[str]:
    for rule in (op.infer, op.kernel):
        parameters = inspect.signature(rule).parameters.values()
        named = [p.name for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in ("device", "out")]
        if named:
            return named
    return []


def _marks(op: Op) -> Iterator[str]:
    if op.view:
        yield "view"
    if op.inplace is not None:
        yield "own kernel in place"
    if inspect.signature(op.infer).return_annotation == "Types":
        yield "several results"


STUB_HEAD = '''"""Declares the functions in `derived.py`. Written by docs/make_ops_page.py from the op entries."""

from collections.abc import Callable
from typing import Any, NamedTuple

from gt.client.tensor.tensor import Tensor

__all__ = [
{public}
]

FUNCTIONS: dict[str, Callable[..., Any]]
'''


def _natural(name: str) -> list[str | int]:
    """The order linters want: ``log2`` before ``log10``."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def declarations() -> str:
    """The text of gt/functions/derived.pyi."""
    rows: list[str] = []
    for op in sorted((op for op in OPS.values() if op.results and op.function), key=lambda op: op.name):
        rows += ["", f"class _{op.name.title()}(NamedTuple):", *(f"    {result}: Tensor" for result in op.results)]
    rows += [""]
    for name, function in sorted(FUNCTIONS.items()):
        results = OPS[function.__name__].results
        parameters = ", ".join(f"{p.name}: {p.annotation}" for p in inspect.signature(function).parameters.values())
        rows += [f"def {name}({parameters}) -> {f'_{function.__name__.title()}' if results else 'Tensor'}: ..."]
    return STUB_HEAD.format(public="\n".join(f'    "{name}",' for name in sorted(PUBLIC, key=_natural))) + "\n".join(
        [*rows, ""]
    )


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
    STUB.write_text(declarations())
