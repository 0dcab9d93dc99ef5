"""The parent: one process per row; they are warmed up, one after the other or at the same time, then take turns."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks.core.environment import ROOT
from benchmarks.hot.rows import Row, Work


@dataclass(frozen=True)
class Effort:
    rounds: int
    #: seconds of a row in a round, approximately
    seconds: float
    #: the longest warm-up, in seconds
    patience: float


FULL, QUICK = Effort(11, 0.3, 120.0), Effort(3, 0.1, 60.0)
#: the caches of compiled code, which a cold start has empty
CACHES = ("GT_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
#: seconds that a process may take to end; then it is killed, because torch's compiler may wait long for its helpers
END_S = 5.0


class Ended(Exception):
    """The process of a row has ended, or reported an error."""


class Process:
    def __init__(self, work: Work, row: Row, mode: str, caches: str = "") -> None:
        """``caches``: the folder for compiled code; by default the one that the machine has."""
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        clean = {k: v for k, v in os.environ.items() if not k.startswith("GT_") or k == "GT_CACHE_DIR"}
        if caches:
            clean |= {name: os.path.join(caches, row.name + mode, name) for name in CACHES}
        self._words = tempfile.TemporaryFile("w+")  # noqa: SIM115 (open as long as the process runs)
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.hot.child", work.name, row.name, mode],
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

    def ask(self, act: str, number: float = 0) -> dict[str, Any]:
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

    def end(self) -> None:
        """Tell it to end, without waiting for it."""
        assert self._popen.stdin is not None
        self._popen.stdin.close()

    def close(self) -> None:
        self.end()
        try:
            self._popen.wait(END_S)
        except subprocess.TimeoutExpired:
            self._popen.kill()
            self._popen.wait()
        self._words.close()


@dataclass
class Taken:
    """The figures of a row: its warm-up, and seconds per step in each round."""

    row: Row
    #: torch.compile's mode, and seconds per step of each mode that was tried
    mode: str = ""
    tried: dict[str, float] = field(default_factory=dict)
    #: the warm-up of each mode, and that of the mode that is measured
    warmups: dict[str, dict[str, Any]] = field(default_factory=dict)
    warm: dict[str, Any] = field(default_factory=dict)
    #: the warm-up of a second process, which has the caches of the first
    cached: dict[str, Any] = field(default_factory=dict)
    samples: list[float] = field(default_factory=list)
    #: seconds of single steps with a read, for programs that measure them; with a read in each step, in each round
    each: list[float] = field(default_factory=list)
    read_samples: list[float] = field(default_factory=list)
    #: losses or scores of the first steps, and the tolerance of a comparison
    check: dict[str, Any] = field(default_factory=dict)
    #: the most bytes: until the first round, and in the rounds
    peaks: list[dict[str, int]] = field(default_factory=list)
    #: why there are no more
    error: str = ""

    def add(self, figures: dict[str, Any]) -> None:
        self.samples.append(figures["step_s"])
        self.each += figures.get("each_s", [])
        self.read_samples += [figures["read_step_s"]] if "read_step_s" in figures else []


class Measuring:
    """The processes of all rows of one program."""

    def __init__(self, work: Work, rows: Sequence[Row], effort: Effort, gpu: bool, caches: str, say: Any) -> None:
        """``caches``: an empty folder for compiled code, so that each row starts cold; "": the machine's own."""
        self.work, self.effort, self.caches, self._say = work, effort, caches, say
        self.figures = {row.name: Taken(row) for row in rows}
        #: (row, mode) -> its process. Modes are the same without a GPU.
        self._processes: dict[tuple[str, str], Process] = {}
        self._modes = [(row, mode) for row in rows for mode in (row.modes if gpu else row.modes[:1])]
        self.steps = 0

    def run(self) -> None:
        """A row that fails is left out, with its reason."""
        try:
            self.start()
            self.warm_each()
            self.measure()
        finally:
            self.close()
        if self.caches:
            self._start_again()

    def start(self) -> None:
        """Start all processes, and wait until they are ready."""
        for row, mode in self._modes:
            self._processes[row.name, mode] = Process(self.work, row, mode, self.caches)
        self._each(lambda process, row, mode: process.hear())

    def warm_each(self) -> None:
        self._each(self._warm)

    def warmings(self) -> list[Callable[[], None]]:
        """The warm-ups as functions that may be called at the same time."""
        return [partial(self._one, key, process, self._warm) for key, process in self._processes.items()]

    def measure(self) -> None:
        self._keep_fastest()
        self._each(self._check)
        self.steps = self._steps()
        for _ in range(self.effort.rounds):
            self._each(lambda process, row, mode: row.add(process.ask("run", self.steps)))
        self._each(lambda process, row, mode: row.peaks.append(process.ask("memory")))

    def close(self) -> None:
        for process in self._processes.values():
            process.end()
        for process in self._processes.values():
            process.close()
        self._processes.clear()

    def _each(self, act: Callable[[Process, Taken, str], Any]) -> None:
        for key, process in list(self._processes.items()):
            self._one(key, process, act)

    def _one(self, key: tuple[str, str], process: Process, act: Callable[[Process, Taken, str], Any]) -> None:
        name, mode = key
        try:
            act(process, self.figures[name], mode)
        except Ended as ended:
            process.close()
            del self._processes[key]
            left = [row for row, _ in self._processes if row == name]
            self.figures[name].error = "" if left else str(ended)
            self._say(f"notice: {name} {mode} is left out: {ended}")

    def _warm(self, process: Process, row: Taken, mode: str) -> None:
        warm = process.ask("warm", self.effort.patience)
        row.warmups[mode] = warm
        seconds = f"{warm['warmup_s']:.1f} s, first step {warm['first_step_s']:.1f} s"
        self._say(f"{self.work.name}: {row.row.name} {mode} is warm after {seconds}")

    def _keep_fastest(self) -> None:
        """Of a row with several modes, keep the process of the fastest one."""
        self._each(self._try)
        for row in self.figures.values():
            if row.tried:
                row.mode = min(row.tried, key=row.tried.__getitem__)
                row.warm = row.warmups[row.mode]
        for name, mode in list(self._processes):
            if mode != self.figures[name].mode:
                self._processes.pop((name, mode)).close()

    def _try(self, process: Process, row: Taken, mode: str) -> None:
        row.tried[mode] = min(process.ask("run", self.work.chunk)["step_s"] for _ in range(3))

    def _check(self, process: Process, row: Taken, mode: str) -> None:
        row.check = process.ask("check")
        row.peaks.append(process.ask("memory"))

    def _steps(self) -> int:
        """The steps that fit into a sample, by the first row."""
        quickest = next((min(row.tried.values()) for row in self.figures.values() if row.tried), None)
        return int(min(2000, max(1, round(self.effort.seconds / quickest)))) if quickest else 0

    def _start_again(self) -> None:
        """One process after the other, with the caches that the first ones have filled."""
        for name, row in self.figures.items():
            if row.row.caches and not row.error:
                process = self._processes[name, row.mode] = Process(self.work, row.row, row.mode, self.caches)
                try:
                    process.hear()
                    row.cached = process.ask("warm", self.effort.patience)
                    self._say(f"{self.work.name}: {name}, again, is warm after {row.cached['warmup_s']:.1f} s")
                except Ended as ended:
                    self._say(f"notice: {name} has no second start: {ended}")
                finally:
                    self.close()
