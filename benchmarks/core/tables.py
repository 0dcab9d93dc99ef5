"""Tables: by rich where it is installed, otherwise in plain columns."""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from benchmarks.core.verdict import RUN

WIDTH = 150


def cell(value: Any) -> str:
    """A number with three or four significant digits; a dash for an unknown value."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return str(value)


def render(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, color: bool = False) -> str:
    cells = [[cell(value) for value in row] for row in rows]
    try:
        from rich.console import Console
        from rich.table import Table
    except ModuleNotFoundError:
        return _plain(title, columns, cells)
    table = Table()
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right")
    for row in cells:
        table.add_row(*row)
    console = Console(file=io.StringIO(), width=WIDTH, force_terminal=color, no_color=not color)
    with console.capture() as captured:
        console.print(title, style="bold", highlight=False)
        console.print(table)
    return captured.get()


def _plain(title: str, columns: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    lines = [list(columns), *cells]
    widths = [max(len(line[i]) for line in lines) for i in range(len(columns))]
    padded = [[line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])] for line in lines]
    rows = ["  ".join(line) for line in padded]
    return "\n".join([title, rows[0], "-" * len(rows[0]), *rows[1:], ""])


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], file: TextIO | None = None) -> None:
    out = file or sys.stdout
    print(render(title, columns, rows, color=out.isatty()), file=out, flush=True)


def reasons_text(reasons: Sequence[Mapping[str, str]]) -> str:
    """Reasons of one kind: the first one with its place, unless it is about the whole run, and how many more."""
    message, where = reasons[0]["message"], reasons[0]["where"]
    more = f" (and {len(reasons) - 1} more)" if len(reasons) > 1 else ""
    return f"{message}{f' at {where}' if where and where != RUN else ''}{more}"


def verdict_lines(verdict: Mapping[str, Any]) -> list[str]:
    """The verdict as text, one line per reason; reasons of one kind are counted, not repeated."""
    kinds: dict[str, list[Mapping[str, str]]] = {}
    for reason in verdict["reasons"]:
        kinds.setdefault(reason["code"], []).append(reason)
    lines = [f"verdict: {'valid' if verdict['valid'] else 'NOT VALID as a measurement'}"]
    for code, reasons in kinds.items():
        lines.append(f"  {code}: {reasons_text(reasons)}")
    if verdict["unchecked"]:
        lines.append(f"  not checked, for want of data: {', '.join(verdict['unchecked'])}")
    return lines
