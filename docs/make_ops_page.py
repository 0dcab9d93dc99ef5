"""``python docs/make_ops_page.py``: writes the table of all ops into docs/ops.md, from the declarations themselves."""

from __future__ import annotations

import inspect
import pathlib
from collections.abc import Iterator

from gt.ops import OPS, Op

PAGE = pathlib.Path(__file__).with_name("ops.md")
BEGIN, END = "<!-- begin: made by docs/make_ops_page.py -->\n", "<!-- end -->\n"


def page(text: str) -> str:
    """The page with its table made anew."""
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
    return op.kernel.__module__.removeprefix("gt.ops.")


def _operands(op: Op) -> list[str]:
    _, *given = inspect.signature(op.kernel).parameters.values()  # the first is the array library
    marks = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.POSITIONAL_OR_KEYWORD: ""}
    return [marks[p.kind] + p.name for p in given if p.kind in marks]


def _attributes(op: Op) -> list[str]:
    for rule in (op.infer, op.kernel):
        given = inspect.signature(rule).parameters.values()
        named = [p.name for p in given if p.kind is p.KEYWORD_ONLY and p.name not in ("device", "out")]
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


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
