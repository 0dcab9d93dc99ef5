"""A client that pauses, or whose network is away, finds its session again: no message is lost, and none comes twice."""

from __future__ import annotations

import contextlib
import random
import re
import signal
import subprocess
import time
from collections import deque
from typing import Any
from unittest import mock

import pytest

from gt import server
from gt.errors import ConfigError
from gt.wire import sockets
from gt.wire.codec import BadFrame
from gt.wire.leases import leased_connection, leased_listener
from gt.wire.leases.leased_connection import LeasedConnection
from gt.wire.leases.leased_listener import MAX_KEPT_MESSAGES, LeasedListener
from gt.wire.numbering import (
    ACKNOWLEDGE_MESSAGES,
    CONTROL,
    Acknowledge,
    Numbering,
    Open,
    Resume,
    control,
    read_control,
)
from gt.wire.shared import process_identity, process_state
from gt.wire.sockets import HANDSHAKE_CUT, NOT_AUTHORIZED, ZmqConnection, ZmqListener, silence_ms
from tests.support.keys import IDENTITIES, PEER_KEYS, SERVER_KEYS
from tests.support.processes import System, free_port, wait_until
from tests.support.proxy import Proxy

# -- the numbers alone -------------------------------------------------------------------


class Side:
    """One side of a session, over a connection that loses what is on its way."""

    def __init__(self) -> None:
        self.numbering, self.got = Numbering(), []
        self.on_its_way: deque[list[Any]] = deque()  # to this side
        self.sent = 0

    def send(self, other: Side, connected: bool) -> None:
        frames = self.numbering.outgoing([b"message %d" % self.sent])
        self.sent += 1
        if connected:
            other.on_its_way.append(frames)

    def take(self) -> None:
        frames = list(self.on_its_way.popleft())
        if frames[0][:1] == CONTROL:
            message = read_control(frames.pop(0))
            assert isinstance(message, Acknowledge)
            self.numbering.acknowledged(message.received)
        if frames:
            self.numbering.incoming(frames)
            self.got.append(frames[0])


def reconnect(a: Side, b: Side) -> None:
    a.on_its_way.clear()
    b.on_its_way.clear()
    heard_by_a, heard_by_b = a.numbering.received, b.numbering.received
    b.on_its_way.extend(a.numbering.resume(heard_by_b))
    a.on_its_way.extend(b.numbering.resume(heard_by_a))


@pytest.mark.parametrize("seed", range(20))
def test_no_message_is_lost_or_doubled(seed: int) -> None:
    draw = random.Random(seed)
    a, b = Side(), Side()
    connected = True
    for _ in range(3000):
        one, other = draw.choice([(a, b), (b, a)])
        step = draw.random()
        if step < 0.45:
            one.send(other, connected)
        elif step < 0.9:
            if one.on_its_way and connected:
                one.take()
        elif step < 0.95 and connected and one.numbering.overdue:
            other.on_its_way.append([one.numbering.acknowledgement()])
        elif step > 0.99:
            connected = not connected
            if connected:
                reconnect(a, b)
    reconnect(a, b)
    for side in (a, b):
        while side.on_its_way:
            side.take()
    assert a.got == [b"message %d" % i for i in range(b.sent)]
    assert b.got == [b"message %d" % i for i in range(a.sent)]


def test_kept_messages_are_bounded_by_acknowledgements() -> None:
    a, b = Side(), Side()
    for _ in range(10 * ACKNOWLEDGE_MESSAGES):
        for one, other in ((a, b), (b, a)):
            one.send(other, True)
            other.take()
    assert max(len(side.numbering.kept) for side in (a, b)) <= ACKNOWLEDGE_MESSAGES + 1


def test_numbers_that_cannot_be() -> None:
    numbering = Numbering()
    numbering.outgoing([b"one"])
    numbering.outgoing([b"two"])
    with pytest.raises(BadFrame, match="3 messages of 2 acknowledged"):
        numbering.acknowledged(3)
    numbering.acknowledged(1)
    numbering.acknowledged(0)  # an old one, which is overtaken
    with pytest.raises(BadFrame, match="0 messages received, but more were acknowledged"):
        numbering.resume(0)
    assert numbering.resume(1) == [[b"two"]]
    with pytest.raises(BadFrame):
        read_control(CONTROL + b"noise")


# -- over real connections ---------------------------------------------------------------


class Pair:
    """A listener and a client, through a proxy, in one thread. Both send numbered messages."""

    def __init__(self, stack: contextlib.ExitStack, lease_s: float = 60.0) -> None:
        port = free_port()
        self.listener = LeasedListener(
            ZmqListener(f"tcp://127.0.0.1:{port}", SERVER_KEYS, IDENTITIES), IDENTITIES, lease_s, self.note
        )
        self.notes: list[str] = []
        stack.callback(self.listener.close)
        self.proxy = Proxy(stack, port)
        self.address = f"tcp://127.0.0.1:{self.proxy.port}"
        self.client = LeasedConnection(self.address, PEER_KEYS)
        stack.callback(self.client.close)
        self.at_server: list[bytes] = []
        self.at_client: list[bytes] = []
        self.name, self.gone = b"", False
        self.sent_by_server = self.sent_by_client = 0
        self.refused: list[BadFrame] = []
        self.last_tick = 0.0
        self.client.send([b"hello"])
        wait_until(lambda: self.turn() and self.name and self.client._key, 30, "the session")

    def note(self, name: bytes, event: str) -> None:
        assert name == self.name
        self.notes.append(event)

    def turn(self, milliseconds: int = 5) -> bool:
        for peer, frames in [item for _ in range(20) for item in self.listener.receive(-0.001)]:
            if isinstance(frames, BadFrame):
                self.refused.append(frames)
            elif frames == [b"hello"]:
                self.name = peer
            else:
                assert peer == self.name
                self.at_server.append(frames[0])
        if time.monotonic() > self.last_tick + 0.1:
            self.last_tick = time.monotonic()
            self.gone |= self.name in self.listener.silent(self.last_tick)
        self.client.wait(milliseconds)
        self.at_client += [frames[0] for frames in self.client.take()]
        return True

    def send(self, by_client: int, by_server: int) -> None:
        for _ in range(by_client):
            self.client.send([b"%d" % self.sent_by_client, bytes(100)])
            self.sent_by_client += 1
        for _ in range(by_server):
            assert self.listener.send(self.name, [b"%d" % self.sent_by_server])
            self.sent_by_server += 1

    def settle(self) -> None:
        """Wait until everything has arrived, and check that it did so once and in order."""
        done = lambda: (len(self.at_server), len(self.at_client)) >= (self.sent_by_client, self.sent_by_server)
        wait_until(lambda: self.turn() and (self.client.ended or done()), 60, "all messages")
        assert not self.client.ended
        assert self.at_server == [b"%d" % i for i in range(self.sent_by_client)]
        assert self.at_client == [b"%d" % i for i in range(self.sent_by_server)]


@pytest.fixture
def short_silence(monkeypatch: pytest.MonkeyPatch) -> float:
    for module in (sockets, leased_connection):
        monkeypatch.setattr(module, "SILENCE_MS", 500)
    monkeypatch.setattr(leased_connection, "ATTEMPT_S", 0.5)
    monkeypatch.setattr(leased_connection, "MAX_PAUSE_S", 0.1)
    return 0.5


@pytest.mark.parametrize("seed", [0, 1, pytest.param(2, marks=pytest.mark.long)])
def test_a_storm_of_cuts(stack: contextlib.ExitStack, short_silence: float, seed: int) -> None:
    draw, pair = random.Random(seed), Pair(stack)
    for _ in range(5):
        fault = draw.choice(["reset", "bury", "freeze"])
        pair.send(draw.randrange(100), draw.randrange(100))
        for _ in range(draw.randrange(5)):
            pair.turn(0)
        getattr(pair.proxy, fault)()
        until = time.monotonic() + (draw.choice([0.3, 2]) * short_silence if fault != "reset" else 0.05)
        while time.monotonic() < until:
            pair.send(draw.randrange(3), draw.randrange(3))
            pair.turn()
        pair.proxy.thaw()
        if draw.random() < 0.5:
            pair.settle()
    pair.settle()
    assert not pair.gone
    assert "has a new connection" in pair.notes


def test_silence_is_kept_until_the_lease_ends(stack: contextlib.ExitStack, short_silence: float, capsys: Any) -> None:
    pair = Pair(stack, lease_s=1.0)
    pair.proxy.bury()
    wait_until(lambda: pair.turn() and pair.gone, 30, "the end of the lease")
    pair.listener.drop(pair.name)
    assert not pair.listener._by_key
    wait_until(lambda: pair.turn() and pair.client.ended, 30, "the end of the client")
    assert pair.client.ended.startswith("the server has not answered for")
    assert re.search(
        r"the server has not answered for \d+ s; trying again until \d\d:\d\d:\d\d\n", capsys.readouterr().err
    )


def test_a_session_that_has_expired(stack: contextlib.ExitStack, short_silence: float) -> None:
    pair = Pair(stack, lease_s=60.0)
    pair.listener._lease_s = 0.5
    pair.proxy.bury()
    wait_until(lambda: pair.turn() and pair.gone, 30, "the end of the lease")
    pair.listener.drop(pair.name)
    pair.proxy.thaw()
    wait_until(lambda: pair.turn() and pair.client.ended, 30, "the end of the client")
    assert pair.client.ended == leased_connection.EXPIRED


def test_a_token_that_was_revoked_while_there_was_no_connection(
    stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair = Pair(stack)
    monkeypatch.setattr(pair.listener._identities, "find", lambda key: None)
    pair.proxy.reset()
    wait_until(lambda: pair.turn() and pair.client.ended, 30, "the end of the client")
    assert pair.client.ended == NOT_AUTHORIZED


def test_a_closed_connection_is_not_kept(stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that ends closes its connection: its session ends soon, however long the lease is."""
    monkeypatch.setattr(leased_listener, "GRACE_S", 0.2)
    monkeypatch.setattr(leased_listener, "process_state", lambda process: "")
    pair = Pair(stack, lease_s=1000.0)
    inner, pair.client._inner = pair.client._inner, None
    assert inner is not None
    inner.close()
    pair.client._next_step = float("inf")
    wait_until(lambda: pair.turn() and pair.gone, 30, "the end of the session")


def test_a_client_that_is_killed_while_it_is_silent(
    stack: contextlib.ExitStack, short_silence: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leased_listener, "SILENT_GRACE_S", 0.2)
    pair = Pair(stack, lease_s=1000.0)
    pair.proxy.bury()
    wait_until(lambda: pair.turn() and pair.notes, 30, "silence")
    assert pair.notes == ["does not answer; its session is kept for 1000 s"]
    if pair.client._inner is not None:
        pair.client._inner.close()
    pair.client._inner, pair.client._next_step = None, float("inf")
    pair.turn()
    assert not pair.gone
    pair.proxy.reset()
    wait_until(lambda: pair.turn() and pair.gone, 30, "the end of the session")


@pytest.mark.parametrize("returns", [True, False])
def test_a_connection_of_a_stopped_client_is_reset(
    stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch, returns: bool
) -> None:
    """The client cannot notice the reset while it is stopped. Its time to come back begins when it continues."""
    monkeypatch.setattr(leased_listener, "GRACE_S", 0.3)
    monkeypatch.setattr(leased_listener, "SILENT_GRACE_S", 0.3)
    stopped = True
    monkeypatch.setattr(
        leased_listener, "process_state", lambda process: "stopped" * (stopped and process == process_identity())
    )
    pair = Pair(stack, lease_s=1000.0)
    client, pair.client = pair.client, mock.Mock(take=list)
    pair.proxy.reset()
    wait_until(lambda: pair.turn() and pair.notes, 30, "that it is stopped")
    assert pair.notes == ["lost its connection and is stopped; its session is kept for 1000 s"]
    end = time.monotonic() + 3 * leased_listener.GRACE_S
    wait_until(lambda: pair.turn() and time.monotonic() > end, 30)
    assert not pair.gone
    stopped = False
    if returns:
        pair.client = client
        pair.send(5, 5)
        pair.settle()
        assert pair.notes[1:] == ["has a new connection"]
    else:
        wait_until(lambda: pair.turn() and pair.gone, 30, "the end of the session")


def test_the_time_in_which_the_server_did_not_run_does_not_count(
    stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leased_listener, "process_state", lambda process: "")
    pair = Pair(stack, lease_s=1000.0)
    pair.client = mock.Mock(take=list)
    pair.proxy.reset()
    lease = pair.listener._by_name[pair.name]
    wait_until(lambda: pair.turn() and lease.wire is None, 30, "that the connection is lost")
    assert pair.listener.silent(pair.last_tick + 60) == []
    assert pair.listener.silent(pair.last_tick + 65) == [pair.name]


def test_a_stopped_client_is_kept_no_longer_than_its_lease(
    stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leased_listener, "GRACE_S", 0.1)
    monkeypatch.setattr(leased_listener, "process_state", lambda process: "stopped")
    pair = Pair(stack, lease_s=1.0)
    pair.client = mock.Mock(take=list)
    pair.proxy.reset()
    wait_until(lambda: pair.turn() and pair.gone, 30, "the end of the lease")
    assert pair.notes == ["lost its connection and is stopped; its session is kept for 1 s"]


def test_states_of_processes() -> None:
    assert process_state(process_identity()) == "running"
    namespace = process_identity().rpartition(" ")[0]
    child = subprocess.Popen(["sleep", "1000"])
    try:
        assert process_state(f"{namespace} {child.pid}") == "running"
        child.send_signal(signal.SIGSTOP)
        wait_until(lambda: process_state(f"{namespace} {child.pid}") == "stopped", 30, "that it is stopped")
        # names that no process of this host has
        for unknown in ("", "x", f"another boot {child.pid}", f"{namespace} {child.pid}/../{child.pid}", namespace):
            assert process_state(unknown) == ""
        child.kill()  # from here on it is a zombie
        wait_until(lambda: process_state(f"{namespace} {child.pid}") == "", 30, "that it has ended")
    finally:
        child.kill()
        child.wait()
    assert process_state(f"{namespace} {child.pid}") == ""


@pytest.mark.parametrize("here", [True, False], ids=["on the server's host", "on another host"])
def test_a_connection_is_reset_and_then_the_network_is_away(
    stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch, here: bool
) -> None:
    """For longer than a client tries when something answers, and a server waits when it cannot see the process."""
    for module in (leased_listener, leased_connection):
        monkeypatch.setattr(module, "GRACE_S", 0.3)
    monkeypatch.setattr(leased_connection, "ATTEMPT_S", 0.5)
    if not here:
        monkeypatch.setattr(leased_listener, "process_state", lambda process: "")
    pair = Pair(stack, lease_s=1000.0)
    pair.proxy.freeze()
    pair.proxy.reset()
    away = time.monotonic() + 2.0
    wait_until(lambda: pair.turn() and time.monotonic() > away, 30)
    if not here and pair.gone:
        pair.listener.drop(pair.name)
    pair.proxy.thaw()
    if here:
        pair.send(5, 5)
        pair.settle()
        assert pair.notes == ["has a new connection"]
    else:
        wait_until(lambda: pair.turn() and pair.client.ended, 30, "the end of the client")
        assert pair.client.ended == leased_connection.EXPIRED


def test_a_process_that_runs_and_does_not_come_back(
    stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leased_listener, "GRACE_S", 0.2)
    monkeypatch.setattr(leased_listener, "SILENT_GRACE_S", 1.0)
    pair = Pair(stack, lease_s=1000.0)
    pair.client = mock.Mock(take=list)
    begun = time.monotonic()
    pair.proxy.reset()
    wait_until(lambda: pair.turn() and pair.gone, 30, "the end of the session")
    assert time.monotonic() - begun > 0.9


@pytest.mark.parametrize("seconds", ["ten", "0", "-1", "nan", "inf"])
def test_a_silence_that_is_no_duration(seconds: str) -> None:
    with pytest.raises(ConfigError, match=f"GT_SILENCE_S={seconds}: a number of seconds is needed, for example 10"):
        silence_ms(seconds)


@pytest.mark.parametrize("seconds", ["ten", "-1", "nan", "inf"])
def test_a_lease_that_is_no_duration(seconds: str, capsys: Any) -> None:
    with pytest.raises(SystemExit):
        server.main(["--lease", seconds])
    assert f"argument --lease: invalid seconds value: '{seconds}'" in capsys.readouterr().err


def test_a_server_that_ends(stack: contextlib.ExitStack) -> None:
    """The client notices at once that nobody listens any more."""
    port = free_port()
    listener = LeasedListener(
        ZmqListener(f"tcp://127.0.0.1:{port}", SERVER_KEYS, IDENTITIES), IDENTITIES, 1000.0, print
    )
    client = LeasedConnection(f"tcp://127.0.0.1:{port}", PEER_KEYS)
    stack.callback(client.close)
    client.send([b"hello"])

    def opened() -> bool:
        list(listener.receive(0.01))
        client.wait(1)
        return not client.take() and bool(client._key)

    wait_until(opened, 30)
    listener.close()
    wait_until(lambda: client.wait(10) or client.ended, 30, "the end of the connection")
    wait_until(lambda: client.wait(10) or client.ended == "the server closed the connection, or died", 30)


def test_a_delayed_attempt_and_a_wrong_key_change_nothing(stack: contextlib.ExitStack) -> None:
    pair = Pair(stack)
    pair.send(5, 5)
    pair.settle()
    pair.proxy.reset()
    pair.send(5, 5)
    pair.settle()
    key = pair.client._key
    for stale in (Resume(key, 1, 0), Resume(b"another", 9, 0)):
        stranger = ZmqConnection(pair.address, PEER_KEYS)
        stack.callback(stranger.close)
        stranger.send([control(stale)])
        wait_until(lambda: pair.turn() and (stranger.wait(1) or True) and stranger.ended, 30)  # noqa: B023
    pair.send(5, 5)
    pair.settle()
    assert pair.client._attempt == 1


@pytest.mark.parametrize("frame", [control(Acknowledge(10**6)), control(Open()), CONTROL + b"?"])
def test_a_client_that_breaks_the_rules(stack: contextlib.ExitStack, frame: bytes) -> None:
    pair = Pair(stack)
    assert pair.client._inner is not None
    pair.client._inner.send([frame])
    wait_until(lambda: pair.turn() and pair.refused, 30, "its refusal")


def test_a_client_that_never_acknowledges(stack: contextlib.ExitStack) -> None:
    pair = Pair(stack)
    results = [pair.listener.send(pair.name, [b"x"]) for _ in range(MAX_KEPT_MESSAGES + 1)]
    assert results == [True] * MAX_KEPT_MESSAGES + [False]


def test_a_client_before_its_server(stack: contextlib.ExitStack) -> None:
    """The server may still be starting: attempts follow each other until one succeeds."""
    port = free_port()
    client = LeasedConnection(f"tcp://127.0.0.1:{port}", PEER_KEYS)
    stack.callback(client.close)
    client.send([b"hello"])
    client.send([b"next"])
    first = client._inner
    wait_until(lambda: client.wait(10) or client._inner is not first, 30, "a second attempt")
    listener = LeasedListener(ZmqListener(f"tcp://127.0.0.1:{port}", SERVER_KEYS, IDENTITIES), IDENTITIES, 60.0, print)
    stack.callback(listener.close)
    received: list[Any] = []

    def arrived() -> bool:
        received.extend(frames for _, frames in listener.receive(0.01))
        client.wait(1)
        client.take()
        return received == [[b"hello"], [b"next"]] and bool(client._key)

    wait_until(arrived, 30)


@pytest.mark.parametrize("after_bytes", [0, 10, 100, 300, 350, 400])
def test_connections_that_are_cut_before_the_server_has_answered(stack: contextlib.ExitStack, after_bytes: int) -> None:
    port = free_port()
    listener = LeasedListener(ZmqListener(f"tcp://127.0.0.1:{port}", SERVER_KEYS, IDENTITIES), IDENTITIES, 60.0, print)
    stack.callback(listener.close)
    proxy = Proxy(stack, port)
    proxy.cut_next, proxy.cut_after = 3, after_bytes
    client = LeasedConnection(f"tcp://127.0.0.1:{proxy.port}", PEER_KEYS)
    stack.callback(client.close)
    client.send([b"hello"])
    client.send([b"next"])
    welcomed, received = [], []

    def arrived() -> bool:
        for peer, frames in listener.receive(0.01):
            if frames == [b"hello"]:  # once for each connection that was cut before the server's answer arrived
                listener.send(peer, [b"welcome"])
            else:
                received.append(frames)
        client.wait(1)
        welcomed.extend(client.take())
        listener.silent(time.monotonic())
        return bool(client.ended or client.refused) or (proxy.cut_next == 0 and bool(welcomed and received))

    wait_until(arrived, 30)
    assert not client.ended
    assert not client.refused
    assert welcomed == [[b"welcome"]]
    assert received[-1] == [b"next"]


def test_an_opening_that_is_always_cut(stack: contextlib.ExitStack) -> None:
    port = free_port()
    stack.callback(ZmqListener(f"tcp://127.0.0.1:{port}", SERVER_KEYS, IDENTITIES).close)
    proxy = Proxy(stack, port)
    proxy.cut_next, proxy.cut_after = 1000, 10
    client = LeasedConnection(f"tcp://127.0.0.1:{proxy.port}", PEER_KEYS)
    stack.callback(client.close)
    client.send([b"hello"])
    wait_until(lambda: client.refused or (client.wait(10) and False), 30, "the refusal")
    assert client.refused == HANDSHAKE_CUT


# -- whole systems -----------------------------------------------------------------------

#: Seconds of silence. Not less: a worker that a busy machine keeps from running must not count as lost.
SILENCE = "4"

TRAIN = """
    w, total = gt.zeros(64), 0.0
    for i in range(400):
        batch = gt.from_numpy(np.full(64, i % 7, dtype=np.float32))
        w = w + batch * 2 - 1
        if i % 20 == 0:
            total += w.sum().item()
        if i % 80 == 0:
            large = np.arange(300_000, dtype=np.float64) + i
            assert (gt.from_numpy(large) + 1).numpy().tolist() == (large + 1).tolist()
            say("part", i)
            go()
    expected, w2 = 0.0, np.zeros(64)
    for i in range(400):
        w2 = w2 + (i % 7) * 2 - 1
        expected += w2.sum() if i % 20 == 0 else 0.0
    assert (total, w.tolist()) == (expected, w2.tolist()), (total, expected)
    say("trained")
"""


def test_a_client_that_is_stopped_and_one_whose_network_is_away(stack: contextlib.ExitStack) -> None:
    system = System(stack, GT_SILENCE_S=SILENCE)
    system.worker("--backend", "numpy")
    proxy = Proxy(stack, system.port)
    client = system.client(
        """
        x = gt.arange(5)
        say("first", x.sum().item())
        go()
        say("second", x.sum().item())
        go()
        try:
            x.sum().item()
        except KeyboardInterrupt:
            say("interrupted")
        say("third", (x + 1).sum().item())
        """,
        port=proxy.port,
        GT_SILENCE_S=SILENCE,
    )
    client.expect("first 10")
    client.kill(signal.SIGSTOP)
    system.server.expect("client 1 does not answer; its session is kept for 600 s")
    client.kill(signal.SIGCONT)
    client.tell()
    client.expect("second 10")
    system.server.expect("client 1 has a new connection")
    proxy.bury()
    client.tell()
    client.expect("the server has not answered for 4 s; trying again until")
    client.kill(signal.SIGINT)
    client.expect("interrupted")
    proxy.thaw()
    client.expect("the server answers again, after")
    client.expect("third 15")
    assert client.end() == 0


def test_clients_that_are_stopped_while_their_connections_are_reset(stack: contextlib.ExitStack) -> None:
    """One of them continues, and finds its session. The other one is killed, and its session ends soon."""
    system = System(stack)
    system.worker("--backend", "numpy")
    clients, proxies = [], []
    for number in (1, 2):
        proxies.append(Proxy(stack, system.port))
        code = """
            x = gt.arange(5)
            say("first", x.sum().item())
            go()
            say("second", x.sum().item())
        """
        clients.append(system.client(code, port=proxies[-1].port))
        clients[-1].expect("first 10")
        clients[-1].kill(signal.SIGSTOP)
        proxies[-1].reset()
        system.server.expect(f"client {number} lost its connection and is stopped; its session is kept for")
    clients[1].kill()
    system.server.expect("client 2 is gone", 60)
    assert "client 1 is gone" not in system.server.output
    clients[0].kill(signal.SIGCONT)
    clients[0].tell()
    clients[0].expect("second 10")
    system.server.expect("client 1 has a new connection")
    assert clients[0].end() == 0


@pytest.mark.parametrize("shared_memory", ["0", pytest.param("1", marks=pytest.mark.long)])
def test_training_while_the_network_resets_connections(stack: contextlib.ExitStack, shared_memory: str) -> None:
    """In the middle of uploads, reads and repeated steps."""
    system = System(stack)
    system.worker("--backend", "numpy", GT_SHM=shared_memory)
    proxy = Proxy(stack, system.port)
    client = system.client(TRAIN, port=proxy.port, GT_SHM=shared_memory)
    draw = random.Random(0)
    for part in range(0, 400, 80):
        client.expect(f"part {part}")
        proxy.reset()  # the client cannot end before it
        client.tell()
        for _ in range(3):
            time.sleep(draw.uniform(0.01, 0.1))  # when a connection is cut is up to the seed
            proxy.reset()
    client.expect("trained")
    assert client.end() == 0
    assert "client 1 has a new connection" in system.server.output


def test_a_worker_is_replaced_while_the_network_of_a_client_is_away(stack: contextlib.ExitStack) -> None:
    """The session is kept, and its program runs again without its client."""
    system = System(stack, GT_SILENCE_S=SILENCE)
    worker = system.worker("--backend", "numpy")
    proxy = Proxy(stack, system.port)
    client = system.client(
        """
        gt.recovery("replay", wait=60)
        x = gt.arange(5)
        say("first", x.sum().item())
        go()
        x += 1
        say("second", x.sum().item())
        """,
        port=proxy.port,
        GT_SILENCE_S=SILENCE,
    )
    client.expect("first 10")
    proxy.bury()
    client.tell()
    system.server.expect("client 1 does not answer; its session is kept for 600 s")
    worker.kill()
    system.server.expect("worker 0 is gone")
    system.worker("--backend", "numpy")
    proxy.thaw()
    client.expect("is gone; 0 of 1 workers are connected, so the program waits for another one, at most 60 s")
    client.expect("second 15")
    assert client.end() == 0
