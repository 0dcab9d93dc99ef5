"""Samples of a repeated action, and their statistics.

The device is synchronised before and after every sample, or before and after a series of samples, where events in its
stream are read at the end. ``before``, which makes ranks start together, is outside the timed part. Warm-up is counted
in steps and discarded.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

Act = Callable[[], Any]
#: with fewer samples, p99 would only be their maximum
P99_FROM = 100


def nothing() -> None:
    pass


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(
    act: Act,
    *,
    warmup: int,
    iters: int,
    device: torch.device,
    before: Act = nothing,
    after: Act = nothing,
    events: bool = False,
) -> list[float]:
    """Seconds of each of ``iters`` actions, after ``warmup`` untimed ones. ``before`` and ``after`` are not timed."""
    for _ in range(warmup):
        before()
        act()
        after()
    synchronize(device)
    one = _by_events if events and device.type == "cuda" else _by_clock
    return one(act, iters, device, before, after)


def _by_clock(act: Act, iters: int, device: torch.device, before: Act, after: Act) -> list[float]:
    samples = []
    for _ in range(iters):
        before()
        synchronize(device)
        started = time.perf_counter()
        act()
        synchronize(device)
        samples.append(time.perf_counter() - started)
        after()
    return samples


def _by_events(act: Act, iters: int, device: torch.device, before: Act, after: Act) -> list[float]:
    pairs = []
    for _ in range(iters):
        before()
        pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
        pair[0].record()
        act()
        pair[1].record()
        pairs.append(pair)
        after()
    synchronize(device)
    return [started.elapsed_time(ended) / 1e3 for started, ended in pairs]


def laps(act: Act, *, iters: int, device: torch.device) -> list[float]:
    """Seconds from the end of one action to the end of the next, without waiting in between.

    The device is idle before the first and after the last; its own events give the times in between.
    """
    synchronize(device)
    marks = [_mark(device)]
    for _ in range(iters):
        act()
        marks.append(_mark(device))
    synchronize(device)
    pairs = itertools.pairwise(marks)
    return [a.elapsed_time(b) / 1e3 if device.type == "cuda" else b - a for a, b in pairs]


def _mark(device: torch.device) -> Any:
    if device.type != "cuda":
        return time.perf_counter()
    event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def percentile(samples: Sequence[float], percent: float) -> float:
    """With linear interpolation between the two nearest samples."""
    return float(np.percentile(np.asarray(samples), percent))


def variation(samples: Sequence[float]) -> float | None:
    """The coefficient of variation: sample deviation over mean."""
    if len(samples) < 2:
        return None
    mean = statistics.fmean(samples)
    return statistics.stdev(samples) / mean if mean else None


def median_interval(samples: Sequence[float], seed: int = 0) -> tuple[float, float] | None:
    """The 95 % bootstrap interval of the median; the seed makes it reproducible."""
    return _interval(samples, np.median, seed)


def mean_interval(samples: Sequence[float], seed: int = 0) -> tuple[float, float] | None:
    """The same for the mean: for a throughput, in which every step counts, also the slow ones."""
    return _interval(samples, np.mean, seed)


def _interval(samples: Sequence[float], of: Any, seed: int, rounds: int = 1000) -> tuple[float, float] | None:
    if len(samples) < 3:
        return None
    values = np.asarray(samples)
    indices = np.random.default_rng(seed).integers(0, len(values), (rounds, len(values)))
    low, high = np.percentile(of(values[indices], axis=1), [2.5, 97.5])
    return float(low), float(high)


def summary(samples: Sequence[float], seed: int = 0) -> dict[str, Any]:
    """The summary of a series of seconds in a record, with the samples."""
    interval = median_interval(samples, seed)
    return {
        "count": len(samples),
        "mean_s": statistics.fmean(samples),
        "min_s": min(samples),
        "max_s": max(samples),
        "p50_s": percentile(samples, 50),
        "p95_s": percentile(samples, 95),
        "p99_s": percentile(samples, 99) if len(samples) >= P99_FROM else None,
        "cv": variation(samples),
        "median_interval_95_s": list(interval) if interval else None,
        "samples_s": list(samples),
    }
