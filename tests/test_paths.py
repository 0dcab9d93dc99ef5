"""A network that loses packets between two workers: it is noticed in time, and the error names the pair."""

from __future__ import annotations

import contextlib
import socket
import time
from typing import Any

import pytest

from gt.worker.collectives import descriptors
from gt.worker.collectives.descriptors import group_connections, is_silent, probe
from tests.support import paths
from tests.support.processes import System

#: Seconds within which a read must raise.
NOTICED_S = 15

SHARDED = """
    gt.auto_shard()
    x = gt.ones(4000, 4)
    say("sum", x.sum().item())
    go()
    started = time.monotonic()
    try:
        for _ in range(1000):
            (x.T @ x).sum().item()
        say("nothing happened")
    except gt.WorkerLost as error:
        say(f"after {time.monotonic() - started:.1f} s:", str(error).splitlines()[0])
    gt.auto_shard(False)
    say("alone", gt.ones(3).sum().item())
"""


def test_a_lost_path_between_two_workers_ends_the_read(stack: contextlib.ExitStack) -> None:
    system = System(stack)
    workers = [system.worker("--backend", "torch", "--device", "cpu", "--threads", "1") for _ in range(2)]
    client = system.client(SHARDED)
    client.expect("sum 16000.0")
    assert paths.cut(workers[0].pid, workers[1].pid) > 0
    client.tell()
    said = client.expect("after")
    assert float(said.split()[1]) < NOTICED_S
    assert "gets no answer from worker" in said
    assert "worker 0" in said
    assert "worker 1" in said
    client.expect("alone 3.0")
    assert client.end() == 0, client.output
    assert all(worker.popen.poll() is None for worker in workers), "the server still sees both"


@pytest.fixture
def pair(stack: contextlib.ExitStack) -> tuple[socket.socket, socket.socket]:
    listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    one = stack.enter_context(socket.create_connection(listener.getsockname()))
    return one, stack.enter_context(listener.accept()[0])


def test_a_peer_that_does_not_read_is_not_silent(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernel answers, however long it computes."""
    monkeypatch.setattr(descriptors, "PATH_TIMEOUT_S", 1.0)  # any time counts as too long
    one, other = pair
    for connection in pair:
        probe(connection)
    one.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            one.send(bytes(1 << 16))
    deadline = time.monotonic() + 2
    while time.monotonic() < deadline:
        assert not is_silent(one)
        assert not is_silent(other)
        time.sleep(0.05)


def test_the_worker_at_the_other_end_is_known(stack: contextlib.ExitStack) -> None:
    """From the port that a connection goes to; or, if it comes from there, because no other worker is left."""
    listeners = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(3)]
    mine, first, second = (listener.getsockname() for listener in listeners)
    out = stack.enter_context(socket.create_connection(first))
    stack.enter_context(socket.create_connection(mine))
    incoming = stack.enter_context(listeners[0].accept()[0])
    connections = group_connections(mine[1], {first: 7, second: 8})
    ends = {connection.getpeername(): workers for connection, workers in connections.items()}
    for connection in connections:
        connection.close()
    assert ends[out.getpeername()] == (7,)
    assert ends[incoming.getpeername()] == (8,)
