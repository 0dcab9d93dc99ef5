"""The schedules by name. Each is a function of (stages, microbatches, chunks) that returns one row for each stage.

    gpipe              all forwards, then all backwards
    1f1b               a stage alternates forwards and backwards, so it holds at most as many microbatches as there are
                       stages behind it, itself included
    interleaved_1f1b   the same with several parts on each stage: a microbatch passes all stages once for each chunk, so
                       the stages have work earlier
    zb_h1              1f1b with B split into I and W. Later stages delay W, and run it where they would be idle. No
                       stage holds more microbatches than the first stage of 1f1b
    zbv                two parts on each stage, in the order 0 1 2 3 3 2 1 0, with B split. The last part is on the
                       first stage, whose backward can begin at once

References: GPipe (arXiv 1811.06965), PipeDream-Flush and interleaving (2104.04473), zero bubble (2401.10241), ZB-V
(2405.15362).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

from gt.errors import ConfigError
from gt.pipeline.actions import Action, Schedule

Rows = list[list[Action]]


def _gpipe(stages: int, microbatches: int, chunks: int) -> Rows:
    return [[Action(kind, s, m) for kind in "FB" for m in range(microbatches)] for s in range(stages)]


def _1f1b(stages: int, microbatches: int, chunks: int) -> Rows:
    return [
        _alternate(
            [Action("F", s, m) for m in range(microbatches)],
            [Action("B", s, m) for m in range(microbatches)],
            stages - s,
        )
        for s in range(stages)
    ]


def _alternate(forwards: list[Action], backwards: list[Action], warmup: int) -> list[Action]:
    """``warmup`` forwards, then in turn a backward and a forward, then the remaining backwards."""
    rest = forwards[warmup:]
    pairs = chain.from_iterable(zip(backwards, rest, strict=False))
    return [*forwards[:warmup], *pairs, *backwards[len(rest) :]]


def _interleaved_1f1b(stages: int, microbatches: int, chunks: int) -> Rows:
    """The microbatches go in groups of as many as there are stages. Those that are missing in the last group are left
    out, which keeps the order of the others."""
    groups = range(0, microbatches, stages)
    rows = []
    for s in range(stages):
        forwards, backwards = (
            [
                Action(kind, chunk * stages + s, m)
                for first in groups
                for chunk in order
                for m in range(first, first + stages)
            ]
            for kind, order in (("F", range(chunks)), ("B", range(chunks - 1, -1, -1)))
        )
        row = _alternate(forwards, backwards, 2 * (stages - s - 1) + (chunks - 1) * stages + 1)
        rows.append([action for action in row if action.microbatch < microbatches])
    return rows


def _zb_h1(stages: int, microbatches: int, chunks: int) -> Rows:
    """Stage s runs W of a microbatch after I of the microbatch s later."""
    rows = []
    for s in range(stages):
        row = [Action("F", s, m) for m in range(min(stages - s, microbatches))]
        for m in range(microbatches):
            row.append(Action("I", s, m))
            if m >= s:
                row.append(Action("W", s, m - s))
            if m + stages - s < microbatches:
                row.append(Action("F", s, m + stages - s))
        row += [Action("W", s, m) for m in range(max(microbatches - s, 0), microbatches)]
        rows.append(row)
    return rows


def _zbv(stages: int, microbatches: int, chunks: int) -> Rows:
    """The rows are made for at least 2 * stages - 1 microbatches. Those that are missing are left out, which keeps the
    order of the others."""
    rows = []
    for s in range(stages):
        row = _ZbvRow(s, 2 * stages - 1 - s, max(microbatches, 2 * stages - 1)).build(stages)
        rows.append([action for action in row if action.microbatch < microbatches])
    return rows


class _ZbvRow:
    """The row of a stage that runs the parts ``first`` and ``second``."""

    def __init__(self, first: int, second: int, microbatches: int) -> None:
        self.first, self.second, self.microbatches = first, second, microbatches
        self.row: list[Action] = []
        #: (kind, part) -> the next microbatch
        self.next: dict[tuple[str, int], int] = {}

    def add(self, kinds: str, part: int) -> None:
        for kind in kinds:
            microbatch = self.next.get((kind, part), 0)
            self.next[kind, part] = microbatch + 1
            self.row.append(Action(kind, part, microbatch))

    def count(self, kind: str, part: int) -> int:
        return self.next.get((kind, part), 0)

    def build(self, stages: int) -> list[Action]:
        s, first, second = self.first, self.first, self.second
        for _ in range(2 * (stages - s) - 1):
            self.add("F", first)
        for _ in range(s):
            self.add("F", second)
            self.add("F", first)
        for _ in range(stages - s):
            self.add("FIW", second)
        while self.count("F", second) < self.microbatches:
            if self.count("F", first) < self.microbatches:
                self.add("F", first)
            self.add("IW", first)
            self.add("FIW", second)
        for _ in range(s):
            self.add("I", first)
            self.add("I", second)
        for _ in range(stages - s):
            self.add("IW", first)
        for part in (second, first):
            while self.count("W", part) < self.microbatches:
                self.add("W", part)
        return self.row


#: name -> the function that makes the rows, and the number of chunks unless another is given
SCHEDULES: dict[str, tuple[Callable[[int, int, int], Rows], int]] = {
    "gpipe": (_gpipe, 1),
    "1f1b": (_1f1b, 1),
    "interleaved_1f1b": (_interleaved_1f1b, 2),
    "zb_h1": (_zb_h1, 1),
    "zbv": (_zbv, 2),
}
#: The schedules with another number of chunks than the one in `SCHEDULES`.
ANY_CHUNKS = ("interleaved_1f1b",)


def make_schedule(name: str, stages: int, microbatches: int, chunks: int | None = None) -> Schedule:
    """The schedule of this name. ``chunks`` is the number of parts that each stage runs.

    Example::

        gt.pipeline.make_schedule("1f1b", stages=4, microbatches=8)
    """
    if name not in SCHEDULES:
        raise ConfigError(f"there is no schedule {name!r}; there are: {', '.join(SCHEDULES)}, and files (.csv, .yaml)")
    make, default = SCHEDULES[name]
    chunks = default if chunks is None else chunks
    for what, value in (("stages", stages), ("microbatches", microbatches), ("chunks", chunks)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ConfigError(f"schedule {name}: {what}={value!r}; expected an integer, 1 or more")
    if chunks != default and name not in ANY_CHUNKS:
        raise ConfigError(f"schedule {name}: chunks={chunks}; this schedule has {default} on each stage")
    return Schedule(make(stages, microbatches, chunks), name)


def chunks_of(name: str) -> int:
    """The number of parts on each stage, unless another is given."""
    return SCHEDULES[name][1] if name in SCHEDULES else 1


def forward_schedule(schedule: Schedule, microbatches: int) -> Schedule:
    """All forwards on the same stages, for an evaluation. A microbatch enters as early as the stages allow."""
    rows: Rows = [[] for _ in range(schedule.stages)]
    for m in range(microbatches):
        for part, stage in enumerate(schedule.stage_of):
            rows[stage].append(Action("F", part, m))
    for row in rows:
        row.sort(key=lambda action: (action.microbatch // len(rows), action.part, action.microbatch))
    return Schedule(rows, "forward")
