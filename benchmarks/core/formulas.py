"""The arithmetic of the suites. ``t`` is in seconds, ``n`` the number of ranks, GB = 1e9 bytes, GiB = 2**30 bytes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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


def message_elements(size: int, ranks: int, item_bytes: int) -> int:
    """As many elements as fit in the size and divide by the ranks, at least one for each rank."""
    return max(ranks, size // item_bytes // ranks * ranks)


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


#: sizes of a sweep that a fit needs, sizes of a piece, and pieces of a fit
FIT_SIZES, PIECE_SIZES, PIECES = 5, 3, 3
#: relative error of a point beyond which a fit is divided into more pieces
PIECE_ERROR = 0.10


@dataclass(frozen=True)
class Piece:
    """t = alpha + S * seconds_per_byte, for the measured sizes from ``smallest`` to ``largest``."""

    smallest: float
    largest: float
    alpha_s: float
    seconds_per_byte: float

    def seconds(self, size: float) -> float:
        return self.alpha_s + size * self.seconds_per_byte


@dataclass(frozen=True)
class AlphaBeta:
    """The fit t = alpha + S/beta of a sweep, in pieces where the library changes its protocol.

    A figure that the measured sizes do not show is None: the latency ``alpha_s`` if no size is dominated by it, the
    bandwidth if none is dominated by that, and the size that reaches half the bandwidth if it was not measured.
    """

    alpha_s: float | None
    beta_bytes_per_s: float | None
    half_bandwidth_bytes: float | None
    r2: float
    pieces: tuple[Piece, ...]

    def predict(self, size: float) -> float | None:
        """The time of a size within the measured range; None outside."""
        return predicted(self.pieces, size)


def predicted(pieces: Sequence[Piece], size: float) -> float | None:
    """By the piece of the size; between two pieces, by the nearer one on a logarithmic axis."""
    if not pieces[0].smallest <= size <= pieces[-1].largest:
        return None
    distance = lambda piece: max(piece.smallest / size, size / piece.largest, 1.0)
    return min(pieces, key=distance).seconds(size)


def alpha_beta(sizes: Sequence[float], seconds: Sequence[float]) -> AlphaBeta | None:
    """The fit of a sweep, by relative error: a sweep spans six decades, and its largest size would otherwise dominate.

    It has as few pieces as keep every point within `PIECE_ERROR`. None with fewer than `FIT_SIZES` sizes, or if the
    times do not grow with the size: then there is no bandwidth.
    """
    points = sorted(zip(sizes, seconds, strict=True))
    if len(set(sizes)) < FIT_SIZES:
        return None
    pieces = _pieced(points)
    last = pieces[-1]
    if last.seconds_per_byte <= 0:
        return None
    beta = 1 / last.seconds_per_byte
    first_half, last_half = (
        p.alpha_s / p.seconds_per_byte if p.seconds_per_byte else math.inf for p in (pieces[0], last)
    )
    return AlphaBeta(
        pieces[0].alpha_s if first_half >= pieces[0].smallest else None,
        beta if last_half <= last.largest else None,
        _half(pieces, beta),
        _explained(points, pieces),
        pieces,
    )


def _pieced(points: Sequence[tuple[float, float]]) -> tuple[Piece, ...]:
    """The fewest pieces that are near every point; with the most pieces allowed, the nearest ones."""
    found: tuple[Piece, ...] = ()
    for count in range(1, PIECES + 1):
        options = [tuple(map(_piece, parts)) for parts in _divided(points, count)]
        found = min(options, key=lambda pieces: _error(points, pieces)) if options else found
        if _error(points, found) <= PIECE_ERROR:
            break
    return found


def _divided(points: Sequence[tuple[float, float]], count: int) -> Iterator[list[Sequence[tuple[float, float]]]]:
    for cuts in itertools.combinations(range(1, len(points)), count - 1):
        parts = [points[a:b] for a, b in itertools.pairwise([0, *cuts, len(points)])]
        if all(len(part) >= PIECE_SIZES for part in parts):
            yield parts


def _piece(points: Sequence[tuple[float, float]]) -> Piece:
    """The line by relative error, with neither a negative latency nor a negative slope."""
    xs, ys = zip(*points, strict=True)
    weights = [1 / y**2 for y in ys]
    line = least_squares(xs, ys, weights)
    alpha, slope = line.intercept, line.slope
    if slope < 0:
        alpha, slope = sum(1 / y for y in ys) / sum(weights), 0.0
    elif alpha < 0:
        alpha, slope = 0.0, sum(x / y for x, y in points) / sum(w * x * x for w, x in zip(weights, xs, strict=True))
    return Piece(min(xs), max(xs), alpha, slope)


def _error(points: Sequence[tuple[float, float]], pieces: Sequence[Piece]) -> float:
    """The largest relative error of a point."""
    return max(abs((predicted(pieces, x) or 0.0) / y - 1) for x, y in points)


def _explained(points: Sequence[tuple[float, float]], pieces: Sequence[Piece]) -> float:
    """The share of the variance of log t that the pieces explain."""
    logs = [math.log(y) for _, y in points]
    mean = sum(logs) / len(logs)
    residual = sum((math.log(predicted(pieces, x) or y) - math.log(y)) ** 2 for x, y in points)
    spread = sum((log - mean) ** 2 for log in logs)
    return 1.0 if spread == 0 else 1 - residual / spread


def _half(pieces: Sequence[Piece], beta: float) -> float | None:
    """The smallest measured size with half of the bandwidth."""
    for piece in pieces:
        gain = 2 / beta - piece.seconds_per_byte
        size = piece.alpha_s / gain if gain > 0 else math.inf
        if size <= piece.largest:
            return max(size, piece.smallest) if size >= piece.smallest or piece is not pieces[0] else None
    return None


# -- throughput ----------------------------------------------------------------------------


def throughput(samples: int, seconds: float, tokens_per_sample: int, ranks: int) -> dict[str, float]:
    """All samples over all of the time, also that of slow steps; of all ranks together, and of each."""
    rate = samples / seconds
    tokens = rate * tokens_per_sample
    return {
        "samples_per_s": rate,
        "samples_per_s_per_rank": rate / ranks,
        "tokens_per_s": tokens,
        "tokens_per_s_per_rank": tokens / ranks,
    }


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


def scaling_point(mode: str, row: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a point relative to those on one rank."""
    size = row["ranks"]
    if mode == "weak":
        efficiency = weak_efficiency(row["samples_per_s"], size, base["samples_per_s"])
    else:
        efficiency = strong_efficiency(base["wall_s"], row["wall_s"], size)
    return {
        "efficiency": efficiency,
        "speedup": efficiency * size,
        "label": scaling_label(efficiency) if size > 1 else "baseline",
        "karp_flatt": karp_flatt(efficiency * size, size),
    }


def largest_difference(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """NaN if one of the differences is, which the maximum of Python hides."""
    differences = [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
    return math.nan if any(map(math.isnan, differences)) else max(differences)


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
