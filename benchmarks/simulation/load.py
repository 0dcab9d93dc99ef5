"""The cost of the dispatcher itself: a recorded program through its core, with workers that answer at once.

The program is recorded from a real client under auto-sharding, so its bytes do not depend on the workers. Each frame is
decoded and handled, and the result is encoded once per mesh, as in the shell. Workers acknowledge where requested, and
that is decoded and handled as well.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gt
from gt.client.stream.connect import use
from gt.client.stream.session import Session
from gt.dispatcher.actions import SendAll, SendMessage
from gt.dispatcher.core import Dispatcher
from gt.version import PROTOCOL, VERSION
from gt.wire.codec import Decode, encode
from gt.wire.messages import Done, Execute, Hello, Submit
from gt.wire.words import RUN


class _Recorder:
    """A link that keeps what is sent through it."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, frames: list[Any]) -> None:
        self.sent.append(bytes(frames[0]))

    def wait(self, ready: Any, timeout: float | None = None) -> bool:
        return True

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Program:
    """The messages of a client: first the new ones, then the repeated ones."""

    opening: list[bytes]
    rounds: list[list[bytes]]
    #: how many messages of the opening came before the first step, and before the second
    before_steps: tuple[int, int] = (0, 0)


def record(setup: Callable[[], Any], step: Callable[[Any], Any], rounds: int, templates: bool = False) -> Program:
    """A program under auto-sharding: ``step`` receives the result of ``setup``, and reads nothing.

    Two steps belong to the opening: the second one uses what the first one creates, such as the state of an optimizer.
    Without ``templates`` every instruction is sent individually.
    """
    session = Session("recorded")
    session.outbox.templates.enabled = templates
    session.connection.link = recorder = _Recorder()
    session.outbox.sent = -(1 << 60)  # unlimited credit
    session.id = 1
    gt.auto_shard()
    try:
        with use(session):
            state = setup()
            before_steps = []
            for _ in range(2):
                session.outbox.flush()
                before_steps.append(len(recorder.sent))
                step(state)
            session.outbox.flush()
            opening, recorder.sent = recorder.sent, []
            pieces = []
            for _ in range(rounds):
                step(state)
                session.outbox.flush()
                pieces.append(recorder.sent)
                recorder.sent = []
            del state
    finally:
        gt.auto_shard(False)
    return Program(opening, pieces, (before_steps[0], before_steps[1]))


@dataclass
class Load:
    """Processor seconds of the dispatcher, and the work it did in them."""

    core: float = 0.0
    codec: float = 0.0
    instructions: int = 0
    messages: int = 0
    #: words that the first worker of each set got, and confirmations from all workers
    words: int = 0
    confirmations: int = 0

    @property
    def seconds(self) -> float:
        return self.core + self.codec


class Drive:
    """A dispatcher, its client, and n workers that do nothing."""

    def __init__(self, workers: int) -> None:
        self.core, self._decode = Dispatcher(), Decode("dispatcher")
        for i in range(workers):
            name, store = b"w%d" % i, f"local:{i}"
            self.core.handle(name, Hello("worker", PROTOCOL, VERSION, "", i, "null", "null", "", store))
        self.core.handle(b"c", Hello("client", PROTOCOL, VERSION, "", 0))
        self.load = Load()
        #: how long a worker says that a word took, in microseconds: about as for small instructions
        self.word_us = 1.0
        #: worker set -> microseconds not acknowledged yet
        self._unsaid: Counter[int] = Counter()

    def run(self, frames: list[bytes]) -> Load:
        """The load of only these frames."""
        self.load = Load()
        for frame in frames:
            started = time.thread_time()
            message = self._decode(frame)
            self.load.codec += time.thread_time() - started
            self._handle(b"c", message)
            if isinstance(message, Submit):
                self.load.instructions += instructions(self.core, message.stream)
        return self.load

    def _handle(self, peer: bytes, message: Any) -> None:
        queue = [(peer, message)]
        while queue:
            peer, message = queue.pop()
            started = time.thread_time()
            actions = self.core.handle(peer, message)
            self.load.core += time.thread_time() - started
            for action in actions:
                queue += self._encoded(action)

    def _encoded(self, action: Any) -> list[tuple[bytes, Any]]:
        if isinstance(action, SendMessage | SendAll) and action.message is not None:
            started = time.thread_time()
            encode(action.message)
            self.load.codec += time.thread_time() - started
            peers = action.peers if isinstance(action, SendAll) else (action.peer,)
            self.load.messages += len(peers)
            if isinstance(action.message, Execute):
                return self._answers(action.message, peers)
        return []

    def _answers(self, m: Execute, peers: tuple[bytes, ...]) -> list[tuple[bytes, Any]]:
        self.load.words += len(m.stream)
        self._unsaid[m.worker_set] += int(len(m.stream) * self.word_us)
        if not m.confirm:
            return []
        peers = peers if m.confirmer < 0 else (b"w%d" % m.confirmer,)
        frame = encode(Done(m.client, m.worker_set, self._unsaid.pop(m.worker_set)))
        self.load.confirmations += len(peers)
        started = time.thread_time()
        answers = [(peer, self._decode(frame)) for peer in peers]
        self.load.codec += time.thread_time() - started
        return answers


def instructions(core: Dispatcher, stream: list[Any]) -> int:
    """The instructions in a stream of the only client, without frees and reads."""
    assert core.clients, "the dispatcher refused the program"
    client = next(iter(core.clients.values()))
    i = count = 0
    while i < len(stream):
        code = stream[i]
        if code >= 16:
            i += client.codes[code].width
            count += 1
        elif code == RUN:
            fragment = client.fragments[stream[i + 1]].parsed
            i += fragment.width
            count += sum(one.code >= 0 for one in fragment.instructions)
        else:
            i += 1 if code < 0 else 3 if code == 1 else 2
    return count


def measured(program: Program, workers: int) -> list[Load]:
    """The load of each round, with all plans cached."""
    drive = Drive(workers)
    drive.run(program.opening)
    drive.run(program.rounds[0])
    return [drive.run(frames) for frames in program.rounds[1:]]
