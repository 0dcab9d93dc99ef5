"""A schedule with set costs: when each action runs, the bubble (the idle share of a step), and the peak activations.

Unit costs are F = I = W = 1 and B = I + W = 2. With them, the formulas of `FORMULAS` are exact where they apply.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from gt.pipeline.actions import Action, Schedule

UNIT_COSTS: Mapping[str, float] = {"F": 1, "B": 2, "I": 1, "W": 1}


class TimedAction(NamedTuple):
    """When an action runs."""

    action: Action
    start: float
    end: float


def timeline(schedule: Schedule, costs: Mapping[str, float] = UNIT_COSTS) -> list[list[TimedAction]]:
    """For each stage its actions with their times. Each begins as soon as its stage is free and its inputs exist."""
    ends: dict[Action, float] = {}
    free = [0.0] * schedule.stages
    rows: list[list[TimedAction]] = [[] for _ in range(schedule.stages)]
    for action in schedule.order:
        stage = schedule.stage_of[action.part]
        start = max([free[stage], *[ends[needed] for needed in schedule.needs(action)]])
        ends[action] = free[stage] = start + costs[action.kind]
        rows[stage].append(TimedAction(action, start, free[stage]))
    return rows


def merged_order(schedule: Schedule) -> list[Action]:
    """All actions in the order in which they begin. A client that emits them in this order gives each stage its work in
    time: no stage waits for what is emitted later."""
    timed = [(t.start, stage, t.action) for stage, row in enumerate(timeline(schedule)) for t in row]
    return [action for _, _, action in sorted(timed, key=lambda item: item[:2])]


def bubble(schedule: Schedule, costs: Mapping[str, float] = UNIT_COSTS) -> float:
    """The share of a step in which a stage is idle, averaged over the stages, from simulated times.

    Example::

        gt.pipeline.bubble(gt.pipeline.make_schedule("1f1b", stages=4, microbatches=8))
    """
    rows = timeline(schedule, costs)
    length = max(row[-1].end for row in rows if row)
    busy = sum(t.end - t.start for row in rows for t in row)
    return 1 - busy / (length * len(rows))


#: schedule -> (whether the formula applies to these stages and microbatches, idle units of a stage, busy units)
FORMULAS: dict[str, tuple[Callable[[int, int], bool], Callable[[int, int, int], tuple[int, int]]]] = {
    "gpipe": (lambda p, m: True, lambda p, m, v: (3 * (p - 1), 3 * m)),
    "1f1b": (lambda p, m: True, lambda p, m, v: (3 * (p - 1), 3 * m)),
    "interleaved_1f1b": (lambda p, m: m % p == 0, lambda p, m, v: (3 * (p - 1), 3 * m * v)),
    "zb_h1": (lambda p, m: m >= p, lambda p, m, v: (p - 1, 3 * m)),
    "zbv": (lambda p, m: m >= 2 * p - 1, lambda p, m, v: (p - 1, 6 * m)),
}


def bubble_formula(name: str, stages: int, microbatches: int, chunks: int = 1) -> float | None:
    """The bubble by the formula of the schedule; None if it has none for these numbers.

    Example::

        gt.pipeline.bubble_formula("1f1b", stages=4, microbatches=8)
    """
    if name not in FORMULAS:
        return None
    applies, units = FORMULAS[name]
    if not applies(stages, microbatches):
        return None
    idle, busy = units(stages, microbatches, chunks)
    return idle / (busy + idle)


def peak_activations(schedule: Schedule) -> list[int]:
    """For each stage the most microbatches of which it holds activations at one time, added up over its parts.

    Activations are held from F to the end of B or W.

    Example::

        gt.pipeline.peak_activations(gt.pipeline.make_schedule("1f1b", stages=4, microbatches=8))
    """
    peaks = []
    for row in schedule.rows:
        held = peak = 0
        for action in row:
            held += {"F": 1, "B": -1, "W": -1, "I": 0}[action.kind]
            peak = max(peak, held)
        peaks.append(peak)
    return peaks
