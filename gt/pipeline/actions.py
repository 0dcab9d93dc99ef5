"""What a schedule consists of, and its checks.

The model is cut into *parts*, numbered in the order of the forward pass. A *stage* is a set of workers that runs one
part, or several (its *chunks*). A schedule has one row for each stage: the actions of the stage, in order.

    F   forward of one microbatch through one part
    B   backward: the gradients of the part's inputs and of its parameters
    I   the first half of B: the gradients of the inputs, which the part before is waiting for
    W   the second half of B: the gradients of the parameters, which only the optimizer needs

An action is written as its kind and its microbatch, with the part in front if it differs from the number of the row:
``F0``, ``B3``, ``5I2``. A schedule is checked when it is created. The error names the stage and the action.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from gt.errors import ConfigError

#: The kinds of actions.
KINDS = ("F", "B", "I", "W")
_CELL = re.compile(r"([0-9]{0,9})([FBIW])([0-9]{1,9})")


class Action(NamedTuple):
    """One action of a schedule: a kind (F, B, I or W), a part of the model, and a microbatch."""

    kind: str
    part: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.part}{self.kind}{self.microbatch}"

    def needs(self, parts: int, split: bool) -> Iterator[Action]:
        """The actions that must come before it. ``split``: this microbatch's backward is I and W, not B."""
        kind, part, microbatch = self
        if kind == "F":
            if part:
                yield Action("F", part - 1, microbatch)
        elif kind == "W":
            yield Action("I", part, microbatch)
        else:
            yield Action("F", part, microbatch)
            if part + 1 < parts:
                yield Action("I" if split else "B", part + 1, microbatch)


def parse_action(text: str, row: int) -> Action:
    """The action that a cell of row ``row`` describes."""
    match = _CELL.fullmatch(text.strip()) if isinstance(text, str) else None
    if match is None:
        raise ConfigError(f"stage {row}: {text!r} is not an action; write F0, B0, I0 or W0, or 5F0 for part 5")
    part, kind, microbatch = match.groups()
    return Action(kind, int(part) if part else row, int(microbatch))


def _parse_row(row: Iterable[Action | str], number: int) -> tuple[Action, ...]:
    if isinstance(row, str):
        row = row.split()
    elif not isinstance(row, Iterable) or isinstance(row, Mapping):
        raise ConfigError(f"stage {number}: expected a list of actions such as [F0, B0], not {row!r}")
    return tuple(parse_action(str(cell) if isinstance(cell, Action) else cell, number) for cell in row)


class Schedule:
    """One row of actions for each stage, checked.

    A row is a list of `Action` and text such as ``"F0"``, or one text such as ``"F0 B0"``.

    Example::

        gt.pipeline.Schedule([["F0", "F1", "B0", "B1"], ["F0", "B0", "F1", "B1"]])
    """

    def __init__(self, rows: Iterable[Iterable[Action | str]], name: str = "custom") -> None:
        self.name = name
        if not isinstance(rows, Iterable):
            raise ConfigError(f"schedule {name}: expected a list with one item for each stage, not {rows!r}")
        self.rows: tuple[tuple[Action, ...], ...] = tuple(_parse_row(row, number) for number, row in enumerate(rows))
        if not any(self.rows):
            raise ConfigError(f"schedule {name}: there are no actions")
        if not all(self.rows):
            self._fail(self.rows.index(()), "there are no actions")
        actions = [action for row in self.rows for action in row]
        self.parts = 1 + max(action.part for action in actions)
        self.microbatches = 1 + max(action.microbatch for action in actions)
        #: for each part the number of its stage
        self.stage_of = self._stages()
        #: whether there are only forwards, as for an evaluation
        self.forward_only = all(action.kind == "F" for action in actions)
        self._check_counts(Counter(actions))
        #: (part, microbatch) pairs whose backward is split into I and W
        self.split = frozenset((part, microbatch) for kind, part, microbatch in actions if kind == "I")
        #: all actions, in an order in which each comes after those that it needs
        self.order = self._check_order()

    @property
    def stages(self) -> int:
        return len(self.rows)

    def needs(self, action: Action) -> Iterator[Action]:
        """The actions that must come before an action."""
        next_is_split = (action.part + 1, action.microbatch) in self.split
        return action.needs(self.parts, next_is_split)

    def _stages(self) -> tuple[int, ...]:
        stages: dict[int, int] = {}
        for number, row in enumerate(self.rows):
            for action in row:
                if stages.setdefault(action.part, number) != number:
                    self._fail(number, f"{action}: part {action.part} runs on stage {stages[action.part]} already")
        missing = next((part for part in range(self.parts) if part not in stages), None)
        if missing is not None:
            raise ConfigError(f"schedule {self.name}: no stage runs part {missing}")
        return tuple(stages[part] for part in range(self.parts))

    def _check_counts(self, counts: Mapping[Action, int]) -> None:
        """Each part runs each microbatch forward once, and backward once: either as B, or as I and W."""
        for part in range(self.parts):
            for microbatch in range(self.microbatches):
                n = {kind: counts.get(Action(kind, part, microbatch), 0) for kind in KINDS}
                backward = (n["B"], n["I"], n["W"])
                allowed: Sequence[tuple[int, ...]] = ((0, 0, 0),) if self.forward_only else ((1, 0, 0), (0, 1, 1))
                if n["F"] != 1 or backward not in allowed:
                    found = ", ".join(f"{kind} {count} times" for kind, count in n.items() if count) or "nothing"
                    problem = f"part {part} has for microbatch {microbatch}: {found}"
                    self._fail(self.stage_of[part], f"{problem}; expected F once, and B once or I and W once")

    def _check_order(self) -> tuple[Action, ...]:
        """Run the rows as far as they go. Raises ConfigError if all stages wait for each other."""
        done: dict[Action, None] = {}
        positions = [0] * self.stages
        while any(position < len(row) for position, row in zip(positions, self.rows, strict=True)):
            before = len(done)
            for number, row in enumerate(self.rows):
                while positions[number] < len(row) and all(a in done for a in self.needs(row[positions[number]])):
                    done[row[positions[number]]] = None
                    positions[number] += 1
            if len(done) == before:
                self._fail_waiting(positions, done)
        return tuple(done)

    def _fail_waiting(self, positions: list[int], done: Mapping[Action, None]) -> None:
        number = next(n for n, row in enumerate(self.rows) if positions[n] < len(row))
        action = self.rows[number][positions[number]]
        needed = next(a for a in self.needs(action) if a not in done)
        self._fail(number, f"{action} waits for {needed}, which never runs: it comes too late on its stage")

    def _fail(self, number: int, problem: str) -> None:
        raise ConfigError(f"schedule {self.name}: stage {number}: {problem}")

    def __repr__(self) -> str:
        return f"<Schedule {self.name}: {self.stages} stages, {self.parts} parts, {self.microbatches} microbatches>"
