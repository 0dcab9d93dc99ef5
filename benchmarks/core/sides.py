"""Two sides of a step, in turns, so that both run under the same load.

Exposed communication: passes with and without the exchange of gradients; the optimizer's part is the same in both and
is left out of both, because FSDP without exchange has no gradients for it. Under FSDP both include the gathering of
parameters, so only the reduction of gradients counts as exposed.

Doubling: passes of the batch and of twice the batch, without exchange; a device that waits for its instructions does
both in the same time. In both, the slowest rank of each turn counts, and then the statistics over the turns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.core import outliers, timing
from benchmarks.core.gauge import is_out_of_memory
from benchmarks.core.ranks import World
from benchmarks.core.trainer import Trainer

#: turns that warm up
WARM = 2
#: does an action and returns its seconds
Side = Callable[[], float]


def in_turns(first: Side, second: Side, turns: int) -> list[tuple[float, float]]:
    """The seconds of both sides in each turn, after the turns that warm up."""
    pairs = [(first(), second()) for _ in range(WARM + turns)]
    return pairs[WARM:]


def passes(trainer: Trainer, batch: Any, *, sync: bool) -> Side:
    """The passes of a batch; with exchange the ranks start together."""

    def side() -> float:
        act = lambda: trainer.passes(batch, sync)
        (seconds,) = timing.measure(act, warmup=0, iters=1, device=trainer.device)
        trainer.forget(batch, sync)
        return seconds

    return side


def exposed(world: World, trainer: Trainer, batch: Any, turns: int, seed: int = 0) -> dict[str, Any] | None:
    """The time of the exchange that does not overlap with computation; None on one rank, which exchanges nothing."""
    if world.size == 1:
        return None

    def together(side: Side) -> Side:
        return lambda: (world.barrier(), side())[1]

    sides = [together(passes(trainer, batch, sync=sync)) for sync in (True, False)]
    by_rank = world.gather(in_turns(*sides, turns))
    synced, unsynced = (timing.summary(slowest(by_rank, side), seed) for side in (0, 1))
    seconds = synced["p50_s"] - unsynced["p50_s"]
    own = [[pair[1] for pair in pairs] for pairs in by_rank]
    return {
        "seconds": seconds,
        "share_of_passes": seconds / synced["p50_s"],
        "synced": {"timing": synced},
        "unsynced": {"timing": unsynced},
        # without exchange no rank waits for another: its time is its own
        "by_rank": outliers.by_rank(own, world.members),
        "slow": outliers.slow_ranks(own, world.members),
    }


def slowest(by_rank: list[list[tuple[float, float]]], side: int) -> list[float]:
    """The maximum over the ranks in each turn."""
    return [max(pair[side] for pair in turn) for turn in zip(*by_rank, strict=True)]


def doubled(world: World, once: Side, twice: Side, turns: int, seed: int = 0) -> dict[str, Any] | None:
    """How much longer twice the batch takes; None if it does not fit on one of the ranks.

    The ranks do not wait for each other, so that one out of memory leaves no other waiting.
    """
    pairs = None
    try:
        pairs = in_turns(once, twice, turns)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
    by_rank = world.gather(pairs)
    if None in by_rank:
        return None
    one, two = (slowest(by_rank, side) for side in (0, 1))
    ratios = [b / a for a, b in zip(one, two, strict=True)]
    return {
        "ratio": timing.percentile(ratios, 50),
        "interval_95": timing.median_interval(ratios, seed),
        "once": {"timing": timing.summary(one, seed)},
        "twice": {"timing": timing.summary(two, seed)},
    }


def doubling_fact(result: dict[str, Any] | None) -> float | None:
    """The fact of the verdict: the upper end of the interval, so that noise alone never makes a run launch-bound."""
    interval = result and result["interval_95"]
    return interval[1] if interval else None
