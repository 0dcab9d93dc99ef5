"""Plots as SVG to put into a page: text is text, and takes the page's colour and font. Needs matplotlib."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from benchmarks.core import plots
from benchmarks.reports.figures import number

#: replaced by the colour of the page's text, so that a plot is readable on a dark page too
TEXT = "#010203"
WIDTH = 5.2
AXES = ("axes.labelcolor", "axes.edgecolor", "axes.titlecolor")
STYLE = {
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    **dict.fromkeys((*(f"{part}.color" for part in ("text", "xtick", "ytick")), *AXES), TEXT),
    "legend.frameon": False,
    "legend.fontsize": 8,
    # colours that also people with a colour-vision deficiency tell apart (Okabe and Ito), on white and on black
    "axes.prop_cycle": "cycler('color', ['#0072b2', '#e69f00', '#009e73', '#cc79a7', '#d55e00', '#56b4e9', '#8c8c8c'])",
}
#: colours of that cycle; what has the same colour has another pattern
COLOURS, HATCHES = 7, ("", "///", "...", "xxx")


def plot(title: str, draw: Callable[[Any], None], height: float = 3.2, xlabel: str = "", ylabel: str = "") -> str:
    """The SVG of one plot; empty without matplotlib."""
    if not plots.available():
        return ""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({**STYLE, "svg.hashsalt": title}):
        figure = Figure(figsize=(WIDTH, height), layout="constrained")
        figure.patch.set_alpha(0)
        axes = figure.add_subplot()
        axes.patch.set_alpha(0)
        axes.set(xlabel=xlabel, ylabel=ylabel)
        axes.grid(True, alpha=0.25)
        axes.set_axisbelow(True)
        draw(axes)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return _inline(out.getvalue(), title)


def _inline(text: str, title: str) -> str:
    """Without what only a file needs; ids are the plot's own, for a page has many plots."""
    text = text[text.index("<svg") :].replace(TEXT, "currentColor")
    text = re.sub(r"<style[^>]*>.*?</style>", "", text, flags=re.DOTALL)
    prefix = re.sub(r"\W+", "-", title)
    text = re.sub(r'\bid="', f'id="{prefix}-', text)
    text = re.sub(r"url\(#", f"url(#{prefix}-", text)
    return re.sub(r'xlink:href="#', f'xlink:href="#{prefix}-', text)


Bar = tuple[str, float, Sequence[float] | None]


def bars_height(names: Iterable[str]) -> float:
    """Of a plot with a line a name, which may have several lines of text."""
    return 0.8 + sum(0.14 + 0.16 * (1 + name.count("\n")) for name in names)


def dots(axes: Any, rows: Sequence[Bar], limit: float | None = None) -> None:
    """One line a row, from zero, with its interval; ``limit`` makes the axes of several plots equal."""
    names = [name for name, _, _ in rows]
    values = [value for _, value, _ in rows]
    low = [max(0.0, v - i[0]) if i else 0.0 for _, v, i in rows]
    high = [max(0.0, i[1] - v) if i else 0.0 for _, v, i in rows]
    places = range(len(rows))
    axes.barh(places, values, height=0.55, alpha=0.35)
    axes.errorbar(values, places, xerr=[low, high], fmt="o", markersize=4, capsize=3, color="#d55e00")
    axes.set_yticks(places, names)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(False, axis="y")
    least = min(0.0, 0.0, *(v - d for v, d in zip(values, low, strict=True)))
    most = limit or max(0.0, 0.0, *(v + d for v, d in zip(values, high, strict=True)))
    axes.set_xlim(least * 1.05, most * 1.05 or 1)
    axes.locator_params(axis="x", nbins=6)
    axes.xaxis.set_major_formatter(lambda value, _: number(value))


def stacked(axes: Any, rows: Mapping[str, Mapping[str, float]]) -> None:
    """One line a row, its parts one after the other."""
    parts = list(dict.fromkeys(part for row in rows.values() for part in row))
    left = [0.0] * len(rows)
    for place, part in enumerate(parts):
        widths = [row.get(part, 0.0) for row in rows.values()]
        hatch = HATCHES[place // COLOURS % len(HATCHES)]
        axes.barh(range(len(rows)), widths, left=left, height=0.6, label=part, hatch=hatch)
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(False, axis="y")
    axes.set_xlim(0, max([*left, 0.0]) * 1.05 or 1)
    axes.figure.legend(loc="outside lower center", ncols=3)
