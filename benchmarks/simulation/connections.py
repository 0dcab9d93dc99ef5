"""One real server process, and workers that do nothing as one connection each: ZeroMQ over TCP, as between machines.

``python -m benchmarks.simulation.connections WORKERS STEPS`` starts the server, connects a client and the workers from
this process, sends the messages of a client that trains Mini-GPT, and prints a line of JSON: what the server needed, in
processor time and memory. The workers answer at once, so the server's own rate limits the steps.
"""

from __future__ import annotations

import json
import os
import resource
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import zmq

from benchmarks.core.ranks import BAD_INPUT, BadInput
from benchmarks.simulation.load import Program
from benchmarks.simulation.scale import STEP_S, WARMUP, program, resident_bytes
from gt.version import PROTOCOL, VERSION
from gt.wire.auth import connection_keys
from gt.wire.codec import Decode, encode
from gt.wire.messages import Credit, Done, Execute, Hello, Refusal, Roster, Welcome
from gt.wire.sockets import ZmqConnection
from gt.wire.words import WINDOW_WORDS

#: Descriptors that a connection needs on the busier side, and that a process needs besides.
DESCRIPTORS_PER_CONNECTION, OTHER_DESCRIPTORS = 8, 200
WAIT_S = 300.0


def raise_file_limit(connections: int) -> None:
    """Allow this process and its children enough descriptors. Raises BadInput if the system does not."""
    needed = connections * DESCRIPTORS_PER_CONNECTION + OTHER_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise BadInput(
            f"{connections} connections need {needed} descriptors, and this system allows {hard} (ulimit -n)"
        )
    if soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def processor_seconds(pid: int) -> dict[str, float]:
    """Of all threads of the process, and of its main thread."""
    seconds = {}
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/schedstat") as file:
            seconds[thread] = int(file.read().split()[0]) / 1e9
    return {"all": sum(seconds.values()), "main": seconds[str(pid)]}


def open_descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


class NullPeers:
    """A client and its workers, each with a connection of its own, in one thread."""

    def __init__(self, port: int, token: str) -> None:
        self._address, self._keys = f"tcp://localhost:{port}", connection_keys("localhost", port, WAIT_S, token)
        zmq.Context.instance().set(zmq.MAX_SOCKETS, 65_000)
        self.client = ZmqConnection(self._address, self._keys)
        self.workers: list[ZmqConnection] = []
        self._of_client, self._of_worker = Decode("client"), Decode("worker")
        self.welcomed, self.known_workers, self.credited, self.confirmed = 0, 0, 0, 0
        #: as in `benchmarks.simulation.load.Drive`
        self.word_us = 1.0
        #: words that the first worker got
        self.words = 0
        self._unsaid: Counter[tuple[int, int]] = Counter()
        #: the ids of the workers, as the server gave them out
        self._ids: dict[int, int] = {}

    def join(self, workers: int) -> None:
        """Connect the workers, and wait until the client knows all of them."""
        self.client.send([encode(Hello("client", PROTOCOL, VERSION, "", 0))])
        self.wait(lambda: self.welcomed == 1)
        for i in range(workers):
            self.workers.append(ZmqConnection(self._address, self._keys))
            hello = Hello("worker", PROTOCOL, VERSION, "", i, "null", "null", "", f"local:{i}")
            self.workers[i].send([encode(hello)])
        self.wait(lambda: self.known_workers == workers)

    def wait(self, ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not ready():
            assert time.monotonic() < deadline, "the server does not answer"
            for frames in self._arrived(self.client):
                self._to_client(self._of_client(frames[0]))
            for number, worker in enumerate(self.workers):
                for frames in self._arrived(worker):
                    self._to_worker(number, worker, self._of_worker(frames[0]))

    def _arrived(self, connection: ZmqConnection) -> list[list[bytes]]:
        messages = connection.take() if connection.wait(0) else []
        why = connection.ended or connection.refused
        assert not why, why
        return messages

    def _to_client(self, message: Any) -> None:
        assert not isinstance(message, Refusal), message.reason
        if isinstance(message, Credit):
            self.credited = message.done
        elif isinstance(message, Roster):
            self.known_workers += len(message.joined)
        elif isinstance(message, Welcome):
            self.welcomed += 1

    def _to_worker(self, number: int, worker: ZmqConnection, message: Any) -> None:
        if isinstance(message, Welcome):
            self._ids[number] = message.id
        elif isinstance(message, Execute):
            key = number, message.worker_set
            self.words += len(message.stream) * (number == 0)
            self._unsaid[key] += int(len(message.stream) * self.word_us)
            if message.confirmed_by(self._ids[number]):
                self.confirmed += 1
                worker.send([encode(Done(message.client, message.worker_set, self._unsaid.pop(key)))])


class Sender:
    """Sends a recorded program, no faster than the server gives credit."""

    def __init__(self, peers: NullPeers) -> None:
        self._peers, self._decode, self._sent = peers, Decode("dispatcher"), 0

    def run(self, frames: list[bytes]) -> None:
        """Send these messages."""
        for frame in frames:
            self._peers.wait(lambda: self._sent - self._peers.credited < WINDOW_WORDS // 2)
            self._peers.client.send([frame])
            self._sent += getattr(self._decode(frame), "weight", 0)

    def finish(self) -> None:
        """Wait until everything is done."""
        self._peers.wait(lambda: self._peers.credited >= self._sent)


def measured(workers: int, steps: int) -> dict[str, Any]:
    raise_file_limit(workers)
    recorded = program(workers, steps)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        token = os.environ["GT_TOKEN"] = secrets.token_hex(16)
        os.environ["XDG_CONFIG_HOME"] = folder
        server = subprocess.Popen([sys.executable, "-m", "gt.server", "-p", str(port)], stdout=subprocess.DEVNULL)
        try:
            return _with_server(server.pid, NullPeers(port, token), recorded, workers, steps)
        finally:
            server.kill()
            server.wait()


def _with_server(pid: int, peers: NullPeers, recorded: Program, workers: int, steps: int) -> dict[str, Any]:
    idle, empty, started = processor_seconds(pid), resident_bytes(pid), time.monotonic()
    peers.join(workers)
    join_s, joined = time.monotonic() - started, processor_seconds(pid)
    joined_bytes, descriptors = resident_bytes(pid) - empty, open_descriptors(pid)
    sender = Sender(peers)
    sender.run(recorded.opening)
    sender.finish()
    opened = processor_seconds(pid)
    half = WARMUP // 2
    sender.run([frame for frames in recorded.rounds[: half // 2] for frame in frames])
    sender.finish()
    peers.words = 0
    sender.run([frame for frames in recorded.rounds[half // 2 : half] for frame in frames])
    sender.finish()
    peers.word_us = STEP_S * 1e6 * (half - half // 2) / peers.words
    sender.run([frame for frames in recorded.rounds[half:WARMUP] for frame in frames])
    sender.finish()
    before, confirmed = processor_seconds(pid), peers.confirmed
    for frames in recorded.rounds[WARMUP:]:
        sender.run(frames)
    sender.finish()
    after = processor_seconds(pid)
    return {
        "workers": workers,
        "steps": steps,
        "join_wall_s": join_s,
        "join_s": joined["all"] - idle["all"],
        "opening_s": opened["all"] - joined["all"],
        "step_s": (after["all"] - before["all"]) / steps,
        "step_main_thread_s": (after["main"] - before["main"]) / steps,
        "step_share": (after["all"] - before["all"]) / steps / STEP_S,
        "confirmations": (peers.confirmed - confirmed) / steps,
        "descriptors": descriptors,
        "joined_bytes": joined_bytes,
        "running_bytes": resident_bytes(pid) - empty,
    }


if __name__ == "__main__":
    try:
        print(json.dumps(measured(int(sys.argv[1]), int(sys.argv[2]))))
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(BAD_INPUT)
