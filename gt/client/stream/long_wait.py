"""A wait that takes long prints its cause: the client asks the server for it.

Causes that end a wait, or that the client sees without the server, are reported elsewhere: a server that does not
answer (`gt.wire.leases.leased_connection`), a lost worker, and no worker at all.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from gt.errors import ConnectionLost
from gt.say import warn

#: Seconds after which a wait prints its cause. The next line of the same wait comes after four times as long, etc.
FIRST_REPORT_S, GROWTH = 15.0, 4.0
#: Seconds that the server may take to answer.
ANSWER_TIMEOUT_S = 10.0


class LongWait:
    """One wait of one thread. It may consist of several calls of `ServerConnection.wait`."""

    def __init__(self, questions: Questions) -> None:
        self._questions, self._begun = questions, time.monotonic()
        self._next = self._begun + FIRST_REPORT_S

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begun

    def check(self) -> bool:
        """Call this now and then during the wait. False: it does not end the wait."""
        if time.monotonic() >= self._next:
            if self in self._questions.open:
                self._questions.explained("the server does not say for what; it is busy, stopped or cannot be reached")
            else:
                self._next = time.monotonic() + ANSWER_TIMEOUT_S
                self._questions.ask(self)
        return False

    def reported(self) -> None:
        self._next = time.monotonic() + (GROWTH - 1) * self.seconds


class Questions:
    """What the waits of one connection have asked the server. ``send`` sends the question."""

    def __init__(self, send: Callable[[], None]) -> None:
        self._send = send
        #: waits whose question has no answer yet; one question is sent for all of them
        self.open: set[LongWait] = set()

    def ask(self, wait: LongWait) -> None:
        is_first = not self.open
        self.open.add(wait)
        if is_first:
            with contextlib.suppress(ConnectionLost):  # the wait ends too
                self._send()

    def explained(self, text: str) -> None:
        """Print the answer, unless no wait needs it any more."""
        waits, self.open = self.open, set()
        if waits:
            warn(f"waiting for {max(wait.seconds for wait in waits):.0f} s: {text}")
        for wait in waits:
            wait.reported()
