"""The plots of one record: what its parts are, each drawn where the record has it."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

from benchmarks.core import plots
from benchmarks.core.audit import MALFORMED
from benchmarks.core.formulas import GIB
from benchmarks.reports import durations, page, svg
from benchmarks.reports.figures import Figure, scale, size
from benchmarks.reports.reading import Read

#: a plot with more lines than this is a table
MOST_LINES = 24
#: figures that another plot shows, or that are another figure times a constant
DERIVED = {"bus bandwidth", "tokens", "MFU", "energy of a token"}


def pictures(record: Read) -> list[page.Mark]:
    """Figures with captions; a part that has not the shape of its suite is left out, and named instead."""
    marks: list[page.Mark] = []
    for draw in (sweeps, pairs, steps, memory, scaling, comparisons):
        try:
            marks += [page.figure(title, drawn) for title, drawn in draw(record)]
        except MALFORMED as error:
            words = f"{draw.__name__}: not drawn, its part of the record is not as expected ({type(error).__name__})"
            marks.append(page.Mark(f"<figure>{page.escaped(words)}</figure>"))
    return [mark for mark in marks if mark]


def wrapped(name: str, width: int = 30) -> str:
    return "\n".join(textwrap.wrap(name, width, max_lines=3, placeholder=" …"))


def unused(name: str, names: Collection[str]) -> str:
    """The name with a number, if another one is equal: a bar never replaces another."""
    numbered = (name if number == 1 else f"{name} ({number})" for number in itertools.count(1))
    return next(each for each in numbered if each not in names)


def sweeps(record: Read) -> Iterator[tuple[str, str]]:
    """Communication by size: time, and bandwidth where something is moved."""
    part = record.results.get("communication", {})
    swept = {name: op["rows"] for name, op in part.items() if isinstance(op, dict) and op.get("rows")}
    sizes = sorted({row["size_bytes"] for rows in swept.values() for row in rows})
    views: list[tuple[str, str, Callable[[Mapping[str, Any]], float | None]]] = [
        ("Time by size, median", "µs", lambda row: row["timing"]["p50_s"] * 1e6),
        ("Bus bandwidth by size", "GB/s", lambda row: row["busbw_gb_per_s"]),
    ]
    for title, unit, value in views if sizes else ():
        lines = {name: ([r["size_bytes"] for r in rows], [value(r) for r in rows]) for name, rows in swept.items()}
        lines = {name: line for name, line in lines.items() if any(y is not None for y in line[1])}
        if lines:
            yield title, svg.plot(f"{record.name} {title}", _by_size(lines, sizes), 3.6, "bytes of a rank", unit)


def _by_size(lines: plots.Series, sizes: list[int]) -> Callable[[Any], None]:
    def draw(axes: Any) -> None:
        plots.draw_lines(axes, lines, logx=True, logy=True)
        shown = sizes[:: max(1, len(sizes) // 8)]
        axes.set_xticks(shown, [size(s) for s in shown], rotation=40, ha="right")
        axes.minorticks_off()
        axes.legend(fontsize=7)

    return draw


def pairs(record: Read) -> Iterator[tuple[str, str]]:
    part = record.results.get("communication", {}).get("pairs", {})
    matrix = part.get("gb_per_s")
    if matrix:
        title = f"Bandwidth of each pair, one way, {size(part['size_bytes'])}"
        drawn = svg.plot(
            f"{record.name} pairs", lambda axes: plots.draw_matrix(axes, matrix), 3.6, "to rank", "from rank"
        )
        yield title, drawn


def steps(record: Read) -> Iterator[tuple[str, str]]:
    """Each measured step of a training."""
    results = record.results
    trained = {"steps": results.get("summary")} if "epochs" in results else results.get("training", {})
    series = {}
    for name, part in trained.items() if isinstance(trained, dict) else ():
        if isinstance(part, dict) and "samples_per_s" in part:
            samples = part["timing"]["samples_s"]
            series[name] = ([float(n) for n in range(1, len(samples) + 1)], [s * 1e3 for s in samples])

    def draw(axes: Any) -> None:
        for name, (xs, ys) in series.items():
            axes.plot(xs, ys, marker=".", markersize=4, linewidth=1, label=name)
        axes.set_ylim(0, 1.08 * max(y for _, ys in series.values() for y in ys))
        if len(series) > 1:
            axes.legend()

    if series:
        yield "Every measured sample of a step", svg.plot(f"{record.name} steps", draw, 2.8, "sample", "ms")


def memory(record: Read) -> Iterator[tuple[str, str]]:
    part = record.results.get("memory", {})
    rows = {
        name: {key.replace("_", " "): count / GIB for key, count in inner["worst_rank"]["counted_bytes"].items()}
        for name, inner in part.items()
        if isinstance(inner, dict) and isinstance(worst := inner.get("worst_rank"), dict) and "counted_bytes" in worst
    }
    if rows:
        draw = lambda axes: svg.stacked(axes, rows)
        yield "Memory of the worst rank, counted", svg.plot(f"{record.name} memory", draw, 2.2, "GiB")


def scaling(record: Read) -> Iterator[tuple[str, str]]:
    part = record.results.get("scaling", {})
    rows = {
        mode: inner["rows"] for mode, inner in part.items() if mode in ("weak", "strong") and len(inner["rows"]) > 1
    }
    series = {mode: ([r["ranks"] for r in rs], [100 * r["efficiency"] for r in rs]) for mode, rs in rows.items()}

    def draw(axes: Any) -> None:
        plots.draw_lines(axes, series)
        axes.set_xticks(sorted({x for xs, _ in series.values() for x in xs}))
        axes.set_ylim(0, max(110, *(y for _, ys in series.values() for y in ys)))

    if series:
        yield "Scaling efficiency", svg.plot(f"{record.name} scaling", draw, 2.8, "ranks", "%")


def comparisons(record: Read) -> Iterator[tuple[str, str]]:
    """Figures of one kind beside each other, with 95 % intervals, on one axis."""
    kinds: dict[tuple[str, str], list[Figure]] = {}
    for figure in record.figures:
        if figure.main and figure.what not in DERIVED and not (figure.where and figure.where[0] == "communication"):
            is_row = figure.where and figure.unit not in ("s", "x", "ms") and figure.what not in GENERAL
            kinds.setdefault(("" if is_row else figure.what, figure.unit), []).append(figure)
    for (what, unit), group in kinds.items():
        if 1 < len(group) <= MOST_LINES:
            factor, shown = scale([figure.value for figure in group], unit)
            rows = [(wrapped(label(figure, what)), figure.value * factor, _times(figure, factor)) for figure in group]
            title = f"{(what or 'figures').capitalize()}, {shown}"
            drawn = svg.plot(
                f"{record.name} {title}",
                lambda axes, rows=rows: svg.dots(axes, rows),
                svg.bars_height(name for name, _, _ in rows),
                shown,
            )
            yield title, drawn


#: figures that the walk names; in others the name says what it is
GENERAL = {
    *("throughput", "tokens", "MFU", "energy", "energy of a token", "peak memory", "median time", "rate of computing"),
    *("rate, all included", "bus bandwidth", "ratio", "time", "median", "p99", "max"),
}


def label(figure: Figure, what: str) -> str:
    return " / ".join(figure.where) if what else figure.what


def _times(figure: Figure, factor: float) -> tuple[float, float] | None:
    return (figure.interval[0] * factor, figure.interval[1] * factor) if figure.interval else None


def time_spent(records: Sequence[Read], name: Callable[[Read], str]) -> Iterator[tuple[str, str]]:
    """The parts of the runs of one suite, of their steps, and of their products."""
    runs: dict[str, dict[str, float]] = {}
    shares: dict[str, dict[str, float]] = {}
    for record in records:
        runs[unused(wrapped(name(record)), runs)] = durations.parts(record)
        for training, row in durations.steps(record).items():
            shares[unused(wrapped(", ".join(filter(None, [training, name(record)]))), shares)] = row
    views = [
        ("Parts of the runs", "s", {key: row for key, row in runs.items() if row}),
        ("Parts of a mean step", "%", shares),
    ]
    for title, unit, rows in [*views, *(_products(record, name(record)) for record in records)]:
        if rows:
            draw = lambda axes, rows=rows: svg.stacked(axes, rows)
            height = 0.5 + svg.bars_height(rows)
            yield title, svg.plot(f"{records[0].name} {title}", draw, height, unit)


def _products(record: Read, name: str) -> tuple[str, str, dict[str, dict[str, float]]]:
    rows = {wrapped(case): {p: s * 1e3 for p, s in row.items()} for case, row in durations.products(record).items()}
    return f"Parts of a product, median, {name}", "ms", rows
