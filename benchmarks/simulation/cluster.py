"""A real client and the real dispatcher core, in virtual time, with workers that compute nothing.

Messages are events on one clock. The client's program runs unchanged: its messages are sent at the times of its own
clock, and while it waits, events happen. The dispatcher handles one message after the other, each for the time in the
machine's file. The real time of its code is recorded beside it and changes nothing. So the same program always gives
the same times.
"""

from __future__ import annotations

import contextlib
import heapq
import time
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from benchmarks.simulation.load import Load
from benchmarks.simulation.machine import Machine
from benchmarks.simulation.worker import Board, Costs, Worker
from gt.client.stream.connect import use
from gt.client.stream.session import Session
from gt.dispatcher.actions import SendAll, SendMessage
from gt.dispatcher.core import Dispatcher
from gt.version import PROTOCOL, VERSION
from gt.wire.codec import Decode, encode, signature_of
from gt.wire.messages import Hello, Message, Submit
from gt.wire.words import FETCH, FIRST_CODE

CLIENT, DISPATCHER = b"client", b""


class Cluster:
    """``with Cluster(machine, 8).client(): …`` predicts the time of the program inside the block."""

    def __init__(self, machine: Machine, workers: int | None = None) -> None:
        self.machine = machine
        self.dispatcher, self._decode = Dispatcher(), Decode("dispatcher")
        self.board = Board(machine)
        #: the real time of the dispatcher's code
        self.load = Load()
        self.now = self.client_clock = self._dispatcher_clock = 0.0
        self._events: list[tuple[float, int, bytes, bytes, Any, tuple[Any, ...]]] = []
        self._number = count().__next__
        self._workers: dict[bytes, Worker] = {}
        self._session: Session | None = None
        self._widths: dict[int, int] = {}
        costs = Costs(machine)
        for i in range(machine.workers if workers is None else workers):
            name = b"w%d" % i
            self._workers[name] = Worker(i, self.board, costs, self._poster(name))
            hello = Hello("worker", PROTOCOL, VERSION, "", i, "null", "null", f"null {i}", f"local:{i}")
            self.dispatcher.handle(name, hello)

    @contextlib.contextmanager
    def client(self) -> Iterator[Session]:
        """A client whose session is the current one inside the block."""
        session = self._session = Session("a simulated cluster")
        session.outbox.templates.enabled = False  # the prediction is for instructions sent individually
        session.connection.link = Link(self)
        self.post(0.0, CLIENT, DISPATCHER, Hello("client", PROTOCOL, VERSION, "", 0), ())
        session.connection.wait(lambda: session.welcomed)
        with use(session):
            yield session
        session.close()

    @property
    def workers(self) -> list[Worker]:
        return list(self._workers.values())

    # -- events ----------------------------------------------------------------------------

    def post(self, at: float, source: bytes, target: bytes, message: Any, rest: tuple[Any, ...]) -> None:
        """A message sent now arrives one hop later."""
        arrives = at + self.machine.control.latency_us * 1e-6
        heapq.heappush(self._events, (arrives, self._number(), source, target, message, rest))

    def _poster(self, name: bytes) -> Callable[[float, Message, tuple[bytes, ...]], None]:
        return lambda at, message, rest: self.post(at, name, DISPATCHER, message, rest)

    def step(self, until: float | None = None) -> bool:
        """The next event, if there is one until then."""
        if not self._events or (until is not None and self._events[0][0] > until):
            return False
        at, _, source, target, message, rest = heapq.heappop(self._events)
        self.now = max(self.now, at)
        if target == DISPATCHER:
            self._to_dispatcher(at, source, message, rest)
        elif target == CLIENT:
            self.client_clock = max(self.client_clock, at)
            if self._session is not None:
                self._session.handle([*rest] if message is None else [encode(message), *rest])
        else:
            self._workers[target].handle(message, at)
            self.board.wake()
        return True

    def _to_dispatcher(self, at: float, source: bytes, message: Any, rest: tuple[Any, ...]) -> None:
        started = time.perf_counter()
        actions = self.dispatcher.handle(source, message, rest)
        self.load.core += time.perf_counter() - started
        sends: list[tuple[tuple[bytes, ...], Any, tuple[Any, ...]]] = []
        for action in actions:
            if isinstance(action, SendAll):
                sends.append((action.peers, action.message, ()))
            elif isinstance(action, SendMessage):
                sends.append(((action.peer,), action.message, action.rest))
        started = time.perf_counter()
        for _, sent, _ in sends:
            if sent is not None:
                encode(sent)  # encoded once for all receivers
        self.load.codec += time.perf_counter() - started
        self._sent(at, message, sends)

    def _sent(self, at: float, message: Any, sends: list[tuple[tuple[bytes, ...], Any, tuple[Any, ...]]]) -> None:
        control = self.machine.control
        instructions = self.count(message.stream) if isinstance(message, Submit) else 0
        messages = 1 + sum(len(peers) for peers, _, _ in sends)
        self.load.instructions += instructions
        self.load.messages += messages
        clock = max(self._dispatcher_clock, at)
        self._dispatcher_clock = clock + (instructions * control.instruction_us + messages * control.message_us) * 1e-6
        for peers, sent, rest in sends:
            for peer in peers:
                if peer in self._workers or peer == CLIENT:
                    self.post(self._dispatcher_clock, DISPATCHER, peer, sent, rest)

    # -- the client's side -----------------------------------------------------------------

    def submit(self, frames: list[Any]) -> None:
        started = time.perf_counter()
        message = self._decode(frames[0])
        self.load.codec += time.perf_counter() - started
        if isinstance(message, Submit):
            for definition in message.definitions:
                self._widths[definition.code] = signature_of(definition).width
            self.client_clock += self.count(message.stream) * self.machine.control.client_us * 1e-6
        self.post(self.client_clock, CLIENT, DISPATCHER, message, tuple(frames[1:]))
        while self.step(self.client_clock):
            pass

    def count(self, stream: list[Any]) -> int:
        """The instructions in a client's stream, without frees and reads."""
        i = count = 0
        while i < len(stream):
            code = stream[i]
            if code >= FIRST_CODE:
                i += self._widths[code]
                count += 1
            else:
                i += 1 if code < 0 else 3 if code == FETCH else 2
        return count


class Link:
    """A session's connection to a simulated cluster: while it waits, events happen."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def send(self, frames: list[Any]) -> None:
        self._cluster.submit(frames)

    def wait(self, ready: Callable[[], bool], timeout: float | None = None) -> bool:
        while not ready():
            if not self._cluster.step():
                assert timeout is not None, "the client waits, and no message will arrive"
                return False
        return True

    def close(self) -> None:
        self._cluster._session = None
