"""A viewer: a peer that listens to the events of a running system and has no program of its own."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

from gt.errors import ConfigError, ConnectionLost, GtError, Refused
from gt.launch.running import running_servers
from gt.version import PROTOCOL, VERSION
from gt.wire.addresses import join_address, split_address
from gt.wire.auth import connection_keys, find_operator_token
from gt.wire.codec import BadFrame, Decode, encode
from gt.wire.event_messages import TAKEN_TOGETHER, BatchTaken, EventBatch, Inspect, Inspection, Listen, Listening
from gt.wire.messages import Bye, Hello, Refusal, Welcome
from gt.wire.shared import host_identity
from gt.wire.transport import connection

#: Seconds to wait for a server to answer.
CONNECT_TIMEOUT_S = 5.0


def find_server(host: str | None = None, port: int | None = None, unix: str | None = None) -> str:
    """The address of the server to look at: the named one, or the newest that this user runs on this machine."""
    if unix is not None:
        return f"unix:{unix.removeprefix('unix:')}"
    if host is not None or port is not None:
        return f"tcp://{join_address(host or 'localhost', port or 9000)}"
    running = running_servers()
    if not running:
        raise ConnectionLost(
            "no GT server of this user runs on this machine; start one with: python -m gt.server -p 9000, "
            "or name one with --host and --port, or --unix"
        )
    return running[0].address


class Viewer:
    """Listens to the server at this address while it is open. ``detail``: to instructions, not only to shares.

    ``listens=False``: it only connects, and nothing is recorded until `listen` is called.

    Example::

        with gt.events.viewer.Viewer("tcp://localhost:9000") as viewer:
            for batch in viewer.batches(seconds=1):
                print(batch.source, batch.shares)
    """

    def __init__(self, address: str, detail: bool = True, listens: bool = True) -> None:
        self.address, self._detail, self._listens = address, detail, listens
        #: the last answer of the server: clocks, workers, clients, and whether this viewer sees everything
        self.listening: Listening | None = None
        self._decode = Decode("client")
        self._batches: list[EventBatch] = []
        #: how many batches came
        self._received = 0
        #: the last answer to `inspect`
        self.inspection: Inspection | None = None
        #: when the last message arrived, in seconds on the monotonic clock; a server sends one each second
        self.last_message = 0.0
        #: the last request that was sent, and the last that the server answered: 0 is `Hello`
        self._asked, self._answered = 0, -1

    def __enter__(self) -> Viewer:
        private = self.address.startswith("unix:")
        keys = None if private else connection_keys(*split_address(self.address), CONNECT_TIMEOUT_S)
        self._connection = connection(self.address, keys)
        token = "" if private else find_operator_token() or ""
        hello = Hello("viewer", PROTOCOL, VERSION, host_identity(), os.getpid(), operator=token)
        try:
            self._connection.send([encode(hello)])
            if self._listens:
                self.listen()
            else:
                self._wait_for(0, CONNECT_TIMEOUT_S)
        except BaseException:
            self._connection.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.send([encode(Bye())])
        self._connection.close()

    def listen(self) -> None:
        """Begin to listen."""
        self._ask(lambda request: Listen(request, True, self._detail), CONNECT_TIMEOUT_S)

    def inspect(self) -> None:
        """Ask for fragments, large tensors and the log. The answer arrives in `inspection` while batches are read."""
        self._connection.send([encode(Inspect(0))])

    def _ask(self, message: Callable[[int], Listen], seconds: float) -> None:
        """Send a request with the next number, and wait for its answer."""
        self._asked += 1
        self._connection.send([encode(message(self._asked))])
        self._wait_for(self._asked, seconds)

    def _wait_for(self, request: int, seconds: float) -> None:
        """Wait for the answer to this request."""
        deadline = time.monotonic() + seconds
        while self._answered < request:
            self._receive(100)
            if self._connection.refused:
                raise Refused(f"{self.address}: {self._connection.refused}")
            if time.monotonic() > deadline:
                raise ConnectionLost(f"no GT server answers at {self.address} after {seconds:g} s")

    def batches(self, seconds: float | None = None, step: float = 0.2) -> Iterator[EventBatch | None]:
        """The batches that arrive within this time, or without end; None after each ``step`` seconds without one."""
        deadline = math.inf if seconds is None else time.monotonic() + seconds
        while (rest := deadline - time.monotonic()) > 0:
            yield from self._take(min(step, rest))

    def rest(self, seconds: float = CONNECT_TIMEOUT_S) -> Iterator[EventBatch]:
        """Stop listening; the batches with everything that was recorded until now."""
        self._ask(lambda request: Listen(request, False), seconds)
        batches, self._batches = self._batches, []
        yield from batches

    def _take(self, step: float) -> Iterator[EventBatch | None]:
        if not self._batches:
            self._receive(max(1, int(step * 1000)))
        batches, self._batches = self._batches, []
        yield from batches
        if not batches:
            yield None

    def _receive(self, milliseconds: int) -> None:
        if self._connection.wait(milliseconds):
            self.last_message = time.monotonic()
            for frames in self._connection.take():
                self._handle(frames)
        if self._connection.ended:
            raise ConnectionLost(f"{self.address}: {self._connection.ended}")

    def _handle(self, frames: list[bytes]) -> None:
        try:
            message: Any = self._decode(frames[0])
        except BadFrame as error:
            raise GtError(f"{self.address}: the server sent an invalid message: {error}") from None
        if isinstance(message, Refusal):
            raise Refused(f"{self.address}: {message.reason}")
        if isinstance(message, EventBatch):
            self._batches.append(message)
            self._received += 1
            if self._received % TAKEN_TOGETHER == 0:
                self._connection.send([encode(BatchTaken(TAKEN_TOGETHER))])
        elif isinstance(message, Listening):
            self.listening = message
            self._answered = max(self._answered, message.request)
        elif isinstance(message, Inspection):
            self.inspection = message
        elif isinstance(message, Welcome):
            if message.version != VERSION:
                raise ConfigError(f"{self.address}: the server is GT {message.version}, this is GT {VERSION}")
            self._answered = max(self._answered, 0)
