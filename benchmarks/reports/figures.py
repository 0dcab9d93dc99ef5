"""The figures of a record of any suite, each computed from its raw samples where the record has them.

The walk knows what the suites have in common: a timing, a row with samples, ratios of two sides, samples a second, a
bandwidth by size. It does not know the suites.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.core import timing, verdict
from benchmarks.core.formulas import GIB

HIGHER, LOWER = "higher", "lower"
#: parts of a record that hold no figure of their own
SKIPPED = {"verdict", "fit", "expected", "by_rank", "ranks", "health", "warmup", "goals", "ratio", "sweep"}
#: figures below these are details: of a repeated or a preparing measurement, or in another figure already
DETAILS = {"doubling", "single", "launch", "epochs", "exposed", "create", "compute", "retrieve", "together", "barrier"}
#: samples under these keys, with their median beside them -> unit
SERIES = {"ratios": "x", "samples": "s", "seconds": "s"}
#: figures without samples -> unit
PLAIN = {"median_ms": "ms", "p99_ms": "ms", "max_ms": "ms", "replay_s": "s", "step_s": "s", "join_s": "s"}


@dataclass(frozen=True)
class Figure:
    where: tuple[str, ...]
    what: str
    unit: str
    value: float
    #: 95 %, within this run
    interval: tuple[float, float] | None
    #: which direction is better; empty where neither is
    better: str = ""
    #: shown by default; the others are details
    main: bool = True
    #: whether the part of the record that it is in is valid
    valid: bool = True

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):  # TypeError, if it is no number at all
            raise ValueError(f"{self.name} is {self.value}")

    @property
    def name(self) -> str:
        return f"{' / '.join(self.where)}: {self.what}" if self.where else self.what


def figures(results: Mapping[str, Any]) -> list[Figure]:
    """All figures; a name that occurs twice gets a number."""
    named: dict[str, Figure] = {}
    for figure in _walk(results, (), True):
        name, number = figure.name, 1
        while (key := name if number == 1 else f"{name} ({number})") in named:
            number += 1
        named[key] = figure if number == 1 else replace(figure, what=f"{figure.what} ({number})")
    return list(named.values())


def validity(judged: Mapping[str, Any] | None, valid: bool, sound: bool) -> tuple[bool, bool]:
    """Of the figures of a part, and whether the machine was in order around them.

    A verdict over several parts says nothing about each of them, unless its reason is the machine.
    """
    sound = sound and not verdict.of_machine(judged)
    return sound and (valid if judged is None else bool(judged["valid"])), sound


def _walk(value: Any, where: tuple[str, ...], valid: bool, sound: bool = True) -> Iterator[Figure]:
    if not isinstance(value, dict):
        return
    valid, sound = validity(value.get("verdict"), valid, sound)
    is_row = "samples" in value and "unit" in value
    main = is_row or not set(where) & DETAILS
    for read in READERS:
        yield from (replace(figure, main=figure.main and main, valid=valid) for figure in read(value, where))
    if is_row:  # what else it has are details of the row
        return
    for key, inner in value.items():
        if key in SKIPPED:
            continue
        if isinstance(inner, list):
            yield from _rows(inner, (*where, key), valid, sound)
        else:
            yield from _walk(inner, where if key == "summary" else (*where, key), valid, sound)


def _rows(rows: Sequence[Any], where: tuple[str, ...], valid: bool, sound: bool) -> Iterator[Figure]:
    """The rows of a sweep: only the last, largest one of sizes is no detail."""
    base = where[:-1] if where[-1] == "rows" else where
    for number, row in enumerate(rows):
        last = number == len(rows) - 1
        if isinstance(row, dict):
            for figure in _walk(row, (*base, _label(row, number)), valid, sound):
                yield figure if last or "size_bytes" not in row else replace(figure, main=False)


def _label(row: Mapping[str, Any], number: int) -> str:
    words: dict[str, Callable[[Any], str]] = {
        "size_bytes": size,
        "ranks": lambda n: f"{n} rank{'s' if n != 1 else ''}",
        "batch": lambda n: f"batch {n}",
        "name": str,
    }
    return next((word(row[key]) for key, word in words.items() if key in row), str(number))


def size(count: float) -> str:
    """Bytes in powers of two."""
    scale, unit = next(((s, u) for s, u in ((GIB, "GiB"), (2**20, "MiB"), (2**10, "KiB")) if count >= s), (1, "B"))
    return f"{count / scale:.4g} {unit}"


# -- what a part of a record may hold ------------------------------------------------------


def _timing(part: Mapping[str, Any], where: tuple[str, ...]) -> Iterator[Figure]:
    time = part.get("timing")
    if isinstance(time, dict) and time.get("samples_s"):
        samples = time["samples_s"]
        yield Figure(where, "median time", "s", timing.percentile(samples, 50), timing.median_interval(samples), LOWER)


def _throughput(part: Mapping[str, Any], where: tuple[str, ...]) -> Iterator[Figure]:
    rate = samples_per_s(part)
    if rate is None:
        return
    interval = _scaled(timing.rate_interval(rate, part["timing"]) if "timing" in part else None)
    yield Figure(where, "throughput", "samples/s", rate, interval, HIGHER)
    share = part["tokens_per_s"] / part["samples_per_s"] if part.get("tokens_per_s") else None
    if share:
        yield Figure(where, "tokens", "tokens/s", rate * share, _scaled(interval, share), HIGHER)
    mfu = (part.get("mfu") or {}).get("mfu")
    if mfu is not None:
        factor = mfu / part["samples_per_s"]
        yield Figure(where, "MFU", "%", 100 * rate * factor, _scaled(interval, 100 * factor), HIGHER)
    if part.get("joules_per_sample") is not None:
        yield Figure(where, "energy", "J/sample", part["joules_per_sample"], None, LOWER)
        if share:
            yield Figure(where, "energy of a token", "J/token", part["joules_per_sample"] / share, None, LOWER)
    if part.get("peak_memory_bytes") is not None:
        yield Figure(where, "peak memory", "GiB", part["peak_memory_bytes"] / GIB, None, LOWER)


def samples_per_s(part: Mapping[str, Any]) -> float | None:
    """All samples over all time; the recorded rate where the number of samples is not recorded."""
    if part.get("samples_per_s") is None:
        return None
    samples = part.get("samples")
    if samples is None and "samples_per_step" in part and "timing" in part:
        samples = part["samples_per_step"] * len(part["timing"]["samples_s"])
    return samples / part["wall_s"] if samples and part.get("wall_s") else float(part["samples_per_s"])


def _bandwidth(part: Mapping[str, Any], where: tuple[str, ...]) -> Iterator[Figure]:
    value, time = part.get("busbw_gb_per_s"), part.get("timing")
    if value is not None and time:
        interval = timing.median_interval(time["samples_s"])
        yield Figure(where, "bus bandwidth", "GB/s", value, _inverse(interval, value * time["p50_s"]), HIGHER)


def _disk_rate(part: Mapping[str, Any], where: tuple[str, ...]) -> Iterator[Figure]:
    """Of writing or reading a checkpoint."""
    if (rate := part.get("mb_per_s")) is not None and part.get("samples_s"):
        interval = _inverse(timing.median_interval(part["samples_s"]), rate * part["p50_s"])
        yield Figure(where, "rate", "MB/s", rate, interval, HIGHER)


def _rate(part: Mapping[str, Any], where: tuple[str, ...]) -> Iterator[Figure]:
    """Of a matrix product: its FLOPs over the time of computing it, or of everything."""
    for key, name in (("compute", "rate of computing"), ("together", "rate, all included")):
        time = part.get(key, {}).get("timing") if "flops" in part and isinstance(part.get(key), dict) else None
        if time:
            seconds, flops = timing.percentile(time["samples_s"], 50), part["flops"] / 1e12
            interval = _inverse(timing.median_interval(time["samples_s"]), flops)
            yield Figure(where, name, "TFLOP/s", flops / seconds, interval, HIGHER)


def _row(part: Mapping[str, Any], where: tuple[str, ...]) -> Iterator[Figure]:
    """A row of `benchmarks.core.rows`, also as older records have it."""
    if isinstance(samples := part.get("samples"), list) and samples and "unit" in part:
        goal = part.get("goal")
        goal = {True: ">=", False: "<="}[bool(part["at_least"])] if goal and "at_least" in part else goal
        better = {">=": HIGHER, "<=": LOWER}.get(goal or "", "")
        value, unit = statistics.median(samples), str(part["unit"])
        yield Figure(where[:-1], str(part["name"]), unit, value, _ordered(timing.median_interval(samples)), better)


def _series(part: Mapping[str, Any], where: tuple[str, ...]) -> Iterator[Figure]:
    for key, unit in SERIES.items():
        samples = part.get(key)
        if isinstance(samples, list) and samples and "median" in part:
            what = "ratio" if unit == "x" else "time"
            yield Figure(where, what, unit, statistics.median(samples), timing.median_interval(samples), LOWER)


def _plain(part: Mapping[str, Any], where: tuple[str, ...]) -> Iterator[Figure]:
    for key, unit in PLAIN.items():
        if isinstance(part.get(key), int | float):
            yield Figure(where, key.removesuffix(f"_{unit}"), unit, float(part[key]), None, LOWER)


READERS = (_throughput, _timing, _bandwidth, _disk_rate, _rate, _row, _series, _plain)


def _scaled(interval: Sequence[float] | None, factor: float = 1.0) -> tuple[float, float] | None:
    return (interval[0] * factor, interval[1] * factor) if interval else None


def _inverse(interval: Sequence[float] | None, numerator: float) -> tuple[float, float] | None:
    """Of a rate, from the interval of its time."""
    return (numerator / interval[1], numerator / interval[0]) if interval and interval[0] > 0 else None


def _ordered(interval: tuple[float, float] | None) -> tuple[float, float] | None:
    return interval and (min(interval), max(interval))


# -- for people ----------------------------------------------------------------------------

#: unit -> the units it is shown in: the smallest value for each, its factor, its name
SCALES = {"s": [(1.0, 1.0, "s"), (1e-3, 1e3, "ms"), (0.0, 1e6, "µs")]}


def number(value: float) -> str:
    """With four significant digits, three of them at most behind the point."""
    if value == 0 or 1e-4 <= abs(value) < 1e4:
        return f"{value:.4g}"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.2e}"


def scale(values: Sequence[float], unit: str) -> tuple[float, str]:
    """The factor and the unit in which these values are easy to read."""
    largest = max((abs(v) for v in values), default=0.0)
    scales = SCALES.get(unit, [(0.0, 1.0, unit)])
    return next(((f, u) for least, f, u in scales if largest >= least), (1.0, unit))  # none fits what is no number


def text(value: float, unit: str) -> str:
    factor, unit = scale([value], unit)
    return f"{number(value * factor)} {unit}"


def interval_text(interval: Sequence[float] | None, value: float, unit: str) -> str:
    """The interval in the unit of its value."""
    if interval is None:
        return "–"
    factor, _ = scale([value], unit)
    return f"{number(interval[0] * factor)} – {number(interval[1] * factor)}"
