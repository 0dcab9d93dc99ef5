"""Where the time of a run went: its parts, and the parts of a step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from benchmarks.reports.reading import Read

#: the start of the processes is not within: it is before the record begins
REST = "checks, rest"


def wall_seconds(record: Read) -> float | None:
    """From start to end; None for a run without an end. Older records have whole seconds, rounded down."""
    if record.data["ended"] is None:
        return None
    started, ended = (datetime.fromisoformat(record.data[key]) for key in ("timestamp", "ended"))
    return (ended - started).total_seconds()


def parts(record: Read) -> dict[str, float]:
    """Seconds of each part that the record knows of, and of the rest; empty if it knows none."""
    seconds = dict(_parts(record.results, warmups=not record.config.get("together")))
    wall = wall_seconds(record)
    if seconds and wall is not None and (rest := wall - sum(seconds.values())) > 0:
        seconds[REST] = rest
    return seconds


def words(seconds: float) -> str:
    return f"{seconds:,.0f} s" if seconds >= 100 else f"{seconds:.3g} s"


def _parts(results: Mapping[str, Any], warmups: bool) -> Iterator[tuple[str, float]]:
    for name, part in results.items():
        if not isinstance(part, dict):
            continue
        cards = part.get("gpu")
        if name == "summary":  # over the epochs; only the check whether it is launch-bound is a part of its own
            if part.get("doubling"):
                yield "twice the batch", sum(_sampled(part["doubling"]))
        elif name == "epochs":
            yield "measured epochs", sum(epoch["wall_s"] for epoch in part.values())
        elif name == "warmup" and "wall_s" in part:
            yield "warm-up", part["wall_s"]
        elif "seconds" in (part.get("processor") or {}):
            yield name, part["processor"]["seconds"]
        elif isinstance(cards, list) and cards and "seconds" in cards[0]:
            yield name, max(card["seconds"] for card in cards)
        elif (samples := sum(_sampled(part, warmups))) > 0:
            yield name, samples


def _sampled(value: Any, warmups: bool = True) -> Iterator[float]:
    """The seconds of all timed samples within, and of warm-ups where they are recorded: those of several rows that ran
    at the same time (``--together``) are no parts of a whole."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "timing" and isinstance(inner, dict):
                yield sum(inner["samples_s"]) * inner.get("steps_per_sample", 1)
            elif key == "warmup_s" and isinstance(inner, int | float):
                yield inner * warmups
            else:
                yield from _sampled(inner, warmups)
    elif isinstance(value, list):
        for inner in value:
            yield from _sampled(inner, warmups)


def steps(record: Read) -> dict[str, dict[str, float]]:
    """Name of a training -> shares of its mean step in percent: waiting for data, exposed communication, the rest."""
    results = record.results
    trained = {"": results.get("summary")} if "epochs" in results else results.get("training", {})
    shares = {}
    for name, part in trained.items() if isinstance(trained, dict) else ():
        if isinstance(part, dict) and "timing" in part and "data_wait_share" in part:
            waiting = 100 * (part["data_wait_share"] or 0.0)
            exposed = 100 * ((part.get("exposed") or {}).get("seconds") or 0.0) / part["timing"]["mean_s"]
            rest = max(0.0, 100 - waiting - exposed)
            shares[name] = {"waiting for data": waiting, "exposed communication": exposed, "computing": rest}
    return shares


def products(record: Read) -> dict[str, dict[str, float]]:
    """Case of a matrix product -> seconds of creating, computing and reading."""
    keys = {"create": "creating", "compute": "computing", "retrieve": "reading"}
    by_case = {}
    for group in record.results.values():
        for case, counts in group.items() if isinstance(group, dict) else ():
            for n, run in counts.items() if isinstance(counts, dict) else ():
                if isinstance(run, dict) and set(keys) <= set(run):
                    times = {word: run[key]["timing"]["p50_s"] for key, word in keys.items()}
                    by_case[f"{case}, {n} worker{'s' if str(n) != '1' else ''}"] = times
    return by_case
