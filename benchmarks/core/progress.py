"""The progress of a long run: a bar on a terminal, sometimes a line in a log, nothing on ranks other than the first."""

from __future__ import annotations

import sys
import time
from typing import Any, TextIO

#: seconds between two lines without a terminal
EVERY = 10.0


class Progress:
    """``with Progress("training", steps) as bar: bar.step("ddp")``"""

    def __init__(self, label: str, total: int, *, rank: int = 0, file: TextIO | None = None) -> None:
        self.label, self.total, self.done = label, total, 0
        self._out = file or sys.stderr
        self._quiet = rank != 0
        self._bar: Any = None
        self._said = time.monotonic()

    def __enter__(self) -> Progress:
        if not self._quiet and self._out.isatty():
            self._bar = _bar(self._out)
        if self._bar:
            self._bar.start()
            self._task = self._bar.add_task(self.label, total=self.total)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def step(self, what: str = "", count: int = 1) -> None:
        self.done += count
        if self._bar:
            self._bar.update(self._task, advance=count, description=f"{self.label} {what}".strip())
        elif not self._quiet and (time.monotonic() - self._said > EVERY):
            self._said = time.monotonic()
            print(f"{self.label} {what}: {self.done} of {self.total}", file=self._out, flush=True)


def _bar(out: TextIO) -> Any:
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar
    except ModuleNotFoundError:
        return None
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    return Bar(*columns, console=Console(file=out), transient=True)
