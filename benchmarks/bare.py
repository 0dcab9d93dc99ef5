"""Baselines for GT, and drivers for its parts alone."""

from __future__ import annotations

import os
import pathlib
import socket
import subprocess
import sys
import tempfile
import time
from typing import Any

import zmq

from gt.client.stream.session import Session
from gt.client.tensor.emit import binary
from gt.client.tensor.tensor import fresh
from gt.dispatcher.actions import SendMessage
from gt.dispatcher.core import Dispatcher
from gt.ops import OPS
from gt.types import TensorType
from gt.version import PROTOCOL, VERSION
from gt.wire.codec import Decode, encode
from gt.wire.messages import Done, Execute, Hello

ROOT = pathlib.Path(__file__).parent.parent

FORWARDER = """
import sys, zmq
router = zmq.Context().socket(zmq.ROUTER)
router.bind(sys.argv[1])
peers = {}
while True:
    peer, message = router.recv_multipart()
    if message in (b"client", b"worker"):
        peers[message] = peer
        if len(peers) == 2: router.send_multipart([peers[b"client"], b"ready"])
    else:
        router.send_multipart([peers[b"worker" if peer == peers[b"client"] else b"client"], message])
"""
ECHO = """
import sys, zmq
dealer = zmq.Context().socket(zmq.DEALER)
dealer.connect(sys.argv[1])
dealer.send(b"worker")
while True: dealer.send(dealer.recv())
"""


class TwoHops:
    """Client, forwarder and echo: three processes, ZeroMQ over a Unix socket, without any work."""

    def __enter__(self) -> TwoHops:
        self._folder = tempfile.TemporaryDirectory()
        address = f"ipc://{self._folder.name}/bare"
        self._children = [subprocess.Popen([sys.executable, "-c", p, address]) for p in (FORWARDER, ECHO)]
        self._socket = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.connect(address)
        self._socket.send(b"client")
        assert self._socket.poll(30_000), "the bare processes did not start"
        self._socket.recv()
        return self

    def ping(self) -> None:
        self._socket.send(b"x" * 40)
        self._socket.recv()

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.kill()
            child.wait()
        self._socket.close(0)
        self._folder.cleanup()


class Child:
    """A process that is controlled by lines of text."""

    def __init__(self, *arguments: str) -> None:
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment = {**os.environ, "PYTHONPATH": path, "GT_TOKEN": "benchmark"}
        self.popen = subprocess.Popen(
            [sys.executable, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )

    def tell(self, line: str) -> None:
        assert self.popen.stdin is not None
        self.popen.stdin.write(line + "\n")
        self.popen.stdin.flush()

    def hear(self, text: str) -> None:
        assert self.popen.stdout is not None
        line = self.popen.stdout.readline()
        assert text in line, f"expected {text!r}, heard {line!r}"


class System:
    """A server and one worker, for several clients."""

    def __enter__(self) -> System:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._children = [
            Child("-m", "gt.server", "-p", str(self.port)),
            Child("-m", "gt.worker", "-p", str(self.port)),
        ]
        return self

    def client(self, program: str, *arguments: str) -> Child:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            child = Child("-c", program, f"localhost:{self.port}", *arguments)
            assert child.popen.stdout is not None
            if "ready" in child.popen.stdout.readline():
                self._children.append(child)
                return child
            child.popen.wait()
        raise AssertionError("the server did not come up")

    def __exit__(self, *_: object) -> None:
        for child in self._children:
            child.popen.kill()
            child.popen.wait()


class _Recorder:
    """A link that keeps what is sent through it."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, frames: list[Any]) -> None:
        self.sent.append(frames[0])

    def wait(self, ready: Any, timeout: float | None = None) -> bool:
        return True

    def close(self) -> None:
        pass


def recorded_program(instructions: int) -> list[bytes]:
    """The messages of a client for a chain of adds, each instruction sent individually."""
    session = Session("recorded")
    session.outbox.templates.enabled = False
    session.connection.link = recorder = _Recorder()
    session.outbox.sent = -(1 << 60)  # unlimited credit
    make = (("shape", (64, 64)), ("dtype", "float32"))
    code, *_ = session.signatures.define(OPS["full"], make, (_scalar(),), False)
    session.outbox.extend((code, 0, session.outbox.next_id(), 1.0))
    x = y = fresh(1, session, TensorType((64, 64)))
    for _ in range(instructions):
        y = binary(OPS["add"], y, x)
    session.outbox.flush()
    return recorder.sent


def _scalar() -> Any:
    from gt.types import FLOAT

    return FLOAT


def dispatcher_rate(workers: int, instructions: int = 20_000) -> float:
    """Instructions per second through decoding, the core and encoding; one client per worker, idle workers."""
    core, decode = Dispatcher(), Decode("dispatcher")
    for i in range(workers):
        core.handle(b"w%d" % i, Hello("worker", PROTOCOL, VERSION, "", i, "null", "null"))
        core.handle(b"c%d" % i, Hello("client", PROTOCOL, VERSION, "", i))
    program = recorded_program(instructions // workers)
    started = time.perf_counter()
    for frame in program:
        for i in range(workers):
            _drive(core, core.handle(b"c%d" % i, decode(frame)))
    return instructions // workers * workers / (time.perf_counter() - started)


def _drive(core: Dispatcher, actions: list[Any]) -> None:
    """Encode what the core sends, and answer each `Execute` at once."""
    while actions:
        answers = []
        for action in actions:
            assert isinstance(action, SendMessage)
            encode(action.message)
            if isinstance(action.message, Execute):
                answers.append((action.peer, Done(action.message.client, action.message.worker_set, 100)))
        actions = [a for peer, message in answers for a in core.handle(peer, message)]
