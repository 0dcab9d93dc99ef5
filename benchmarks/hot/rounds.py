"""The parent: one process per row; they are warmed up one after the other, then take turns."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.core import timing, verdict
from benchmarks.core.environment import ROOT
from benchmarks.hot.rows import BASE, GOALS, Goal, Row, Work


@dataclass(frozen=True)
class Effort:
    rounds: int
    #: seconds of a row in a round, approximately
    seconds: float
    #: the longest warm-up, in seconds
    patience: float


FULL, QUICK = Effort(11, 0.3, 120.0), Effort(3, 0.1, 60.0)


class Ended(Exception):
    """The process of a row has ended, or reported an error."""


class Process:
    def __init__(self, work: Work, row: Row) -> None:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        clean = {k: v for k, v in os.environ.items() if not k.startswith("GT_") or k == "GT_CACHE_DIR"}
        self._words = tempfile.TemporaryFile("w+")  # noqa: SIM115 (open as long as the process runs)
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.hot.child", work.name, row.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            text=True,
            env={**clean, **row.environment, "PYTHONPATH": path},
        )

    def hear(self) -> dict[str, Any]:
        assert self._popen.stdout is not None
        line = self._popen.stdout.readline()
        answer = json.loads(line) if line else {"error": self._last_words()}
        if "error" in answer:
            raise Ended(answer["error"])
        return dict(answer)

    def ask(self, act: str, number: float) -> dict[str, Any]:
        assert self._popen.stdin is not None
        try:
            print(act, number, file=self._popen.stdin, flush=True)
        except OSError:
            raise Ended(self._last_words()) from None
        return self.hear()

    def _last_words(self) -> str:
        self._words.seek(0)
        lines = self._words.read().strip().splitlines()
        return lines[-1] if lines else f"it ended with {self._popen.poll()}"

    def close(self) -> None:
        assert self._popen.stdin is not None
        self._popen.stdin.close()
        try:
            self._popen.wait(20)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        self._words.close()


@dataclass
class Taken:
    """The figures of a row: its warm-up, and seconds per step in each round."""

    row: Row
    warm: dict[str, Any] = field(default_factory=dict)
    samples: list[float] = field(default_factory=list)
    #: why there are no more
    error: str = ""


def measure(work: Work, rows: Sequence[Row], effort: Effort, say: Any) -> tuple[dict[str, Taken], int]:
    """All rows of a program, and the steps per sample. A row that fails is left out, with its reason."""
    figures = {row.name: Taken(row) for row in rows}
    processes: dict[str, Process] = {}
    try:
        processes.update((row.name, Process(work, row)) for row in rows)

        def each(act: Callable[[Process, Taken], None]) -> None:
            for name, process in list(processes.items()):
                try:
                    act(process, figures[name])
                except Ended as ended:
                    _drop(processes, figures[name], str(ended), say)

        def warm(process: Process, row: Taken) -> None:
            row.warm = process.ask("warm", effort.patience)
            say(f"{work.name}: {row.row.name} is warm after {row.warm['warmup_s']:.1f} s")

        each(_ready)
        each(warm)
        steps = _steps(processes, work, effort)
        for _ in range(effort.rounds):
            each(lambda process, row: row.samples.append(process.ask("run", steps)["step_s"]))
    finally:
        for process in processes.values():
            process.close()
    return figures, steps


def _ready(process: Process, row: Taken) -> None:
    process.hear()


def _drop(processes: dict[str, Process], row: Taken, error: str, say: Any) -> None:
    row.error = error
    processes.pop(row.row.name).close()
    say(f"notice: {row.row.name} is left out: {error}")


def _steps(processes: dict[str, Process], work: Work, effort: Effort) -> int:
    """The steps that fit into a sample, by the first row."""
    if not processes:
        return 0
    first = next(iter(processes.values()))
    quickest = min(first.ask("run", work.chunk)["step_s"] for _ in range(3))
    return int(min(2000, max(1, round(effort.seconds / quickest))))


# -- results -----------------------------------------------------------------------------------


def ratio(ours: Taken, theirs: Taken) -> float | None:
    """The first row's step time divided by the second's: the median over the rounds."""
    pairs = list(zip(ours.samples, theirs.samples, strict=False))
    return statistics.median(o / t for o, t in pairs) if pairs else None


def goals(device: str, work: str, figures: dict[str, Taken]) -> list[tuple[Goal, float | None]]:
    declared = [goal for goal in GOALS if (goal.device, goal.work) == (device, work)]
    measured = [goal for goal in declared if goal.row in figures and goal.against in figures]
    return [(goal, ratio(figures[goal.row], figures[goal.against])) for goal in measured]


def record(work: str, row: Taken, figures: dict[str, Taken], steps: int) -> dict[str, Any]:
    """A row in the record."""
    row_record: dict[str, Any] = {"about": row.row.about, "environment": row.row.environment, **row.warm}
    if row.error:
        row_record["error"] = row.error
    if row.samples:
        row_record["timing"] = {**timing.summary(row.samples), "steps_per_sample": steps}
        row_record["ratio"] = {other: ratio(row, figures[other]) for other in figures if figures[other].samples}
        row_record["verdict"] = verdict.judge({"cv": timing.variation(row.samples)}, ["cv"], f"{work}/{row.row.name}")
    return row_record


def shown(device: str, work: str, figures: dict[str, Taken]) -> list[list[Any]]:
    """The lines of the table."""
    measured_goals = goals(device, work, figures)
    lines = []
    for name, row in figures.items():
        goal_texts = [_goal_text(goal, value) for goal, value in measured_goals if goal.row == name]
        step = statistics.median(row.samples) * 1e6 if row.samples else None
        against = ratio(row, figures[BASE]) if BASE in figures else None
        level = ", ".join(sorted(row.warm.get("levels", {}))) or ("" if row.row.library != "gt" else "words")
        lines.append(
            [row.row.about, step, against, "; ".join(goal_texts), row.warm.get("warmup_s"), level, row.error[:40]]
        )
    return lines


COLUMNS = ("row", "us a step", "x torch eager", "goal", "warm-up s", "levels", "left out")


def _goal_text(goal: Goal, value: float | None) -> str:
    against = "" if goal.against == BASE else f" x {goal.against}"
    reached = "not measured" if value is None else "reached" if value <= goal.bound else "MISSED"
    number = "" if value is None or not against else f" ({value:.2f})"
    return f"<= {goal.bound:g}{against} {reached}{number}"
