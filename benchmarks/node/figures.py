"""One figure of all devices: the slowest rank's samples, every rank's median, and ranks slower than their peers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.core import outliers, timing, verdict
from benchmarks.core.ranks import World
from benchmarks.core.rows import Row

RULES = ["shared_gpu", "cv", "slow"]


def figure(world: World, name: str, work: float, unit: str, seconds: Sequence[float]) -> dict[str, Any]:
    """``work`` in units of the rate, done in each of the seconds, on every rank."""
    everyone = world.gather(list(seconds))
    medians = [timing.percentile(own, 50) for own in everyone]
    slowest = medians.index(max(medians))
    row = Row(name, [work / second for second in everyone[slowest]], unit)
    slow = outliers.slow_ranks(everyone, world.members)
    facts = {
        "cv": timing.variation(everyone[slowest]),
        "slow": outliers.rank_words(slow),
        "ranks_per_gpu": world.ranks_per_gpu(),
    }
    places = outliers.described(world.members)
    return row.record() | {
        "rank": slowest,
        "by_rank": [place | {"value": work / median} for place, median in zip(places, medians, strict=True)],
        "slow": slow,
        "timing": timing.summary(everyone[slowest]),
        "verdict": verdict.judge(facts, RULES, name),
    }
