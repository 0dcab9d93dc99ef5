"""What a machine should reach beside what it reached, for one GPU: peaks, documented bands, formulas and goals."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from benchmarks.autoshard.report import BAND_OF_SMALL, BANDS, SMALL_FLOPS
from benchmarks.core import peaks, timing
from benchmarks.core.formulas import GIB
from benchmarks.core.verdict import of_machine
from benchmarks.distributed.expected import compared
from benchmarks.reports.figures import validity
from benchmarks.reports.reading import Read

#: names of dtypes in the suites of matrix products -> in the table of peaks
DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
#: how the expected figure is meant
CEILING, LEAST, MOST, EQUAL = "up to", "at least", "at most", "predicted"
GOALS = {LEAST, MOST}


@dataclass(frozen=True)
class Expectation:
    record: str
    what: str
    kind: str
    expected: float
    measured: float
    unit: str
    source: str
    valid: bool = True

    def __post_init__(self) -> None:
        if not (math.isfinite(self.expected) and math.isfinite(self.measured)):  # TypeError, if one is no number at all
            raise ValueError(f"{self.what}: {self.measured} of {self.expected}")

    @property
    def ratio(self) -> float | None:
        return self.measured / self.expected if self.expected else None

    @property
    def missed(self) -> bool:
        """A goal that was not reached; a peak is none."""
        return (self.kind == LEAST and self.measured < self.expected) or (
            self.kind == MOST and self.measured > self.expected
        )


def expectations(record: Read) -> list[Expectation]:
    from_suites: list[Expectation] = []
    for read in (_bandwidths, _products, _predictions, _shares):
        from_suites += read(record)
    return [*_walk(record, record.results, (), (True, True)), *from_suites]


def _walk(record: Read, value: Any, where: tuple[str, ...], around: tuple[bool, bool]) -> Iterator[Expectation]:
    """Those that may be at any depth: MFU, and the goal or formula of a row. ``around`` is that of `validity`."""
    if isinstance(value, dict):
        around = valid, _ = validity(value.get("verdict"), *around)
        for read in (_mfu, _row, _ratio, _goals):
            yield from read(record, value, where, valid)
        for key, inner in value.items():
            yield from _walk(record, inner, (*where, key), around)
    elif isinstance(value, list):
        for inner in value:
            yield from _walk(record, inner, where, around)


def _mfu(record: Read, part: Mapping[str, Any], where: tuple[str, ...], valid: bool) -> Iterator[Expectation]:
    mfu = part.get("mfu")
    if not isinstance(mfu, dict) or not mfu.get("denominator_flops_per_s"):
        return
    known = peaks.peak(record.device, str(mfu["dtype"]))
    peak, source = known or (mfu["denominator_flops_per_s"] / record.gpus, mfu["source"])
    measured = mfu["numerator_flops_per_s"] / record.gpus / 1e12
    name = "training" if where == ("summary",) else " / ".join(where)
    what = f"{name}: model FLOPs, {mfu['dtype']}"
    yield Expectation(record.name, what, CEILING, peak / 1e12, measured, "TFLOP/s a GPU", source, valid)


def _row(record: Read, part: Mapping[str, Any], where: tuple[str, ...], valid: bool) -> Iterator[Expectation]:
    if "unit" not in part or "value" not in part or not isinstance(part.get("samples"), list):
        return
    name, value, unit = str(part["name"]), float(part["value"]), str(part["unit"])
    if part.get("formula") is not None:
        yield Expectation(record.name, name, EQUAL, part["formula"], value, unit, "formula", valid)
    old = "at_least" in part
    bound = part.get("goal") if old else part.get("bound")
    if bound is not None:
        at_least = part["at_least"] if old else part.get("goal") == ">="
        yield Expectation(
            record.name, name, LEAST if at_least else MOST, bound, value, unit, "goal of the suite", valid
        )


def _ratio(record: Read, part: Mapping[str, Any], where: tuple[str, ...], valid: bool) -> Iterator[Expectation]:
    """The cost of a side beside the other one."""
    goal, name = part.get("goal"), " / ".join(where)
    if isinstance(goal, int | float):
        for key in ("seconds", "processor"):
            if isinstance(part.get(key), dict) and "median" in part[key]:
                measured = part[key]["median"]
                source = "goal of the suite"
                yield Expectation(record.name, f"{name} / {key}", MOST, goal, measured, "x", source, valid)


def _goals(record: Read, part: Mapping[str, Any], where: tuple[str, ...], valid: bool) -> Iterator[Expectation]:
    """Goals between two rows, which are valid if both rows are."""
    goals = part.get("goals")
    for goal in goals if isinstance(goals, list) else ():
        if goal["value"] is not None:
            row, other, figure = goal["row"], goal["against"], goal.get("figure", "time")
            what = f"{goal['work']}: {row} against {other}{f', {figure}' if figure != 'time' else ''}"
            both = valid and _valid(part[row]) and _valid(part[other])
            yield Expectation(record.name, what, MOST, goal["bound"], goal["value"], "x", "goal of the suite", both)


def _bandwidths(record: Read) -> Iterator[Expectation]:
    """From the rows of the record: its own list could be edited."""
    part = record.results.get("communication", {})
    config, world = record.config, int(record.data["world_size"])
    valid = _valid(part)
    shared = int(config.get("ranks_per_gpu") or 1)
    for row in compared(part, record.device, world, config.get("nodes", 1), shared):
        expected, measured = row["expected_gb_per_s"], row["measured_gb_per_s"]
        what = f"communication / {row['operation']}: bus bandwidth"
        yield Expectation(record.name, what, CEILING, expected, measured, "GB/s", row["source"], valid)


def _products(record: Read) -> Iterator[Expectation]:
    """Matrix products: the rate of one GPU beside its peak, and the speedup on 8 beside the documented band."""
    known = peaks.peak(record.device, DTYPES.get(str(record.config.get("dtype")), ""))
    groups = {group: record.results.get(group) for group in BANDS} if known else {}
    for group, cases in groups.items():
        for case, counts in cases.items() if isinstance(cases, dict) else ():
            runs = {n: run for n, run in counts.items() if isinstance(run, dict) and {"flops", "compute"} <= set(run)}
            for n, run in runs.items():
                assert known is not None
                seconds = timing.percentile(run["compute"]["timing"]["samples_s"], 50)
                measured, what = run["flops"] / seconds / int(n) / 1e12, f"{group} / {case} on {n}: computing"
                source = known[1]
                yield Expectation(
                    record.name, what, CEILING, known[0] / 1e12, measured, "TFLOP/s a GPU", source, _valid(run)
                )
            if {"1", "8"} <= set(runs):
                gained = runs["1"]["together"]["timing"]["p50_s"] / runs["8"]["together"]["timing"]["p50_s"]
                (low, _), why = BAND_OF_SMALL if runs["1"]["flops"] < SMALL_FLOPS else BANDS[group]
                what = f"{group} / {case}: speedup on 8"
                both = _valid(runs["1"]) and _valid(runs["8"])
                yield Expectation(record.name, what, LEAST, low, gained, "x", f"documented: {why}", both)


def _valid(part: Mapping[str, Any]) -> bool:
    return validity(part.get("verdict"), True, True)[0]


def _predictions(record: Read) -> Iterator[Expectation]:
    memory = record.results.get("memory", {})
    best = memory.get("largest_batch") or {}
    if best.get("predicted") and best.get("ran"):
        source = f"fit of the peak by batch, {(best.get('budget_bytes') or 0) / GIB:.0f} GiB"
        what = "memory: largest batch"
        yield Expectation(record.name, what, EQUAL, best["predicted"], best["ran"], "samples", source, _valid(memory))
    training = record.results.get("training", {})
    reduced = training.get("gradient_allreduce") or {}
    if reduced.get("predicted_s") and reduced.get("measured_s"):
        source, what = "fit of the all-reduce sweep", "training: all-reduce of the gradients"
        expected, measured = reduced["predicted_s"] * 1e3, reduced["measured_s"] * 1e3
        yield Expectation(
            record.name, what, EQUAL, expected, measured, "ms", source, not of_machine(training.get("verdict"))
        )


def _shares(record: Read) -> Iterator[Expectation]:
    """Shares of time of users with weights."""
    for name, row in (record.results.get("shares") or {}).items():
        if isinstance(row, dict) and {"share", "goal"} <= set(row):
            source = "the share of the weight"
            yield Expectation(record.name, f"shares / {name}", EQUAL, row["goal"], row["share"], "of the time", source)
