"""One connection, many threads: whoever waits does the receiving for all.

A connection may be touched by one thread at a time, so there is a *turn*. To send, a thread puts its frames into
the outbox and takes the turn if it is free; if not, it wakes the holder, who sends them. To wait for a reply, a thread
takes the turn and polls; what arrives for others it hands over on the way. A background thread does both when nobody
else does: it sends what was left lying for a moment, and notices the end of the connection.

Ctrl-C may interrupt a wait, never the sending or the handling of a message: half a message would be worse than none.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` makes enums of all it returns: ten times as long
import contextlib
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Any, Protocol

from gt.errors import ConnectionLost
from gt.wire.transport import Connection

#: How often a waiting thread that does not hold the turn looks whether its reply is here.
GLANCE = 0.002
#: How long the background thread leaves instructions lying, and how long it sleeps when there are none.
SOON, LATER = 0.002, 0.02
_SIGINT = int(signal.SIGINT)


class Link(Protocol):
    """What a session needs of a connection; `gt.testing` has one without sockets."""

    def send(self, frames: list[Any]) -> None: ...

    def wait(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """Handle what arrives until ``ready()``; False after ``timeout`` seconds. Raises if the connection ends."""

    def close(self) -> None: ...


class ThreadedLink:
    def __init__(self, connection: Connection, handle: Callable[[list[bytes]], None]) -> None:
        self._connection, self._handle = connection, handle
        self._outbox: deque[list[Any]] = deque()
        #: who has it sends and receives; and who that is, once he does
        self._turn = threading.RLock()
        self._holder = 0
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        os.set_blocking(self._wake_write, False)
        connection.also_wake_on(self._wake_read)
        self._woken = False
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, flush: Callable[[], bool]) -> None:
        """``flush`` sends what has been lying for a while, and says whether there was anything."""
        self._thread = threading.Thread(target=self._background, args=(flush,), name="gt-link", daemon=True)
        self._thread.start()

    # -- sending -------------------------------------------------------------------------

    def send(self, frames: list[Any]) -> None:
        if self._connection.ended:
            raise ConnectionLost(self._connection.ended)
        self._outbox.append(frames)
        self._push()

    def _push(self) -> None:
        # the loop: what was put into the outbox while we held the turn is ours to send
        while self._outbox and not self._closed.is_set():
            if not self._take():
                self._wake()
                return
            try:
                self._holder = threading.get_ident()
                self._drain()
            finally:
                self._holder = 0  # no call comes before it, and so no interrupt
                self._turn.release()

    def _take(self, seconds: float = 0) -> bool:
        """The turn, unless somebody has it: this thread's own callers as well."""
        if self._holder == threading.get_ident():
            return False
        while self._turn._is_owned():  # type: ignore[attr-defined]
            self._turn.release()  # an interrupt came just after it was taken, or before it was given back
        return self._turn.acquire(timeout=seconds) if seconds else self._turn.acquire(blocking=False)

    def _drain(self) -> None:
        if self._outbox:
            _uninterrupted(self._send_outbox)

    def _send_outbox(self) -> None:
        while self._outbox:
            self._connection.send(self._outbox[0])
            self._outbox.popleft()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # a full pipe wakes as well
            os.write(self._wake_write, b"!")
        # After the write: the holder clears the flag and then empties the pipe. A byte that came later than both would
        # stay there, and no poll would wait any more.
        self._woken = True

    # -- receiving -----------------------------------------------------------------------

    def wait(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        deadline = None if timeout is None else time.monotonic() + timeout
        while not ready():
            if self._connection.ended or self._closed.is_set():
                raise ConnectionLost(self._connection.ended or "this session was disconnected")
            if deadline is not None and time.monotonic() >= deadline:
                return False
            if self._take(GLANCE):
                try:
                    self._holder = threading.get_ident()
                    if not ready():
                        self._once(100)
                finally:
                    self._holder = 0  # no call comes before it, and so no interrupt
                    self._turn.release()
                self._push()
        return True

    def _once(self, milliseconds: int) -> None:
        """With the turn: send what waits, then take in what comes."""
        self._drain()
        if self._connection.wait(milliseconds):
            _uninterrupted(self._receive)
        if self._woken:
            self._woken = False
            with contextlib.suppress(BlockingIOError):
                os.read(self._wake_read, 4096)
            self._drain()

    def _receive(self) -> None:
        for frames in self._connection.take():
            self._handle(frames)

    # -- the background ------------------------------------------------------------------

    def _background(self, flush: Callable[[], bool]) -> None:
        pause = SOON
        while not self._closed.wait(pause):
            try:
                pause = SOON if flush() else min(2 * pause, LATER)
                if self._take():
                    try:
                        self._holder = threading.get_ident()
                        if not self._closed.is_set():
                            self._once(0)
                    finally:
                        self._holder = 0  # no call comes before it, and so no interrupt
                        self._turn.release()
            except ConnectionLost:
                pause = LATER

    def close(self) -> None:
        if self._closed.is_set():
            return
        with self._turn:
            self._drain()
            self._closed.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout=2)
        with self._turn:
            self._connection.close()
            os.close(self._wake_read)
            os.close(self._wake_write)


def _uninterrupted(act: Callable[[], None]) -> None:
    """Ctrl-C waits until the act is over."""
    before = _signal.getsignal(_SIGINT) if threading.current_thread() is threading.main_thread() else None
    if not callable(before):  # another thread, or a program that took signals into its own hands
        act()
        return
    came: list[tuple[int, FrameType | None]] = []
    _signal.signal(_SIGINT, lambda number, frame: came.append((number, frame)))
    try:
        act()
    finally:
        _signal.signal(_SIGINT, before)
    if came:
        before(*came[0])
