"""What follows from the measured times: ratios, goals, the record and the table."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.core import formulas, timing, verdict
from benchmarks.hot.rounds import Taken
from benchmarks.hot.rows import BASE, BEST, GOALS, Goal

Rows = dict[str, Taken]
GIB = 2**30


def ratio(ours: Taken, theirs: Taken) -> float | None:
    """The first row's step time divided by the second's: the median over the rounds."""
    pairs = list(zip(ours.samples, theirs.samples, strict=False))
    return statistics.median(o / t for o, t in pairs) if pairs else None


def spread(row: Taken) -> float | None:
    """The interquartile range of the rounds, as a share of their median."""
    if len(row.samples) < 2:
        return None
    low, high = (timing.percentile(row.samples, percent) for percent in (25, 75))
    return (high - low) / statistics.median(row.samples)


def peak(row: Taken, kind: str, steady: bool = False) -> int | None:
    """The most bytes in the whole run, or in its rounds alone: "allocated" or "reserved"."""
    peaks = [p[kind] for p in (row.peaks[1:] if steady else row.peaks) if p]
    return max(peaks, default=None)


def loss_difference(row: Taken, base: Taken) -> float | None:
    """The largest difference of the first losses from those of torch eager, in units of the tolerance."""
    if not row.check or not base.check or not base.check["tolerance"]:
        return None
    ours, theirs = row.check["values"], base.check["values"]
    scale = base.check["tolerance"] * max(1.0, abs(theirs[0]))
    return formulas.largest_difference(ours, theirs) / scale


def _quotient(ours: float | None, theirs: float | None) -> float | None:
    return ours / theirs if ours is not None and theirs else None


def _latency(percent: float) -> Callable[[Taken, Taken], float | None]:
    def compared(row: Taken, against: Taken) -> float | None:
        if not row.each or not against.each:
            return None
        return timing.percentile(row.each, percent) / timing.percentile(against.each, percent)

    return compared


def _more_spread(row: Taken, against: Taken) -> float | None:
    ours, theirs = spread(row), spread(against)
    return None if ours is None or theirs is None else ours - theirs


def _start(cached: bool) -> Callable[[Taken, Taken], float | None]:
    """The time to full speed, divided by the other row's first step. Only a run with `--cold` has both."""

    def compared(row: Taken, against: Taken) -> float | None:
        if not row.cached or not against.cached:
            return None
        reports = (row.cached, against.cached) if cached else (row.warm, against.warm)
        return _quotient(reports[0]["warmup_s"], reports[1]["first_step_s"])

    return compared


def _cost_of_reads(row: Taken, _: Taken) -> float | None:
    pairs = list(zip(row.read_samples, row.samples, strict=False))
    return statistics.median(r / s for r, s in pairs) if pairs else None


#: name -> the figure of a goal, of a row and the row it is compared with
FIGURES: dict[str, Callable[[Taken, Taken], float | None]] = {
    "time": ratio,
    "p50": _latency(50),
    "p99": _latency(99),
    "spread": lambda row, _: spread(row),
    "more spread": _more_spread,
    "peak memory": lambda row, against: _quotient(peak(row, "allocated"), peak(against, "allocated")),
    "cold start": _start(cached=False),
    "cached start": _start(cached=True),
    "cost of reads": _cost_of_reads,
}


def goals(device: str, work: str, figures: Rows) -> list[tuple[Goal, float | None]]:
    declared = [goal for goal in GOALS if (goal.device, goal.work) == (device, work)]
    measured = [goal for goal in declared if goal.row in figures and goal.against in figures]
    return [(goal, FIGURES[goal.figure](figures[goal.row], figures[goal.against])) for goal in measured]


def goal_line(goal: Goal, value: float | None) -> str:
    reached = "not measured" if value is None else "reached" if value <= goal.bound else "MISSED"
    number = "" if value is None else f": {value:.3f}"
    return f"{goal.work} {goal.row}, {goal.figure} against {goal.against} <= {goal.bound:g} {reached}{number}"


def record(work: str, row: Taken, figures: Rows, steps: int) -> dict[str, Any]:
    """A row in the record."""
    row_record: dict[str, Any] = {"about": row.row.about, "environment": row.row.environment, **row.warm}
    if row.mode:
        row_record["mode"] = {"chosen": row.mode, "step_s": row.tried}
    if row.error:
        row_record["error"] = row.error
    if row.cached:
        row_record["cached_start"] = row.cached
    if row.samples:
        row_record["timing"] = {**timing.summary(row.samples), "steps_per_sample": steps}
        row_record["spread"] = spread(row)
        row_record["ratio"] = {other: ratio(row, figures[other]) for other in figures if figures[other].samples}
        row_record |= _details(row)
        difference = loss_difference(row, figures[BASE]) if BASE in figures else None
        facts = {"cv": timing.variation(row.samples), "loss_difference": difference}
        rules = [rule for rule in ("cv", "loss_difference") if rule == "cv" or difference is not None]
        row_record["verdict"] = verdict.judge(facts, rules, f"{work}/{row.row.name}")
    return row_record


def _details(row: Taken) -> dict[str, Any]:
    """What only some programs and machines have."""
    details: dict[str, Any] = {}
    if row.check:
        details["first_values"] = row.check["values"]
    if row.each:
        details["latency"] = timing.summary(row.each)
    if row.read_samples:
        details["with_reads"] = timing.summary(row.read_samples)
    if any(row.peaks):
        kinds = ("allocated", "reserved")
        details["peak_bytes"] = {kind: peak(row, kind) for kind in kinds}
        details["steady_peak_bytes"] = {kind: peak(row, kind, steady=True) for kind in kinds}
    return details


COLUMNS = (
    *("row", "us a step", "IQR %", "x eager", "x best", "p50 us", "p99 us", "with read us"),
    *("GiB", "reserved", "steady", "reserved", "first step s", "full speed s", "levels", "left out"),
)


def shown(figures: Rows) -> tuple[Sequence[str], list[list[Any]]]:
    """The table: its columns, without those that are empty in every line, and its lines."""
    lines = [_line(row, figures) for row in figures.values()]
    used = [k for k in range(len(COLUMNS)) if k < 4 or any(line[k] not in (None, "") for line in lines)]
    return [COLUMNS[k] for k in used], [[line[k] for k in used] for line in lines]


def _line(row: Taken, figures: Rows) -> list[Any]:
    us = lambda seconds: None if seconds is None else seconds * 1e6
    gib = lambda size: None if size is None else size / GIB
    percentiles = [us(timing.percentile(row.each, p)) if row.each else None for p in (50, 99)]
    against = [ratio(row, figures[name]) if name in figures else None for name in (BASE, BEST)]
    middle = spread(row)
    return [
        f"{row.row.about}{f' ({row.mode})' if len(row.tried) > 1 else ''}",
        us(statistics.median(row.samples)) if row.samples else None,
        None if middle is None else middle * 100,
        *against,
        *percentiles,
        us(statistics.median(row.read_samples)) if row.read_samples else None,
        *(gib(peak(row, kind, steady)) for steady in (False, True) for kind in ("allocated", "reserved")),
        row.warm.get("first_step_s"),
        row.warm.get("warmup_s"),
        ", ".join(sorted(row.warm.get("levels", {}))) or ("" if row.row.library != "gt" else "words"),
        row.error[:40],
    ]
