"""Samples of a repeated action, and their statistics.

The device is synchronised before and after every sample, or before and after a series of samples, where events in its
stream are read at the end. ``before``, which makes ranks start together, is outside the timed part. Warm-up is counted
in steps and discarded.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

Act = Callable[[], Any]
#: with fewer samples, p99 would only be their maximum
P99_FROM = 100
#: the share of a run at its ends that is compared
END = 0.1


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
        started = mark(device)
        act()
        pairs.append((started, mark(device)))
        after()
    synchronize(device)
    return [between(*pair) for pair in pairs]


def mark(device: torch.device) -> Any:
    """A moment in the device's stream: an event on a GPU, the clock on a CPU."""
    if device.type != "cuda":
        return time.perf_counter()
    event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def between(first: Any, second: Any) -> float:
    """Seconds between two marks of one device, which is idle by now."""
    return second - first if isinstance(first, float) else first.elapsed_time(second) / 1e3


def percentile(samples: Sequence[float], percent: float) -> float:
    """With linear interpolation between the two nearest samples."""
    return float(np.percentile(np.asarray(samples), percent))


def variation(samples: Sequence[float]) -> float | None:
    """The coefficient of variation: sample deviation over mean."""
    if len(samples) < 2:
        return None
    mean = statistics.fmean(samples)
    return statistics.stdev(samples) / mean if mean else None


def end_over_beginning(seconds: Sequence[float]) -> float:
    """The rate at the end over that at the beginning: below 1 where a device became slower."""
    count = max(1, round(END * len(seconds)))
    return statistics.median(seconds[:count]) / statistics.median(seconds[-count:])


def median_interval(samples: Sequence[float], seed: int = 0) -> tuple[float, float] | None:
    """The 95 % interval of the median by bootstrap, for samples that may depend on those before them.

    It contains the median. The seed makes it reproducible. It says nothing about another run: that is `runs_interval`.
    """
    return _interval(samples, np.median, seed)


def mean_interval(samples: Sequence[float], seed: int = 0) -> tuple[float, float] | None:
    """The same for the mean: for a throughput, in which every step counts, also the slow ones."""
    return _interval(samples, np.mean, seed)


def runs_interval(figures: Sequence[float]) -> tuple[float, float] | None:
    """The 95 % interval of the mean of repeated runs, by how much they differ. None with fewer than three."""
    if len(figures) < 3:
        return None
    mean, half = statistics.fmean(figures), student(len(figures) - 1) * statistics.stdev(figures)
    return mean - half / math.sqrt(len(figures)), mean + half / math.sqrt(len(figures))


def _interval(samples: Sequence[float], of: Any, seed: int, rounds: int = 1000) -> tuple[float, float] | None:
    """The bootstrap draws independent samples; the width is that of as many as the series is worth.

    It may reach beyond the samples, by up to half of their range: those of a short series that depend on each other are
    all on one side of what a longer one would show.
    """
    if len(samples) < 3:
        return None
    values = np.asarray(samples)
    figure, count = float(of(values)), independent(samples)
    indices = np.random.default_rng(seed).integers(0, len(values), (rounds, len(values)))
    below, above = np.percentile(of(values[indices], axis=1), [2.5, 97.5]) - figure
    wider = math.sqrt(len(values) / (count - 1)) * student(count - 1) / NORMAL
    beyond = (values.max() - values.min()) / 2
    low = max(figure + min(0.0, below) * wider, values.min() - beyond)
    high = min(figure + max(0.0, above) * wider, values.max() + beyond)
    if values.min() > 0:  # no time is zero or negative
        low = max(low, values.min() / 2)
    return float(low), float(high)


def independent(samples: Sequence[float]) -> float:
    """How many independent samples a series is worth, if each depends on the one before it; at least 2.

    The estimated correlation of neighbours is too small in short series (Kendall 1954), which is corrected.
    """
    values = np.asarray(samples) - np.mean(samples)
    spread, count = float(values @ values), len(samples)
    if spread == 0 or count < 5:
        return float(count)
    measured = float(values[1:] @ values[:-1]) / spread
    correlation = min(0.99, max(0.0, (count * measured + 1) / (count - 3)))
    return max(2.0, count * (1 - correlation) / (1 + correlation))


#: the 97.5 % point of the normal distribution
NORMAL = statistics.NormalDist().inv_cdf(0.975)


def student(freedom: float) -> float:
    """The 97.5 % point of Student's t by its expansion around the normal one: 3 % too small at 2, exact for many."""
    z, d = NORMAL, freedom
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / d + second / d**2 + third / d**3


def rate_interval(rate: float, timing: Mapping[str, Any], seed: int = 0) -> list[float] | None:
    """The 95 % interval around a rate, from the mean of the step times in ``timing``."""
    interval = mean_interval(timing["samples_s"], seed)
    return [rate * timing["mean_s"] / bound for bound in reversed(interval)] if interval else None


def summary(samples: Sequence[float], seed: int = 0) -> dict[str, Any]:
    """The summary of a series of seconds in a record, with the samples."""
    interval = median_interval(samples, seed)
    return {
        **figures(samples),
        "median_interval_95_s": list(interval) if interval else None,
        "samples_s": list(samples),
    }


def figures(samples: Sequence[float]) -> dict[str, Any]:
    """The figures of a summary that follow from the samples alone."""
    return {
        "count": len(samples),
        "mean_s": statistics.fmean(samples),
        "min_s": min(samples),
        "max_s": max(samples),
        "p50_s": percentile(samples, 50),
        "p95_s": percentile(samples, 95),
        "p99_s": percentile(samples, 99) if len(samples) >= P99_FROM else None,
        "cv": variation(samples),
    }
