"""What one client, or a full disk, may do to a server that others use: nothing. Everything that grows is bounded."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import pytest

import gt
from gt.client.stream import replies, signatures
from gt.dispatcher import admission, forward, scheduling
from gt.testing import Cluster
from gt.wire.codec import announced_weight, definition, encode
from gt.wire.messages import Configure, Execute, Refusal, Submit, ValuesTaken
from gt.wire.sockets import ZmqConnection, ZmqListener
from gt.wire.structures import SignalSpec
from gt.wire.words import FETCH, MAX_UNTAKEN_BYTES, RESET
from tests.support.keys import IDENTITIES, PEER_KEYS, SERVER_KEYS
from tests.support.processes import System, free_port, script, wait_until
from tests.test_dispatcher import ADD, CLIENT, DEFINITIONS, FULL, SIGNATURES, WORKER, Desk, refused, sent

# -- the instruction log -----------------------------------------------------------------


def test_a_full_disk_ends_the_instruction_log_and_nothing_else(stack: contextlib.ExitStack) -> None:
    system = System(stack, GT_INSTRUCTION_LOG="/dev/full")
    system.worker("--backend", "numpy")
    for _ in range(2):
        client = system.client("say(gt.ones(7).sum().item())")
        client.expect("7.0")
        assert client.end() == 0
    said = [line for line in system.server.lines if "GT_INSTRUCTION_LOG" in line]
    assert len(said) == 1
    assert "/dev/full cannot be written (No space left on device)" in said[0]
    assert system.server.popen.poll() is None


# -- peers that were refused -------------------------------------------------------------


class Listening:
    """A listener with peers, in one thread."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self.peers, self.address = stack, f"tcp://127.0.0.1:{free_port()}"
        self.listener = ZmqListener(self.address, SERVER_KEYS, IDENTITIES)
        stack.callback(self.listener.close)
        self.received: list[Any] = []

    def peer(self, greeting: bytes) -> tuple[ZmqConnection, bytes]:
        """A peer whose first message has arrived, and its name."""
        connection = ZmqConnection(self.address, PEER_KEYS)
        self.peers.callback(connection.close)
        connection.send([greeting, b"rest"])
        wait_until(lambda: self.poll(connection) and any(frames[0] == greeting for _, frames in self.received), 20)
        return connection, next(name for name, frames in self.received if frames == [greeting, b"rest"])

    def poll(self, *connections: ZmqConnection) -> bool:
        self.received += self.listener.receive(0.01)
        for connection in connections:
            connection.wait(1)
            connection.take()
        return True


def test_a_dropped_peer_is_disconnected_and_others_are_not(stack: contextlib.ExitStack) -> None:
    server = Listening(stack)
    (bad, bad_name), (good, good_name) = server.peer(b"bad"), server.peer(b"good")
    server.listener.drop(bad_name)
    bad.send([b"more"])
    server.listener.silent(0.0)
    for _ in range(20):
        server.poll(bad, good)
    assert not bad.ended, "it has a moment to read why"
    server.listener.silent(0.0)
    wait_until(lambda: server.poll(bad, good) and bad.ended, 20, "the end of its connection")
    assert not good.ended
    assert [b"more"] not in [frames for _, frames in server.received]

    def forgotten() -> bool:
        server.listener.silent(0.0)
        return server.poll(good) and not server.listener._dropped

    wait_until(forgotten, 20, "the end of its entry")
    assert list(server.listener._connections) == [good_name]


def test_a_dropped_peer_that_disconnects_by_itself_is_forgotten(stack: contextlib.ExitStack) -> None:
    server = Listening(stack)
    with contextlib.ExitStack() as server.peers:
        _, name = server.peer(b"once")
        server.listener.drop(name)

    def forgotten() -> bool:
        server.listener.silent(0.0)
        return server.poll() and not server.listener._dropped and not server.listener._connections

    wait_until(forgotten, 20, "the end of its entry")


def test_a_descriptor_that_belongs_to_another_peer_now_is_left_alone(stack: contextlib.ExitStack) -> None:
    """The listener has descriptors of its own, whose numbers ZeroMQ cannot give to another connection."""
    server = Listening(stack)
    with contextlib.ExitStack() as server.peers:
        _, bad_name = server.peer(b"bad")
    server.peers = stack
    good, good_name = server.peer(b"good")
    server.listener.drop(bad_name)
    for _ in range(3):
        server.listener.silent(0.0)
    for _ in range(20):
        server.poll(good)
    assert not good.ended
    assert list(server.listener._connections) == [good_name]


# -- what a killed client leaves behind --------------------------------------------------


def test_a_killed_local_client_leaves_no_folder_behind(stack: contextlib.ExitStack, tmp_path: Any) -> None:
    client = script(
        'import gt, sys; print("ready", gt.ones(3).sum().item(), flush=True); sys.stdin.readline()',
        stack=stack,
        GT_BACKEND="numpy",
        TMPDIR=str(tmp_path),
        XDG_RUNTIME_DIR=str(tmp_path),
    )
    client.expect("ready 3.0")
    assert [name for name in os.listdir(tmp_path) if name.startswith("gt-")]
    client.kill()
    wait_until(lambda: not [name for name in os.listdir(tmp_path) if name.startswith("gt-")], 20, "an empty folder")


# -- configurations ----------------------------------------------------------------------


def configuration(signals: int, weight: int | None = None) -> tuple[Configure, int]:
    """A configuration of this many signals, and its size in bytes."""
    specs = [SignalSpec(f"signal {i}", [0], [], [], True, None, True) for i in range(signals)]
    nbytes = len(encode(Configure(specs, False)))
    return Configure(specs, False, nbytes // 8 if weight is None else weight), nbytes


def test_configurations_use_up_credit() -> None:
    """Without a worker nothing is taken from the queue."""
    desk = Desk(CLIENT)
    message, nbytes = configuration(5000)
    count = 0
    while not sent(actions := desk.say(CLIENT, message, nbytes=nbytes), CLIENT, Refusal):
        count += 1
    assert refused(actions, CLIENT) == "the client submitted more work than its credit allows"
    assert count > 2
    assert count * nbytes < 6 << 20


def test_the_weight_of_a_configuration_is_checked() -> None:
    for signals, weight in ((1000, 10), (60_000, 1 << 20)):
        message, nbytes = configuration(signals, weight)
        assert "a configuration of" in refused(Desk(CLIENT).say(CLIENT, message, nbytes=nbytes), CLIENT)


def test_a_program_may_configure_as_often_as_it_likes() -> None:
    cluster = Cluster(workers=1, backend="numpy")
    with cluster.client() as session:
        for i in range(150):
            gt.auto_shard(i % 2 == 0)
            assert gt.ones(3).sum().item() == 3
        cluster.settle()
        cluster.tick()
        cluster.settle()
        assert session.outbox.sent == session.outbox.finished


# -- definitions -------------------------------------------------------------------------


def test_definitions_weigh_and_count_as_time() -> None:
    desk = Desk(WORKER, CLIENT)
    weight = announced_weight(DEFINITIONS, [])
    desk.submit(CLIENT, FULL, 0, 1, 2.5)
    assert desk.client(CLIENT).defined_bytes == weight
    desk.submit(CLIENT, RESET, ADD)
    assert desk.client(CLIENT).defined_bytes == weight - len(encode(definition(FULL, SIGNATURES[FULL])))
    used, more = desk.client(CLIENT).share.used, [definition(99, SIGNATURES[ADD])]
    desk.say(CLIENT, Submit(3, more, [], announced_weight(more, [])))
    assert desk.client(CLIENT).share.used >= used + announced_weight(more, [])
    light = Submit(1, DEFINITIONS, [], weight - 1)
    assert "weight" in refused(Desk(WORKER, CLIENT).say(CLIENT, light), CLIENT)


def test_the_definitions_of_a_client_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MAX_DEFINED_BYTES", announced_weight(DEFINITIONS, []) - 1)
    desk = Desk(WORKER, CLIENT)
    assert "bytes of them" in refused(desk.submit(CLIENT, FULL, 0, 1, 2.5), CLIENT)


def test_a_program_may_use_as_many_shapes_as_it_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MAX_DEFINED_BYTES", 40_000)
    monkeypatch.setattr(signatures, "MAX_DEFINED_BYTES", 40_000)
    cluster = Cluster(workers=1, backend="numpy")
    with cluster.client():
        for n in range(1, 1200):
            x = gt.ones(n) + 1
            if n % 100 == 0:
                assert x.sum().item() == 2 * n
        (client,) = cluster.dispatcher.clients.values()
        assert 0 < client.defined_bytes < 40_000


# -- values ------------------------------------------------------------------------------


def fetches(actions: list[Any]) -> int:
    return sum(execute.stream[::3].count(FETCH) for execute in sent(actions, WORKER, Execute))


def test_a_client_that_takes_no_values_gets_no_more() -> None:
    """The result of FULL is small, so a read counts as its message."""
    desk = Desk(WORKER, CLIENT)
    desk.submit(CLIENT, FULL, 0, 1, 2.5)
    count = MAX_UNTAKEN_BYTES // 4096 - 2
    desk.client(CLIENT).untaken = MAX_UNTAKEN_BYTES - 500
    reads = [word for request in range(count) for word in (FETCH, request + 100_000, 1)]
    forwarded = fetches(desk.submit(CLIENT, *reads))
    assert 0 < forwarded <= 8
    assert fetches(desk.core.tick(5.0)) == 0
    taken = fetches(desk.say(CLIENT, ValuesTaken(300)))
    assert 0 < taken <= 5
    assert desk.say(CLIENT, ValuesTaken(-5)) == []
    assert fetches(desk.say(CLIENT, ValuesTaken(1 << 40))) == count - forwarded - taken
    assert desk.client(CLIENT).untaken < MAX_UNTAKEN_BYTES


def test_a_program_may_read_as_much_as_it_likes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads, reads that fail and reads without a worker are all reported, so none waits for ever."""
    for module in (replies, forward, scheduling):
        monkeypatch.setattr(module, "MAX_UNTAKEN_BYTES", 4000)
    cluster = Cluster(workers=2, backend="numpy")
    with cluster.client():
        gt.auto_shard()
        try:
            x = gt.ones(5000)
            for i in range(30):
                assert x.numpy().sum() == 5000
                assert gt.ones(i + 1).numpy().sum() == i + 1
                with pytest.raises(gt.RemoteError):
                    gt.arange(3)[gt.tensor([5])].tolist()
        finally:
            gt.auto_shard(False)
        (client,) = cluster.dispatcher.clients.values()
        cluster.settle()
        assert client.untaken < 4000


def test_threads_that_read_at_the_same_time(system: Any) -> None:
    client = system.client(
        """
        x = gt.ones(15_000)
        def read():
            for _ in range(100):
                assert x.numpy().sum() == 15_000
        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        say("all read")
        """
    )
    client.expect("all read")
    assert client.end() == 0, client.output
