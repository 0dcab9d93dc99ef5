"""One connection, many threads: a thread that waits receives for all threads.

Only one thread at a time may use the connection: the one that holds the *turn*. To send, a thread appends its frames to
a queue and takes the turn if it is free; if not, it wakes the holder, who sends them. To wait for a reply, a thread
takes the turn and polls, and hands over what arrives for other threads. A background thread does both when no other
thread does: it sends words that were not submitted for a moment, and notices the end of the connection.

Ctrl-C may interrupt a wait, but never the sending or the handling of a message: half a message must not go out
(`gt.wire.interrupts`).
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol

from gt.errors import ConnectionLost
from gt.wire import interrupts
from gt.wire.transport import Connection

#: Seconds that a waiting thread tries to take the turn before it checks again whether its reply is there.
TURN_CHECK_S = 0.002
#: Seconds between two rounds of the background thread: while there are words to submit, and the most while there are
#: none.
FLUSH_PAUSE_S, IDLE_PAUSE_S = 0.002, 0.02


class Link(Protocol):
    """What a session needs of a connection; `gt.testing` has one without sockets."""

    def send(self, frames: list[Any]) -> None: ...

    def wait(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        """Handle what arrives until ``ready()``; False after ``timeout`` seconds. Raises if the connection ends."""

    def close(self) -> None: ...


@interrupts.deferred
class ThreadedLink:
    def __init__(self, connection: Connection, handle: Callable[[list[bytes]], None]) -> None:
        self._connection, self._handle = connection, handle
        self._queue: deque[list[Any]] = deque()
        #: its holder sends and receives; ``_holder`` is the holder's thread while it does
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
        """Start the background thread. ``flush`` submits waiting words, and returns whether there were any."""
        self._thread = threading.Thread(target=self._background, args=(flush,), name="gt-link", daemon=True)
        self._thread.start()

    # -- sending -------------------------------------------------------------------------

    def send(self, frames: list[Any]) -> None:
        interrupts.install()
        if self._connection.ended:
            raise ConnectionLost(self._connection.ended)
        self._queue.append(frames)
        self._push()

    def _push(self) -> None:
        # a loop, because other threads leave their frames to the holder of the turn
        while self._queue and not self._closed.is_set():
            if not self._take():
                self._wake()
                return
            try:
                self._holder = threading.get_ident()
                self._drain()
            finally:
                self._release()

    def _take(self, seconds: float = 0) -> bool:
        """Take the turn. False if another thread has it, or a caller further up in this thread."""
        if self._holder == threading.get_ident():
            return False
        if not seconds:
            return self._turn.acquire(blocking=False)
        try:
            return self._take_within(seconds)
        except BaseException:
            if self._turn._is_owned():  # type: ignore[attr-defined]
                self._turn.release()  # an interrupt came just after it was taken
            raise

    @interrupts.interruptible
    def _take_within(self, seconds: float) -> bool:
        return self._turn.acquire(timeout=seconds)

    def _release(self) -> None:
        self._holder = 0
        self._turn.release()

    def _drain(self) -> None:
        while self._queue:
            self._connection.send(self._queue[0])
            self._queue.popleft()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # a full pipe wakes the holder as well
            os.write(self._wake_write, b"!")
        # After the write: the holder clears the flag and then empties the pipe. A byte written after both would stay in
        # the pipe, and every later poll would return at once.
        self._woken = True

    # -- receiving -----------------------------------------------------------------------

    def wait(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        interrupts.install()
        deadline = None if timeout is None else time.monotonic() + timeout
        while not ready():
            if self._connection.ended or self._closed.is_set():
                raise ConnectionLost(self._connection.ended or "this session was disconnected")
            if deadline is not None and time.monotonic() >= deadline:
                return False
            if self._take(TURN_CHECK_S):
                try:
                    self._holder = threading.get_ident()
                    if not ready():
                        self._once(100)
                finally:
                    self._release()
                self._push()
        return True

    def _once(self, milliseconds: int) -> None:
        """With the turn: send what is queued, then receive what arrives."""
        self._drain()
        if self._connection.wait(milliseconds):
            self._receive()
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
        """Submit words that wait, send what is queued and receive, until the link is closed."""
        pause = FLUSH_PAUSE_S
        while not self._closed.wait(pause):
            try:
                pause = FLUSH_PAUSE_S if flush() else min(2 * pause, IDLE_PAUSE_S)
                if self._take():
                    try:
                        self._holder = threading.get_ident()
                        if not self._closed.is_set():
                            self._once(0)
                    finally:
                        self._release()
            except ConnectionLost:
                pause = IDLE_PAUSE_S

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
