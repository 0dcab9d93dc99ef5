"""Plots into files, by matplotlib without a screen; without matplotlib nothing is drawn."""

from __future__ import annotations

import contextlib
import importlib.util
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.core import results

Series = Mapping[str, tuple[Sequence[float], Sequence[float | None]]]
#: with more ranks than this, the cells of a matrix are too small for numbers
NUMBERED_RANKS = 16


def available() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


@contextlib.contextmanager
def _axes(path: pathlib.Path, title: str, xlabel: str, ylabel: str) -> Iterator[Any]:
    """Axes that are saved at the end; None without matplotlib."""
    try:
        import matplotlib
    except ModuleNotFoundError:
        yield None
        return
    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.add_subplot()
    axes.set(title=title, xlabel=xlabel, ylabel=ylabel)
    yield axes
    results.beside(path, lambda to: figure.savefig(to, dpi=120))


def lines(
    path: pathlib.Path, title: str, xlabel: str, ylabel: str, series: Series, *, logx: bool = False, logy: bool = False
) -> pathlib.Path | None:
    """One line per series of x and y; points without a y are left out."""
    with _axes(path, title, xlabel, ylabel) as axes:
        if axes is None:
            return None
        draw_lines(axes, series, logx=logx, logy=logy)
    return path


def draw_lines(axes: Any, series: Series, *, logx: bool = False, logy: bool = False) -> None:
    for name, (xs, ys) in series.items():
        points = [(x, y) for x, y in zip(xs, ys, strict=True) if y is not None]
        axes.plot([x for x, _ in points], [y for _, y in points], marker="o", label=name)
    if logx:
        axes.set_xscale("log", base=2)
    if logy:
        axes.set_yscale("log")
    axes.grid(True, alpha=0.3)
    if series:
        axes.legend()


def bars(
    path: pathlib.Path, title: str, ylabel: str, names: Sequence[str], stacks: Mapping[str, Sequence[float]]
) -> pathlib.Path | None:
    """One bar per name, with stacked parts."""
    with _axes(path, title, "", ylabel) as axes:
        if axes is None:
            return None
        base = [0.0] * len(names)
        for part, heights in stacks.items():
            axes.bar(names, heights, bottom=base, label=part)
            base = [b + h for b, h in zip(base, heights, strict=True)]
        axes.legend()
    return path


def matrix(
    path: pathlib.Path, title: str, xlabel: str, ylabel: str, values: Sequence[Sequence[float | None]]
) -> pathlib.Path | None:
    """A matrix of colours with its numbers."""
    with _axes(path, title, xlabel, ylabel) as axes:
        if axes is None:
            return None
        draw_matrix(axes, values)
    return path


def draw_matrix(axes: Any, values: Sequence[Sequence[float | None]], label: str = "GB/s") -> None:
    """Rows are from, columns to; the colour bar starts at zero, so that small differences look small."""
    known = [v for row in values for v in row if v is not None]
    top = max(known, default=1.0)
    cells = [[float("nan") if v is None else v for v in row] for row in values]
    image = axes.imshow(cells, vmin=0, vmax=top, cmap="viridis")
    axes.figure.colorbar(image, ax=axes, label=label)
    ranks = range(0, len(values), max(1, len(values) // NUMBERED_RANKS))
    axes.set_xticks(ranks, [str(rank) for rank in ranks])
    axes.set_yticks(ranks, [str(rank) for rank in ranks])
    axes.grid(False)
    for y, row in enumerate(values if len(values) <= NUMBERED_RANKS else ()):
        for x, value in enumerate(row):
            # the upper end of the colours is light
            color = "gray" if value is None else "white" if value < 0.6 * top else "black"
            axes.text(x, y, "–" if value is None else f"{value:.3g}", ha="center", va="center", color=color)
