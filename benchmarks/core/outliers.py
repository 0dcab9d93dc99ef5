"""Which rank, link or node is slower than its peers: the rule, and the figure it found.

A rank is slow if its median time is `SLOW` times the median of the other ranks or more, and most of its samples lie
above most of theirs: its lower quartile above their upper quartile. It is slow *at times* if so many of its samples
are that slow that chance would do it in one run of a thousand, given how many of the others' are. A pair is slow if
it has 1 / `SLOW` of the median bandwidth of pairs of its kind, or less; within a node and between nodes are two
kinds. If most pairs of a rank are slow, it is the rank; otherwise it is the link.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.core.timing import percentile

SLOW = 1.25
#: pairs of one kind that are enough for a median that a slow one does not move
PAIRS = 4
#: the probability that a rank which is like the others counts as slow at times
CHANCE = 1e-3

Members = Sequence[Mapping[str, Any]]


def described(members: Members) -> list[dict[str, Any]]:
    """Each rank's place, for the record."""
    return [{"rank": rank, "host": m["host"], "gpu": m["gpu"]} for rank, m in enumerate(members)]


def by_rank(samples: Sequence[Sequence[float]], members: Members) -> list[dict[str, Any]]:
    """Each rank's place and median time."""
    places = described(members)
    return [place | {"p50_s": percentile(own, 50)} for place, own in zip(places, samples, strict=False)]


def slow_ranks(samples: Sequence[Sequence[float]], members: Members) -> list[dict[str, Any]]:
    """The slow ones, slowest first; ``node`` says whether all ranks of their host are slow."""
    rows = by_rank(samples, members)
    slow = [row | found for row in rows if (found := _compared(row["rank"], samples))]
    hosts = {row["host"]: [other["rank"] for other in rows if other["host"] == row["host"]] for row in rows}
    names = {row["rank"] for row in slow}
    for row in slow:
        row["node"] = len(hosts) > 1 and set(hosts[row["host"]]) <= names
    return sorted(slow, key=lambda row: -row["ratio"])


def _compared(rank: int, samples: Sequence[Sequence[float]]) -> dict[str, float] | None:
    own, others = samples[rank], [series for other, series in enumerate(samples) if other != rank]
    if not others:
        return None
    usual = statistics.median(percentile(series, 50) for series in others)
    apart = percentile(own, 25) > statistics.median(percentile(series, 75) for series in others)
    ratio = percentile(own, 50) / usual
    if apart and ratio >= SLOW:
        return {"others_s": usual, "ratio": ratio}
    late = [sample for sample in own if sample >= SLOW * usual]
    elsewhere = statistics.median(sum(sample >= SLOW * usual for sample in series) / len(series) for series in others)
    if not late or _by_chance(len(late), len(own), elsewhere) * len(samples) >= CHANCE:
        return None
    slow = percentile(late, 50)
    return {"others_s": usual, "ratio": slow / usual, "at_times_s": slow, "share": len(late) / len(own)}


def _by_chance(late: int, count: int, elsewhere: float) -> float:
    """The probability of so many late samples or more, if they are as frequent as elsewhere, plus one sample."""
    share = min(1.0, elsewhere + 1 / (count + 1))
    return sum(math.comb(count, k) * share**k * (1 - share) ** (count - k) for k in range(late, count + 1))


def slow_pairs(matrix: Sequence[Sequence[float | None]], members: Members) -> dict[str, Any]:
    """The slow pairs of a matrix of bandwidths (from, to), and the ranks that most of them have in common."""
    known = {(a, b): value for a, row in enumerate(matrix) for b, value in enumerate(row) if value is not None}
    inside = lambda pair: members[pair[0]]["host"] == members[pair[1]]["host"]
    pairs = []
    for pair, value in known.items():
        peers = [other for key, other in known.items() if inside(key) == inside(pair)]
        usual = statistics.median(peers)
        if len(peers) >= PAIRS and value * SLOW <= usual:
            pairs.append(
                {"from": pair[0], "to": pair[1], "gb_per_s": value, "usual_gb_per_s": usual, "ratio": usual / value}
            )
    counts = {rank: sum(rank in (p["from"], p["to"]) for p in pairs) for rank in range(len(matrix))}
    totals = {rank: sum(rank in pair for pair in known) for rank in range(len(matrix))}
    ranks = [rank for rank, count in counts.items() if count > totals[rank] / 2]
    places = described(members)
    return {"pairs": sorted(pairs, key=lambda p: -p["ratio"]), "ranks": [places[rank] for rank in ranks]}


def rank_words(slow: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line a slow rank, for the verdict."""
    return [
        f"rank {row['rank']} ({_place(row)}) takes {row.get('at_times_s', row['p50_s']) * 1e3:.4g} ms, "
        f"{row['ratio']:.2f} times the others' {row['others_s'] * 1e3:.4g} ms"
        f"{', in {:.0%} of its samples'.format(row['share']) if 'share' in row else ''}"
        f"{'; so do all ranks of its node' if row['node'] else ''}"
        for row in slow
    ]


def pair_words(slow: Mapping[str, Any]) -> list[str]:
    """One line a slow rank or link."""
    ranks = {row["rank"] for row in slow["ranks"]}
    links = [pair for pair in slow["pairs"] if not {pair["from"], pair["to"]} & ranks]
    return [
        *(f"most links of rank {row['rank']} ({_place(row)})" for row in slow["ranks"]),
        *(
            f"the link from rank {p['from']} to {p['to']} with {p['gb_per_s']:.3g} GB/s, "
            f"usual {p['usual_gb_per_s']:.3g}"
            for p in links
        ),
    ]


def _place(row: Mapping[str, Any]) -> str:
    return " on ".join(filter(None, [row["gpu"], row["host"]]))
