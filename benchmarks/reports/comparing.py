"""Runs of the same work: their figures and the interval between runs, cost and energy, regressions, and the history."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from benchmarks.core import timing
from benchmarks.core.formulas import break_even_price, dollars_per_million
from benchmarks.core.ranks import BadInput
from benchmarks.reports import works
from benchmarks.reports.figures import HIGHER, LOWER, Figure, interval_text, text
from benchmarks.reports.reading import Read, machine_name

#: with fewer runs nothing is known about the variation between them
RUNS = 3


def refused(record: Read) -> str | None:
    """Why a record is not compared."""
    if record.data["status"] != "complete":
        return f"{record.path}: the run is {record.data['status']}, not complete"
    wrong = record.wrong
    return f"{record.path}: its figures do not follow from its samples: {wrong[0]}" if wrong else None


@dataclass(frozen=True)
class Value:
    """One figure over the runs of a machine."""

    figure: Figure
    values: tuple[float, ...]
    #: of the mean: between runs from three runs on, otherwise around those within the runs
    interval: tuple[float, float] | None

    @property
    def value(self) -> float:
        return statistics.fmean(self.values)

    @property
    def between(self) -> bool:
        """Whether the interval knows by how much runs differ."""
        return len(self.values) >= RUNS

    def wide(self, variation: float) -> tuple[float, float]:
        """The interval; where the variation between runs is unknown, with this share of the value on both sides."""
        low, high = self.interval or (self.value, self.value)
        more = 0.0 if self.between else abs(self.value) * variation
        return low - more, high + more


@dataclass(frozen=True)
class Runs:
    """The runs of the same work and variant on one machine, by time."""

    records: tuple[Read, ...]
    label: str
    #: $ per hour of one GPU
    price: float | None = None

    @property
    def gpus(self) -> int:
        return self.records[0].gpus

    @cached_property
    def values(self) -> dict[str, Value]:
        by_name: dict[str, list[Figure]] = {}
        for record in self.records:
            for figure in record.figures:
                by_name.setdefault(figure.name, []).append(figure)
        return {name: value_of(figures) for name, figures in by_name.items()}


def value_of(figures: Sequence[Figure]) -> Value:
    values = tuple(figure.value for figure in figures)
    valid = all(figure.valid for figure in figures)
    first = figures[0]
    figure = Figure(first.where, first.what, first.unit, first.value, first.interval, first.better, first.main, valid)
    bounds = [bound for f in figures for bound in (*(f.interval or ()), f.value)]
    within = (min(bounds), max(bounds)) if len(bounds) > 1 else None
    return Value(figure, values, timing.runs_interval(values) or within)


def runs(records: Sequence[Read], group: str, prices: dict[str, float] | None = None) -> list[Runs]:
    """The runs of each machine and variant among records of one work; labels say in what they differ."""
    grouped: dict[tuple[Any, ...], list[Read]] = {}
    for record in records:
        grouped.setdefault((record.machine(group), works.variant(record)), []).append(record)
    keys = [key for key in works.differing(records) if key not in works.MACHINE]
    ranks = len({record.data["world_size"] for record in records}) > 1
    labels = []
    for own in grouped.values():
        card = own[0].cards[:1] if group == "card" else ()
        labels.append(", ".join(filter(None, [machine_name(own[0]), *card, works.description(own[0], keys, ranks)])))
    price = prices or {}
    return [
        Runs(tuple(own), label, price.get(own[0].device)) for label, own in zip(labels, grouped.values(), strict=True)
    ]


# -- tables --------------------------------------------------------------------------------

FIGURES = ("figure", "machine", "runs", "value", "95 % interval", "of", "against the first", "verdict")
COSTS = (
    "what",
    "machine",
    "samples/s",
    "tokens/s",
    "J/sample",
    "J/token",
    "$/GPU-h",
    "$/1M samples",
    "$/1M tokens",
    "break-even $/GPU-h",
)
HISTORY = ("figure", "machine", "began (UTC)", "commit", "value", "95 % within", "against the one before")


def overlap(a: tuple[float, float] | None, b: tuple[float, float] | None) -> bool:
    return a is not None and b is not None and a[0] <= b[1] and b[0] <= a[1]


def ratio(value: Value, first: Value) -> str:
    """With a mark if the intervals overlap: then the two may be equal."""
    if value is first or not first.value:
        return ""
    return f"{value.value / first.value:.3f}{' ~' if overlap(value.interval, first.interval) else ''}"


def figure_rows(groups: Sequence[Runs], every: bool) -> Iterator[list[Any]]:
    for name in dict.fromkeys(name for group in groups for name in group.values):
        known = [(group, group.values[name]) for group in groups if name in group.values]
        first = known[0][1]
        for group, value in known if every or first.figure.main else ():
            unit = first.figure.unit
            kind = ("runs" if value.between else "within") if value.interval else ""
            judged = "valid" if value.figure.valid else "NOT VALID"
            shown = interval_text(value.interval, value.value, unit)
            cells = [len(value.values), text(value.value, unit), shown, kind, ratio(value, first), judged]
            yield [name, group.label, *cells]


def cost_rows(groups: Sequence[Runs]) -> Iterator[list[Any]]:
    """Each throughput with what a sample and a token take, in energy and money."""
    rated = [
        name for group in groups for name, v in group.values.items() if v.figure.unit == "samples/s" and v.figure.main
    ]
    for name in dict.fromkeys(rated):
        first = next(group for group in groups if name in group.values)
        for group in (group for group in groups if name in group.values):
            own = {
                v.figure.unit: v.value
                for v in group.values.values()
                if v.figure.where == group.values[name].figure.where
            }
            samples, tokens, price = own["samples/s"], own.get("tokens/s"), group.price
            cost = lambda rate, own=group: (
                dollars_per_million(own.price * own.gpus, rate) if own.price and rate else None
            )
            start = first.values[name].value
            even = break_even_price(first.price, start, first.gpus, samples, group.gpus) if first.price else None
            energy = [own.get("J/sample"), own.get("J/token")]
            yield [name, group.label, samples, tokens, *energy, price, cost(samples), cost(tokens), even]


def history_rows(groups: Sequence[Runs]) -> Iterator[list[Any]]:
    """Each run by itself, oldest first."""
    for group in (group for group in groups if len(group.records) > 1):
        for name, value in group.values.items():
            before: Value | None = None
            for record in group.records if value.figure.main else ():
                figure = next((f for f in record.figures if f.name == name), None)
                if figure is None:
                    continue
                now, git = value_of([figure]), record.environment["git"]
                began = record.timestamp.replace("T", " ").removesuffix("Z")
                shown = interval_text(figure.interval, figure.value, figure.unit)
                change = ratio(now, before) if before else ""
                commit = git["commit"][:10] if git else None
                yield [name, group.label, began, commit, text(figure.value, figure.unit), shown, change]
                before = now


# -- baseline ------------------------------------------------------------------------------

CHANGES = ("figure", "machine", "baseline", "now", "ratio", "")
REGRESSION, BETTER, SAME, UNJUDGED = "REGRESSION", "better", "within the interval", "not valid, not judged"
MISSING = "not measured now"


def changes(groups: Sequence[Runs], baselines: Sequence[Runs], variation: float) -> Iterator[list[Any]]:
    """Each figure beside the one of the baseline: worse beyond the intervals of both is a regression."""
    for group in groups:
        for baseline in _alike(group, baselines):
            for name, value in group.values.items():
                old = baseline.values.get(name)
                if old is None or not value.figure.main or not value.figure.better:
                    continue
                unit = value.figure.unit
                quotient = f"{value.value / old.value:.3f}" if old.value else None
                judged = change(value, old, variation)
                yield [name, group.label, text(old.value, unit), text(value.value, unit), quotient, judged]
            for name, old in baseline.values.items():
                if name not in group.values and old.figure.main and old.figure.better:
                    yield [name, group.label, text(old.value, old.figure.unit), None, None, MISSING]


def _alike(group: Runs, baselines: Sequence[Runs]) -> list[Runs]:
    """Of the same variant; on its own machine if there are some."""
    same = [b for b in baselines if works.variant(b.records[0]) == works.variant(group.records[0])]
    return [b for b in same if b.records[0].machine() == group.records[0].machine()] or same


def change(value: Value, old: Value, variation: float) -> str:
    if not (value.figure.valid and old.figure.valid):
        return UNJUDGED
    (low, high), (old_low, old_high) = value.wide(variation), old.wide(variation)
    lower, higher = high < old_low, low > old_high
    worse = {HIGHER: lower, LOWER: higher}[value.figure.better]
    return REGRESSION if worse else BETTER if lower or higher else SAME


def paired(records: Sequence[Read], baselines: Sequence[Read]) -> list[tuple[list[Read], list[Read]]]:
    """The records of each work beside the baselines of the same work. ``BadInput`` if there is none."""
    pairs = []
    for group in works.by_work(records):
        own = [baseline for baseline in baselines if works.work(baseline) == works.work(group[0])]
        variants = {works.variant(baseline) for baseline in own}
        matching = [record for record in group if works.variant(record) in variants]
        if matching:
            pairs.append((matching, own))
    if not pairs:
        raise BadInput("no record is of the same work as the baseline: run it with the same options")
    return pairs
