"""A comparison as CSV, Markdown and HTML with plots."""

from __future__ import annotations

import base64
import csv
import html
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from benchmarks.core import plots
from benchmarks.core.tables import cell
from benchmarks.transformer.comparing import COLUMNS, Result, table

STYLE = (
    "body{font:15px system-ui;margin:2em}table{border-collapse:collapse}td,th{border:1px solid #bbb;padding:.3em .6em;"
    "text-align:right}td:first-child,th:first-child{text-align:left}img{max-width:48%}.warning{color:#a00}"
)
#: title of the plot, label of its axis, and its column
BARS = [
    ("Throughput", "samples/s", "samples/s"),
    ("Throughput of one GPU", "samples/s", "samples/s a GPU"),
    ("Energy", "J a sample", "J a sample"),
    ("Cost", "$ a million samples", "$ a million samples"),
]


def to_csv(file: TextIO, results: list[Result], notes: Sequence[str]) -> None:
    """Numbers in full; the notes are only in the other formats."""
    writer = csv.writer(file)
    writer.writerow(column.title for column in COLUMNS)
    writer.writerows(table(results))


def to_markdown(file: TextIO, results: list[Result], notes: Sequence[str]) -> None:
    titles = [column.title for column in COLUMNS]
    rows = [[cell(value).replace("|", "\\|") for value in row] for row in table(results)]
    lines = [titles, ["---", *["---:"] * (len(titles) - 1)], *rows]
    file.write("\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n")
    file.write("".join(f"\n- {note}" for note in notes) + ("\n" if notes else ""))


def to_html(file: TextIO, results: list[Result], notes: Sequence[str]) -> None:
    def row(kind: str, cells: Sequence[str]) -> str:
        return "<tr>" + "".join(f"<{kind}>{html.escape(text)}</{kind}>" for text in cells) + "</tr>"

    body = [row("td", [cell(value) for value in line]) for line in table(results)]
    pictures = _pictures(results)
    images = "".join(f'<img alt="{html.escape(name)}" src="data:image/png;base64,{data}">' for name, data in pictures)
    warned = "".join(f'<li class="warning">{html.escape(note)}</li>' for note in notes)
    file.write(
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>Comparison</title><style>{STYLE}</style>'
        f"<h1>Encoder-decoder Transformer: comparison</h1><table>{row('th', [c.title for c in COLUMNS])}{''.join(body)}"
        f"</table><ul>{warned}</ul>{images or '<p>No plots: matplotlib is not installed.</p>'}</html>\n"
    )


def _pictures(results: list[Result]) -> list[tuple[str, str]]:
    """Name and PNG; a column without values is not drawn."""
    columns = {column.title: column for column in COLUMNS}
    pictures = []
    with tempfile.TemporaryDirectory() as folder:
        for title, label, name in BARS:
            values: list[Any] = [columns[name].value(result, results[0]) for result in results]
            bars = [(r.name, v) for r, v in zip(results, values, strict=True) if v is not None]
            path = Path(folder) / "plot.png"
            names, heights = [n.replace("_", "\n") for n, _ in bars], [v for _, v in bars]
            if bars and plots.bars(path, title, label, names, {label: heights}):
                pictures.append((title, base64.b64encode(path.read_bytes()).decode()))
        steps = {r.name: _steps(r) for r in results}
        path = Path(folder) / "steps.png"
        if plots.lines(path, "Measured steps", "step", "ms", steps):
            pictures.append(("Measured steps", base64.b64encode(path.read_bytes()).decode()))
    return pictures


def _steps(result: Result) -> tuple[list[float], list[float | None]]:
    seconds = result.summary["timing"]["samples_s"]
    return [float(n) for n in range(1, len(seconds) + 1)], [s * 1e3 for s in seconds]


FORMATS = {"csv": to_csv, "markdown": to_markdown, "html": to_html}
