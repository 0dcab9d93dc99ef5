"""Workers that are expected to join a server: which have, which are missing and why.

`Joining` is the state. `JoiningDisplay` shows it: a live table on a terminal, otherwise one line for each change.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from rich.table import Table

#: States of an expected worker.
WAITING, JOINED, FAILED = "waiting", "joined", "failed"
#: A live table shows at most this many rows, first those that have not joined.
MAX_ROWS = 30


class Joining:
    """The workers of these names are expected. May be used by several threads.

    Example::

        joining = Joining(["host1/0", "host1/1"])
        joining.joined("host1/0", "worker 0 on cpu (torch)")
        joining.failed("host1/1", "Permission denied (publickey).")
        print(joining.summary())  # 1 of 2 workers joined
    """

    def __init__(self, names: Iterable[str]) -> None:
        self._lock = threading.Lock()
        #: name -> (state, text)
        self._rows: dict[str, tuple[str, str]] = dict.fromkeys(names, (WAITING, "not started"))

    def note(self, name: str, text: str) -> None:
        """What a worker that has not joined does at present."""
        self._set(name, WAITING, text)

    def joined(self, name: str, text: str = "") -> None:
        self._set(name, JOINED, text)

    def failed(self, name: str, reason: str) -> None:
        """This worker will not join, or it has ended."""
        self._set(name, FAILED, reason)

    def _set(self, name: str, state: str, text: str) -> None:
        with self._lock:
            if name not in self._rows:
                raise KeyError(f"no worker {name!r} is expected")
            self._rows[name] = (state, text)

    @property
    def rows(self) -> dict[str, tuple[str, str]]:
        """Name -> (state, text)."""
        with self._lock:
            return dict(self._rows)

    @property
    def missing(self) -> dict[str, str]:
        """Name -> why it has not joined."""
        return {name: text for name, (state, text) in self.rows.items() if state != JOINED}

    @property
    def complete(self) -> bool:
        """Whether all have joined."""
        return not self.missing

    @property
    def hopeless(self) -> bool:
        """Whether one of them has failed."""
        return any(state == FAILED for state, _ in self.rows.values())

    @property
    def settled(self) -> bool:
        """Whether each of them has joined or failed."""
        return all(state != WAITING for state, _ in self.rows.values())

    def summary(self) -> str:
        rows = self.rows
        joined = sum(state == JOINED for state, _ in rows.values())
        return f"{joined} of {len(rows)} worker{'s' * (len(rows) != 1)} joined"

    def explain_missing(self) -> list[str]:
        """A line for each worker that has not joined: its name and the reason. Equal reasons share a line."""
        by_reason: dict[str, list[str]] = {}
        for name, reason in self.missing.items():
            by_reason.setdefault(reason, []).append(name)
        return [f"{', '.join(names)}: {reason}" for reason, names in by_reason.items()]


class JoiningDisplay:
    """Inside the block, `update` shows what has changed."""

    def __init__(self, joining: Joining, stream: TextIO | None = None) -> None:
        self._joining = joining
        self._stream: TextIO = stream or sys.stdout
        self._shown = joining.rows
        self._live: Any = None

    def __enter__(self) -> JoiningDisplay:
        if self._stream.isatty():
            from rich.console import Console
            from rich.live import Live

            self._live = Live(_table(self._joining), console=Console(file=self._stream), refresh_per_second=8)
            self._live.start()
        return self

    def update(self) -> None:
        if self._live is not None:
            self._live.update(_table(self._joining))
            return
        rows = self._joining.rows
        for name, (state, text) in rows.items():
            if self._shown[name] != (state, text):
                print(f"{name}  {state}" + (f": {text}" if text else ""), file=self._stream, flush=True)
        self._shown = rows

    def __exit__(self, *_: object) -> None:
        self.update()
        if self._live is not None:
            self._live.stop()


def _table(joining: Joining) -> Table:
    from rich.table import Table
    from rich.text import Text

    colours = {WAITING: "yellow", JOINED: "green", FAILED: "red"}
    rows = sorted(joining.rows.items(), key=lambda row: row[1][0] == JOINED)
    table = Table(title=joining.summary(), title_justify="left", box=None)
    for column in ("worker", "state", ""):
        table.add_column(column)
    for name, (state, text) in rows[:MAX_ROWS]:
        table.add_row(Text(name), Text(state, colours[state]), Text(text))
    if len(rows) > MAX_ROWS:
        table.add_row(f"and {len(rows) - MAX_ROWS} more", "", "")
    return table
