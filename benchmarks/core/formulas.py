"""The arithmetic of the suites. ``t`` is in seconds, ``n`` the number of ranks, GB = 1e9 bytes, GiB = 2**30 bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

GB, GIB = 1e9, 2**30

#: operation -> bytes through a rank's link for each byte of S, on n ranks
BUS_FACTORS: dict[str, Callable[[int], float]] = {
    "allreduce": lambda n: 2 * (n - 1) / n,
    "allgather": lambda n: (n - 1) / n,
    "reducescatter": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
    "p2p": lambda n: 1.0,
    # both directions at once: S bytes each way, 2S/t; not comparable with a one-way figure
    "p2p_bidirectional": lambda n: 2.0,
}


def algorithm_bandwidth(size: int, seconds: float) -> float:
    """S/t in GB/s, of the median time."""
    return size / seconds / GB


def bus_bandwidth(operation: str, size: int, seconds: float, ranks: int) -> float | None:
    """The rate of the slowest link, in GB/s; one rank has no link."""
    if ranks == 1:
        return None
    return algorithm_bandwidth(size, seconds) * BUS_FACTORS[operation](ranks)


# -- fits ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Line:
    """y = intercept + slope * x, with the share of the variance it explains."""

    intercept: float
    slope: float
    r2: float


def least_squares(xs: Sequence[float], ys: Sequence[float], weights: Sequence[float] | None = None) -> Line:
    """The weighted straight line through the points."""
    w = list(weights or [1.0] * len(xs))
    total = sum(w)
    mx = sum(a * x for a, x in zip(w, xs, strict=True)) / total
    my = sum(a * y for a, y in zip(w, ys, strict=True)) / total
    sxx = sum(a * (x - mx) ** 2 for a, x in zip(w, xs, strict=True))
    if len(xs) < 2 or sxx == 0:
        raise ValueError(
            f"a line through {len(xs)} points at x = {sorted(set(xs))} is not determined: give 2 or more x"
        )
    slope = sum(a * (x - mx) * (y - my) for a, x, y in zip(w, xs, ys, strict=True)) / sxx
    intercept = my - slope * mx
    residual = sum(a * (y - intercept - slope * x) ** 2 for a, x, y in zip(w, xs, ys, strict=True))
    spread = sum(a * (y - my) ** 2 for a, y in zip(w, ys, strict=True))
    return Line(intercept, slope, 1.0 if spread == 0 else 1 - residual / spread)


@dataclass(frozen=True)
class AlphaBeta:
    """t = alpha + S/beta: latency in seconds, bandwidth in bytes per second, the size that reaches half of it."""

    alpha_s: float
    beta_bytes_per_s: float
    half_bandwidth_bytes: float
    r2: float

    def predict(self, size: float) -> float:
        return self.alpha_s + size / self.beta_bytes_per_s


def alpha_beta(sizes: Sequence[float], seconds: Sequence[float]) -> AlphaBeta | None:
    """The fit of a sweep, by relative error: a sweep spans six decades, and its largest size would otherwise dominate.

    None if the times do not grow with the size: then there is no bandwidth.
    """
    if len(set(sizes)) < 2:
        return None
    line = least_squares(sizes, seconds, [1 / t**2 for t in seconds])
    if line.slope <= 0:
        return None
    alpha = max(0.0, line.intercept)
    return AlphaBeta(alpha, 1 / line.slope, alpha / line.slope, line.r2)


# -- scaling -------------------------------------------------------------------------------


def weak_efficiency(throughput_n: float, ranks: int, throughput_1: float) -> float:
    """Weak scaling, the batch per rank is fixed: E = (thr_N / N) / thr_1."""
    return throughput_n / ranks / throughput_1


def strong_efficiency(seconds_1: float, seconds_n: float, ranks: int) -> float:
    """Strong scaling, the global batch is fixed: E = T_1 / (N T_N)."""
    return seconds_1 / (ranks * seconds_n)


def scaling_label(efficiency: float) -> str:
    """Over 80 % is good, over 90 % excellent; over 105 % the measurement is wrong."""
    steps = [(1.05, "suspicious"), (0.90, "excellent"), (0.80, "good")]
    return next((label for bound, label in steps if efficiency > bound), "below good")


def karp_flatt(speedup: float, ranks: int) -> float | None:
    """The serial fraction that would explain the speedup on n ranks."""
    return None if ranks == 1 else (1 / speedup - 1 / ranks) / (1 - 1 / ranks)


def geometric_mean(values: Sequence[float]) -> float:
    """The mean of ratios."""
    if not values or min(values) <= 0:
        raise ValueError(f"the geometric mean needs positive numbers, got {list(values)}")
    return math.exp(sum(map(math.log, values)) / len(values))


# -- cost and energy -----------------------------------------------------------------------


def dollars_per_million(dollars_per_hour: float, samples_per_s: float) -> float:
    """$ for a million samples; the price includes everything that produces them."""
    return dollars_per_hour / (3600 * samples_per_s) * 1e6


def joules_per_sample(joules: float, samples: float) -> float:
    return joules / samples


def break_even_price(price_a: float, throughput_a: float, gpus_a: int, throughput_b: float, gpus_b: int) -> float:
    """The price of a GPU-hour at which a sample costs as much on B as on A."""
    return price_a * (throughput_b / gpus_b) / (throughput_a / gpus_a)


# -- memory --------------------------------------------------------------------------------


def memory_fit(batches: Sequence[int], peaks: Sequence[float]) -> Line:
    """peak(b) = a + c b over at least three batch sizes."""
    if len(set(batches)) < 3:
        raise ValueError(f"a memory fit needs 3 different batch sizes, got {sorted(set(batches))}")
    return least_squares(batches, peaks)


def largest_batch(fit: Line, budget: float) -> int | None:
    """The largest batch whose predicted peak is within the budget; 0 if none is, None if memory does not grow."""
    if fit.slope <= 0:
        return None
    return max(0, math.floor((budget - fit.intercept) / fit.slope))
