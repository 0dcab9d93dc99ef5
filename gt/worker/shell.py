"""The worker's shell: one connection, one loop, and the clock. ``python -m gt.worker`` runs it."""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from typing import Any

from msgspec.structs import replace

from gt.errors import ConnectionLost, GtError, Refused
from gt.say import topic
from gt.version import PROTOCOL, VERSION
from gt.wire.auth import Keys
from gt.wire.codec import Decode, encode
from gt.wire.messages import Bye, Done, Drop, Execute, Heartbeat, Hello, Refusal, Reply, Welcome
from gt.wire.shared import host_identity
from gt.wire.transport import connection
from gt.worker.answering import Send
from gt.worker.collectives.processes import ProcessPlane
from gt.worker.core import Worker
from gt.worker.engines import Engine
from gt.worker.space import DeviceBroken


class Shell:
    def __init__(self, address: str, keys: Keys | None, engine: Engine, patience: float) -> None:
        self.connection = connection(address, keys)
        engine.alone()
        self.plane = ProcessPlane(_own_address(address), engine.name, engine.device)
        self.connection.also_wake_on(self.plane.wake_fd())
        self.worker = Worker(engine, host_identity(), self.plane, _levels())
        self.decode = Decode("worker")
        self.debug = topic("GT_DEBUG_WORKER")
        #: (client, crew) -> what it took and nobody asked for yet, in microseconds
        self._unsaid: Counter[tuple[int, int]] = Counter()
        self._greet(engine, address, patience)

    def _greet(self, engine: Engine, address: str, patience: float) -> None:
        me = engine.name, engine.device, engine.gpu(), self.plane.address
        hello = Hello("worker", PROTOCOL, VERSION, host_identity(), os.getpid(), *me)
        self.connection.send([encode(hello)])
        deadline = time.monotonic() + patience
        while self.worker.id < 0:
            self._once(200)
            if self.connection.refused:
                raise Refused(f"{address}: {self.connection.refused}")
            if time.monotonic() > deadline:
                raise ConnectionLost(f"no GT server answers at {address} after {patience:g} s")

    def run(self) -> None:
        """Until the server ends."""
        while True:
            self._once(1000)

    def _once(self, milliseconds: int) -> None:
        if self.connection.wait(milliseconds):
            for frames in self.connection.take():
                self._take(frames)
            self.plane.drain()
            if self.worker.may_go_on():
                self._work(None, [])
        if self.connection.ended:
            raise ConnectionLost(self.connection.ended)

    def _take(self, frames: list[bytes]) -> None:
        message = self.decode(frames[0])
        if isinstance(message, Welcome):
            self.worker.id = message.id
        elif isinstance(message, Refusal):
            raise Refused(message.reason)
        elif not isinstance(message, Heartbeat):
            self._work(message, frames)

    def _work(self, message: Any, frames: list[bytes]) -> None:
        begun = time.perf_counter()
        try:
            if message is None:
                sends = self.worker.wake()
            else:
                sends = self.worker.handle(message, memoryview(frames[1]) if len(frames) > 1 else None)
            if isinstance(message, Execute):
                self.worker.engine.pace()
        except (DeviceBroken, RuntimeError) as error:
            if not isinstance(error, DeviceBroken) and not self.worker.engine.is_broken(error):
                raise
            self.connection.send([encode(Bye(f"its device broke: {error}"[:400]))])
            raise GtError(f"the device broke: {error}") from error
        micros = int((time.perf_counter() - begun) * 1e6)
        if self.debug:
            self.debug(f"{type(message).__name__} in {micros} us")
        if isinstance(message, Execute) and not message.confirm:
            self._unsaid[message.client, message.crew] += micros
        elif isinstance(message, Drop):
            self._unsaid = Counter({of: n for of, n in self._unsaid.items() if of[0] != message.client})
        for send in sends:
            self._send(send, micros)

    def _send(self, send: Send, micros: int) -> None:
        message = send.message
        if isinstance(message, Done):
            message = self._timed(message, micros)
        elif isinstance(message, Reply) and message.done is not None:
            message = replace(message, done=self._timed(message.done, micros))
        frames: list[Any] = [encode(message)]
        if send.inner is not None:
            frames.append(encode(send.inner))
        if send.data is not None:
            frames.append(send.data)
        self.connection.send(frames)

    def _timed(self, done: Done, micros: int) -> Done:
        return Done(done.client, done.crew, micros + self._unsaid.pop((done.client, done.crew), 0))

    def close(self) -> None:
        self.connection.close()
        self.plane.close()


def _levels() -> str:
    """What is to be compiled, as the environment says."""
    for name, mode in (("GT_COMPILE", "all"), ("GT_AUTO_COMPILE", "auto")):
        if (said := os.environ.get(name, "0")) not in ("", "0"):
            return "graphs" if said == "graphs" else mode
    return "off"


def _own_address(server: str) -> str:
    """The address other workers reach this one at: that of the way to the server."""
    if server.startswith("unix:"):
        return "127.0.0.1"
    host, _, port = server.removeprefix("tcp://").rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as way:
        try:
            way.connect((host, int(port)))
        except OSError:  # greeting the server will tell
            return "127.0.0.1"
        return str(way.getsockname()[0])
