"""The worker's shell: a connection, a loop, and the clock. ``python -m gt.worker`` runs it."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from gt.errors import ConnectionLost, GtError, Refused
from gt.launch.idle_cores import make_spinning
from gt.say import topic
from gt.version import PROTOCOL, VERSION
from gt.wire.addresses import ANY_PORT, route_address, split_address
from gt.wire.auth import Keys, no_server
from gt.wire.codec import Decode, encode
from gt.wire.event_messages import Record
from gt.wire.link_messages import MeasureLink, OpenProbe
from gt.wire.messages import Bye, Done, Drop, Execute, Heartbeat, Hello, Refusal, Reply, Welcome
from gt.wire.settings import WORKER_SETTINGS, settings_on
from gt.wire.shared import host_identity
from gt.wire.transport import connection, settled_connection
from gt.worker.arrivals import Arrivals
from gt.worker.collectives.link_probe import LinkProbe
from gt.worker.collectives.place import find_place
from gt.worker.collectives.processes import ProcessPlane
from gt.worker.core import Worker
from gt.worker.engines import Engine
from gt.worker.engines.speed import measure_speed
from gt.worker.errors import DeviceBroken
from gt.worker.outbox import OutgoingMessage
from gt.worker.recovery.snapshots import WakePipe, WorkerSnapshots

#: A worker that waits longer for its server than this says so.
PATIENCE_S = 1.0
#: The longest wait for messages while events are recorded, so that they are sent in time.
RECORDING_POLL_MS = 200
#: While there is work, the worker looks for new messages this often, in seconds: between messages, and in the pauses of
#: long sections. One of them may be urgent.
LOOK_S = 0.0005


class Shell:
    """Connects a `Worker` to the dispatcher. Raises ConnectionLost or Refused if that fails.

    ``waiting`` is called once if the server has not answered after `PATIENCE_S`. ``ports``: where it may listen.
    ``data_address``: where it listens for other workers, instead of the address from which it reaches the server.
    """

    def __init__(
        self,
        address: str,
        keys: Keys | None,
        engine: Engine,
        timeout: float,
        waiting: Callable[[], object] | None = None,
        ports: range = ANY_PORT,
        data_address: str = "",
    ) -> None:
        self.connection = connection(address, keys, leased=True, worker=True, spinning=make_spinning())
        engine.claim_process()
        self.plane = ProcessPlane(data_address or _reachable_address(address), engine.name, engine.device, ports)
        self.connection.also_wake_on(self.plane.wake_fd())
        self._pipe = WakePipe()
        self._link_probe = LinkProbe(_reachable_address(address), ports, self._pipe.wake)
        self.connection.also_wake_on(self._pipe.fd)
        snapshots = WorkerSnapshots(engine, threaded=True, wake=self._pipe.wake)
        private = address.startswith("unix:")  # then this worker and its client are processes of one user
        mode = _levels_mode(private and engine.name == "torch" and engine.device.startswith("cuda"))
        self.worker = Worker(engine, host_identity(), self.plane, mode, private, snapshots)
        self.worker.pause = self._pause
        self._arrivals = Arrivals()
        #: when to look for new messages; how many seconds the message that is being handled has paused
        self._next_look = self._paused = 0.0
        #: whether a message pauses; what went wrong in the pause
        self._pausing = False
        self._pause_error: Exception | None = None
        self.decode = Decode("worker")
        self.debug = topic("GT_DEBUG_WORKER")
        #: (client, worker set) -> microseconds of `Execute` messages that no `Done` has reported yet
        self._unreported: Counter[tuple[int, int]] = Counter()
        self._register(engine, address, timeout, waiting)

    def _register(self, engine: Engine, address: str, timeout: float, waiting: Callable[[], object] | None) -> None:
        """Introduce this worker to the server and wait for its answer."""
        device = engine.name, engine.device, engine.gpu_id(), self.plane.address
        process = PROTOCOL, VERSION, host_identity(), os.getpid()
        settings, place = settings_on(WORKER_SETTINGS), find_place(engine.pci_address())
        hello = Hello("worker", *process, *device, settings=settings, place=place, speed=measure_speed(engine))
        self.connection.send([encode(hello)])
        began = time.monotonic()
        while self.worker.id < 0 or (settled := settled_connection(self.connection)) is None:
            self._serve_once(200)
            if self.connection.refused:
                raise Refused(f"{address}: {self.connection.refused}")
            if time.monotonic() > began + timeout:
                raise no_server(*split_address(address), timeout)
            if waiting is not None and self.worker.id < 0 and time.monotonic() > began + PATIENCE_S:
                waiting()
                waiting = None
        self.connection = settled

    def run(self) -> None:
        """Run until the connection ends."""
        while True:
            self._serve_once(1000 if self.worker.recorder is None else RECORDING_POLL_MS)
            if (recorder := self.worker.recorder) is not None and recorder.due(time.perf_counter_ns()):
                for recorded in recorder.drain():
                    self.connection.send([encode(recorded)])

    def _serve_once(self, milliseconds: int) -> None:
        """Wait for messages or completed moves, at most this long, and handle them for a while."""
        if self._receive(0 if self._arrivals else milliseconds) or self._arrivals:
            while self._arrivals:
                self._take(*self._arrivals.next())
                if time.perf_counter() >= self._next_look:
                    break
            self.plane.drain()
            self._pipe.drain()
            for saved in self.worker.snapshots.finished():
                self.connection.send([encode(saved)])
            for measured in self._link_probe.finished():
                self.connection.send([encode(measured)])
            if self.worker.can_continue():
                self._work(None, [])
        if self.connection.ended and not self._arrivals:
            raise ConnectionLost(self.connection.ended)

    def _receive(self, milliseconds: int) -> bool:
        """Wait for messages or completed moves, at most this long, and queue the messages; whether there was any."""
        happened = self.connection.wait(milliseconds)
        if happened:
            for frames in self.connection.take():
                message = self.decode(frames[0])
                if not isinstance(message, Heartbeat):
                    self._arrivals.add(message, frames)
        self._next_look = time.perf_counter() + LOOK_S
        return happened

    def _pause(self, client: int) -> None:
        """Between two instructions of the client: run what is urgent for other clients."""
        began, paused = time.perf_counter(), self._paused
        if began < self._next_look or self._pausing:
            return
        self._pausing = True
        try:
            self._receive(0)
            while (urgent := self._arrivals.next_urgent(client)) is not None:
                self._work(*urgent)
        except Exception as error:  # it is not the failure of the client's instruction, and ends the worker
            self._pause_error = error
        self._pausing = False
        self._paused = paused + time.perf_counter() - began

    def _take(self, message: Any, frames: list[bytes]) -> None:
        if isinstance(message, Welcome):
            self.plane.admit(message.data_secret)
            self.worker.assign_id(message.id)
        elif isinstance(message, Refusal):
            raise Refused(message.reason)
        elif isinstance(message, Record):
            self._record(message)
        elif isinstance(message, OpenProbe | MeasureLink):
            self._link_probe.handle(message)
        else:
            self._work(message, frames)

    def _record(self, message: Record) -> None:
        """Begin or end to record events, and tell the server what the time is here."""
        for answer in self.worker.record(message, time.perf_counter_ns):
            self.connection.send([encode(answer)])

    def _work(self, message: Any, frames: list[bytes]) -> None:
        """Let the worker handle a message, or continue after a move (None), and send what it returns."""
        started, self._paused = time.perf_counter(), 0.0
        try:
            if message is None:
                messages = self.worker.wake()
            else:
                handle = self.worker.handle_in_pause if self._pausing else self.worker.handle
                messages = handle(message, memoryview(frames[1]) if len(frames) > 1 else None)
            if isinstance(message, Execute):
                self.worker.engine.pace()
        except (DeviceBroken, RuntimeError) as error:
            if not isinstance(error, DeviceBroken) and not self.worker.engine.is_broken(error):
                raise
            self.connection.send([encode(Bye(f"its device broke: {error}"[:400]))])
            raise GtError(f"the device broke: {error}") from error
        if self._pause_error is not None:
            raise self._pause_error
        microseconds = int((time.perf_counter() - started - self._paused) * 1e6)
        if self.debug:
            self.debug(f"{type(message).__name__} in {microseconds} us")
        if isinstance(message, Execute) and not message.confirmed_by(self.worker.id):
            self._unreported[message.client, message.worker_set] += microseconds
        elif isinstance(message, Drop):
            self._unreported = Counter({key: n for key, n in self._unreported.items() if key[0] != message.client})
        for outgoing in messages:
            self._send(outgoing, microseconds)

    def _send(self, outgoing: OutgoingMessage, microseconds: int) -> None:
        message = outgoing.message
        if isinstance(message, Done):
            message = self._with_time(message, microseconds)
        elif isinstance(message, Reply) and message.done is not None:
            message = replace(message, done=self._with_time(message.done, microseconds))
        frames: list[Any] = [encode(message)]
        if outgoing.inner is not None:
            frames.append(encode(outgoing.inner))
        if outgoing.data is not None:
            frames.append(outgoing.data)
        self.connection.send(frames)

    def _with_time(self, done: Done, microseconds: int) -> Done:
        """The `Done` with the time of this message and of those before that had none."""
        earlier = self._unreported.pop((done.client, done.worker_set), 0)
        return Done(done.client, done.worker_set, microseconds + earlier)

    def close(self) -> None:
        self.connection.close()
        self.plane.close()


def _levels_mode(own_gpu: bool) -> str:
    """Which sections to compile, according to the environment: one of `gt.worker.hot.levels.MODES`. ``own_gpu``:
    whether one client alone uses the worker, which has a GPU."""
    for name, mode in (("GT_COMPILE", "all"), ("GT_AUTO_COMPILE", "auto")):
        if (value := os.environ.get(name, "0")) not in ("", "0"):
            return "graphs" if value == "graphs" else mode
    return "starved" if own_gpu and "GT_AUTO_COMPILE" not in os.environ else "off"


def _reachable_address(server: str) -> str:
    """The address at which other workers reach this one: the local address of a route to the server."""
    if server.startswith("unix:"):
        return "127.0.0.1"
    return route_address(*split_address(server)) or "127.0.0.1"  # connecting to the server will report the error
