"""Users of a shared server: their tokens and roles, the server's own key, the audit log, quotas."""

from __future__ import annotations

import contextlib
import json
import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import gt
from gt.client.stream.connect import use
from gt.dispatcher import admission, relay
from gt.dispatcher.core import Dispatcher
from gt.dispatcher.server import Server
from gt.dispatcher.state import ViewerState
from gt.dispatcher.tenants.access import Access
from gt.dispatcher.tenants.audit_log import AuditLog
from gt.errors import ConfigError, Refused
from gt.scripts import token as token_command
from gt.testing import Cluster
from gt.version import PROTOCOL, VERSION
from gt.wire import auth, server_keys
from gt.wire.codec import announced_weight, definition
from gt.wire.identities import MAY_CONNECT_AS, OWNER, TOKEN_ROLES, PeerIdentity, Quota, parse_quota
from gt.wire.messages import Chunk, ChunkTaken, Done, Hello, Refusal, Submit, Welcome
from gt.wire.numbering import Expired, Resume, control
from gt.wire.sockets import ZmqConnection, ZmqListener
from gt.wire.token_file import Identities, TokenFile, TokenRecord
from gt.wire.words import MAX_UNACKNOWLEDGED_BYTES, WINDOW_WORDS
from gt.worker.engines import make_engine
from gt.worker.memory_account import MemoryAccount
from tests.support.keys import IDENTITIES, PEER_KEYS, SERVER_KEYS
from tests.support.processes import System, free_port, wait_until
from tests.test_dispatcher import (
    ADD,
    ADD_LARGE,
    CLIENT,
    DEFINITIONS,
    FULL,
    SIGNATURES,
    WORKER,
    Desk,
    SimulatedWorker,
    refused,
    sent,
)
from tests.test_leases import Pair

NUMPY = ("--backend", "numpy")


def new_token(folder: Path, user: str, role: str, quota: str = "") -> str:
    """What ``gt token new`` does, in this process."""
    return token_command.create_token(folder, user, role, parse_quota(quota))


# -- the file of tokens --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "quota"),
    [
        ("", Quota()),
        ("memory=4GiB,weight=2,sessions=3", Quota(4 << 30, 2.0, 3)),
        ("memory=1.5MiB, transfers=8,definitions=100", Quota(3 << 19, transfers=8, definitions=100)),
        ("memory=1000,weight=0.5", Quota(1000, 0.5)),
        ("snapshots=16GiB", Quota(snapshots=16 << 30)),
    ],
)
def test_quotas(text: str, quota: Quota) -> None:
    assert parse_quota(text) == quota
    assert parse_quota(str(quota)) == quota


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("cores=3", "the quotas are memory, weight, sessions, transfers, definitions"),
        ("sessions=many", "not a positive number"),
        ("sessions=0", "not a positive number"),
        ("sessions=-1", "not a positive number"),
        ("weight=2GiB", "not a positive number"),
        ("sessions=1.5", "not a whole number"),
        ("memory", "not a positive number"),
    ],
)
def test_wrong_quotas(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse_quota(text)


def test_tokens_are_kept_as_public_keys(tmp_path: Path) -> None:
    alices = new_token(tmp_path, "alice", "client", "sessions=3")
    secret, server = server_keys.split_token(alices)
    file = TokenFile(tmp_path)
    assert file.path.stat().st_mode & 0o777 == 0o600
    assert secret.rpartition(".")[2] not in file.path.read_text()
    assert server == server_keys.make_server_keys(tmp_path).public
    assert len(secret.rpartition(".")[2]) == 64, "256 bits"
    identities = Identities(b"owner's key", file)
    alice = identities.find(auth.token_keys(alices).public)
    assert alice is not None
    assert (alice.user, alice.role, alice.quota.sessions) == ("alice", "client", 3)
    assert identities.find(b"owner's key") == OWNER
    assert identities.find(b"another") is None
    assert not identities.reload()
    file.remove("alice")
    assert identities.reload()
    assert identities.find(auth.token_keys(alices).public) is None


def test_a_user_has_one_token_for_a_role(tmp_path: Path) -> None:
    file = TokenFile(tmp_path)
    file.add(TokenRecord("alice", "client", "key", 0.0))
    file.add(TokenRecord("alice", "operator", "key", 0.0))
    with pytest.raises(ConfigError, match="alice has a token as client; revoke it first"):
        file.add(TokenRecord("alice", "client", "key", 0.0))
    with pytest.raises(ConfigError, match="no name of a user"):
        file.add(TokenRecord("a/b", "client", "key", 0.0))
    with pytest.raises(ConfigError, match="bob has no token"):
        file.remove("bob")
    assert [record.role for record in file.remove("alice")] == ["client", "operator"]
    file.path.write_text("[{}]")
    with pytest.raises(ConfigError, match=r"tokens.json cannot be read: .*missing required field"):
        file.read()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = ["--folder", str(tmp_path)]
    assert token_command.main(["new", "alice", "--quota", "memory=4GiB,weight=2,sessions=3", *folder]) == 0
    made = capsys.readouterr().out.strip()
    assert made.startswith("alice.client.")
    assert token_command.main(["new", "gpu-1", "--role", "worker", *folder]) == 0
    capsys.readouterr()
    assert token_command.main(["list", *folder]) == 0
    key, alice, worker = capsys.readouterr().out.splitlines()
    assert key == f"server key {made.partition('@')[2]}"
    assert re.fullmatch(r"alice  client    \d{4}-\d\d-\d\d  memory=4GiB,weight=2,sessions=3", alice)
    assert re.fullmatch(r"gpu-1  worker    \d{4}-\d\d-\d\d", worker)
    assert token_command.main(["revoke", "alice", *folder]) == 0
    assert capsys.readouterr().out == "revoked alice: client\n"
    assert token_command.main(["revoke", "alice", *folder]) == 2
    assert capsys.readouterr().err.endswith("alice has no token; gt token list shows who has one\n")
    for wrong in (["new"], ["list", "alice"], ["sell", "alice"]):
        with pytest.raises(SystemExit):
            token_command.main(wrong)


# -- the server's key ------------------------------------------------------------------------


def test_the_servers_key_is_random_and_private(tmp_path: Path) -> None:
    pair = server_keys.make_server_keys(tmp_path / "a")
    assert pair == server_keys.make_server_keys(tmp_path / "a")
    assert pair != server_keys.make_server_keys(tmp_path / "b")
    key = tmp_path / "a" / "key"
    assert key.stat().st_mode & 0o777 == 0o600
    key.chmod(0o644)
    with pytest.raises(ConfigError, match="can be read by others"):
        server_keys.make_server_keys(tmp_path / "a")
    key.chmod(0o600)
    key.write_text("damaged")
    with pytest.raises(ConfigError, match="is damaged"):
        server_keys.make_server_keys(tmp_path / "a")
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="the server's key is kept in"):
        server_keys.make_server_keys(tmp_path / "file")


def test_a_new_key_replaces_the_public_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert server_keys.own_server_key() is None
    folder = server_keys.server_folder()
    assert server_keys.make_server_keys(folder).public == server_keys.own_server_key()
    (folder / "key").unlink()
    assert server_keys.make_server_keys(folder).public == server_keys.own_server_key()


def test_known_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    one, two = (server_keys.make_server_keys(tmp_path / name).public for name in ("one", "two"))
    assert server_keys.server_key("far:9000", None) is None
    assert server_keys.server_key("far:9000", one) == one
    server_keys.remember_server("far:9000", one)
    server_keys.remember_server("far:9000", two)  # the first one is kept
    with open(server_keys.known_servers_file(), "a") as file:
        file.write("damaged\nother:9000 no-key\n")
    assert server_keys.server_key("far:9000", None) == one
    assert server_keys.server_key("other:9000", None) is None
    with pytest.raises(Refused, match=r"far:9000: the token is for a server with the key .* remove the line"):
        server_keys.server_key("far:9000", two)
    own = server_keys.make_server_keys(server_keys.server_folder()).public
    assert server_keys.server_key("third:9000", None) == own


def test_tokens_with_a_server_key() -> None:
    key = server_keys.key_pair_from(bytes(32)).public
    text = server_keys.key_text(key)
    assert server_keys.split_token(f"secret@{text}") == ("secret", key)
    assert server_keys.split_token(f"a@b@{text}") == ("a@b", key)
    for token in ("secret", "me@home", f"secret{text}", f"secret@{text}x", "@" + "!" * 43):
        assert server_keys.split_token(token) == (token, None)
    assert auth.token_keys(f"secret@{text}") == auth.token_keys("secret")


# -- secrets on other machines ----------------------------------------------------------------


def test_short_passphrases_are_for_loopback_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("GT_TOKEN", "eleven char")
    key = server_keys.key_text(server_keys.make_server_keys(server_keys.server_folder()).public)
    assert auth.token_for_server("127.0.0.1", key) == "eleven char"
    assert auth.connection_keys("localhost", 9, 0.0).remember_as == ""
    for ask in (lambda: auth.token_for_server("0.0.0.0", key), lambda: auth.connection_keys("far", 9, 0.0)):
        with pytest.raises(ConfigError, match=r"has 11 characters.* use at least 12"):
            ask()
    monkeypatch.setenv("GT_TOKEN", "twelve chars")
    assert auth.token_for_server("0.0.0.0", key) == "twelve chars"
    assert auth.connection_keys("far", 9, 0.0).remember_as == "far:9"


def test_an_unknown_server_key(stack: contextlib.ExitStack, tmp_path: Path) -> None:
    system = System(stack)
    client = system.client("", XDG_CONFIG_HOME=str(tmp_path))
    assert client.end() == 1
    assert f"the public key of the server at localhost:{system.port} is not known here" in client.output


# -- roles ------------------------------------------------------------------------------------


def hello(dispatcher: Dispatcher, peer: bytes, role: str) -> str:
    """The peer greets; returns why it was refused."""
    actions = dispatcher.handle(peer, Hello(role, PROTOCOL, VERSION, "here", 1))
    return next((a.message.reason for a in actions if isinstance(getattr(a, "message", None), Refusal)), "")


@pytest.mark.parametrize("role", [*TOKEN_ROLES, "owner"])
def test_a_token_has_one_role(role: str) -> None:
    dispatcher = Dispatcher(access=Access(identity_of=lambda peer: PeerIdentity("alice", role)))
    for number, other in enumerate(("client", "worker", "viewer")):
        problem = "" if other in MAY_CONNECT_AS[role] else f"the token of alice has the role {role}, not {other}"
        assert hello(dispatcher, b"%d" % number, other) == problem
    assert hello(dispatcher, b"another", "root") == "unknown role 'root'"
    viewers = [state for state in dispatcher.by_peer.values() if isinstance(state, ViewerState)]
    assert [viewer.operator for viewer in viewers] == [role == "operator"] * (role != "worker")


def test_sessions_are_counted_for_each_user() -> None:
    alice, bob = PeerIdentity("alice", "client", Quota(sessions=2)), PeerIdentity("bob", "client", Quota(sessions=1))
    dispatcher = Dispatcher(access=Access(identity_of=lambda peer: bob if peer == b"bob" else alice))
    assert (
        not hello(dispatcher, b"1", "client") + hello(dispatcher, b"2", "client") + hello(dispatcher, b"bob", "client")
    )
    assert hello(dispatcher, b"3", "client") == "alice may have 2 sessions at a time, and has 2"
    assert not hello(dispatcher, b"viewer", "viewer")
    dispatcher.gone(b"1")
    assert not hello(dispatcher, b"4", "client")


def test_a_token_that_was_revoked_between_handshake_and_greeting() -> None:
    dispatcher = Dispatcher(access=Access(identity_of=lambda peer: None))
    assert hello(dispatcher, b"1", "client") == "the token was revoked"


# -- shares of time ---------------------------------------------------------------------------

CLIENTS = [b"one", b"two", b"three", b"four"]
#: small and large instructions, in short and long submissions
LOADS = [(ADD, 400), (ADD_LARGE, 3), (ADD, 30), (ADD_LARGE, 50)]


@pytest.mark.parametrize("seed", range(4))
def test_weights_hold_for_mixed_loads(seed: int) -> None:
    """Also if an instruction takes much longer than its estimate."""
    rng = random.Random(seed)
    weights = dict(zip(CLIENTS, rng.sample([1, 2, 4, 8], 4), strict=True))
    loads = dict(zip(CLIENTS, rng.sample(LOADS, 4), strict=True))
    users = {c: PeerIdentity(c.decode(), "client", Quota(weight=w)) for c, w in weights.items()}
    simulation = SimulatedWorker(*CLIENTS, users=users, truth={ADD: rng.choice([4.0, 40.0])})
    simulation.keep_busy(loads, 3e6)
    total = sum(simulation.used.values())
    for number, client in enumerate(CLIENTS, start=1):
        assert simulation.used[number] / total == pytest.approx(weights[client] / 15, rel=0.05), client


def test_the_sessions_of_a_user_share_one_share() -> None:
    alice, bob = PeerIdentity("alice", "client"), PeerIdentity("bob", "client")
    users = dict(zip(CLIENTS, (alice, alice, alice, bob), strict=True))
    simulation = SimulatedWorker(*CLIENTS, users=users)
    simulation.keep_busy(dict.fromkeys(CLIENTS, (ADD_LARGE, 5)), 2e6)
    used = [simulation.used[number] for number in (1, 2, 3, 4)]
    assert sum(used[:3]) == pytest.approx(used[3], rel=0.05)
    assert used[:3] == pytest.approx([sum(used[:3]) / 3] * 3, rel=0.05)


def test_a_session_that_pauses_does_not_cost_its_user_time() -> None:
    alice, bob = PeerIdentity("alice", "client"), PeerIdentity("bob", "client")
    simulation = SimulatedWorker(b"idle", b"busy", b"bob", users={b"idle": alice, b"busy": alice, b"bob": bob})
    for _ in range(400):
        simulation.flood(b"idle", ADD, 1)
        simulation.keep_busy({b"busy": (ADD_LARGE, 5), b"bob": (ADD_LARGE, 5)}, 5e3)
    assert simulation.used[2] == pytest.approx(simulation.used[3], rel=0.05)


# -- quotas of sessions -----------------------------------------------------------------------


def test_quota_of_definitions() -> None:
    """The client keeps within it by itself. One that does not is refused."""
    users = {CLIENT: PeerIdentity("alice", "client", Quota(definitions=len(DEFINITIONS)))}
    desk = Desk(WORKER, users=users)
    (welcome,) = sent(desk.hello(CLIENT), CLIENT, Welcome)
    assert welcome.definitions == len(DEFINITIONS)
    desk.submit(CLIENT, FULL, 0, 1, 1.0)
    more = [definition(99, SIGNATURES[ADD])]
    actions = desk.say(CLIENT, Submit(2, more, [], announced_weight(more, [])))
    assert refused(actions, CLIENT) == f"alice may have {len(DEFINITIONS)} signatures defined in a session"


def test_a_client_keeps_within_its_quota_of_definitions() -> None:
    cluster = Cluster(backend="numpy")
    cluster.dispatcher._access = Access(identity_of=lambda peer: PeerIdentity("alice", "client", Quota(definitions=40)))
    most = 0
    with cluster.client() as session:
        client = next(iter(cluster.dispatcher.clients.values()))
        for n in range(1, 150):
            assert gt.ones(n).sum().item() == n
            most = max(most, len(client.codes))
        assert session.connection.ended is None
    assert 10 <= most <= 40


def test_quota_of_transfers() -> None:
    desk = Desk(WORKER, CLIENT, users={CLIENT: PeerIdentity("alice", "client", Quota(transfers=2))})
    for transfer in (1, 2, 2):
        assert not sent(desk.say(CLIENT, Chunk(transfer, 0, 1, 2), b"x"), CLIENT, Refusal)
    for transfer in range(3, 3 + admission.MAX_UNUSED_TRANSFERS):
        assert not sent(desk.say(CLIENT, Chunk(transfer, 0, 1, 2), b"x"), CLIENT, Refusal)
    actions = desk.say(CLIENT, Chunk(1000, 0, 1, 2), b"x")
    assert refused(actions, CLIENT) == "alice may send 2 large values at a time in a session"


def test_a_value_beyond_the_quota_of_transfers_waits() -> None:
    """It goes to the worker after the instructions that were submitted before it, and is acknowledged then."""
    desk = Desk(WORKER, CLIENT, users={CLIENT: PeerIdentity("alice", "client", Quota(transfers=1))})
    assert sent(desk.say(CLIENT, Chunk(1, 0, 1, 2), b"x"), WORKER, Chunk)
    client = next(iter(desk.core.clients.values()))
    while not client.queue:  # until the worker has as much ahead as it may have
        desk.submit(CLIENT, *[word for n in range(100) for word in (FULL, 0, n + 1, 1.0)])
    assert sent(desk.say(CLIENT, Chunk(1, 1, 1, 2), b"x"), WORKER, Chunk), "the rest of the first value"
    for offset in (0, 1):
        actions = desk.say(CLIENT, Chunk(2, offset, 1, 2), b"x")
        assert not sent(actions, WORKER, Chunk)
        assert not sent(actions, CLIENT, ChunkTaken)
    passed: list[Any] = []
    while len(passed) < 2:
        passed += sent(desk.say(WORKER, Done(client.id, 1, 10)), WORKER, Chunk)
    assert [chunk.offset for chunk in passed] == [0, 1]
    assert (client.queued_chunks, client.queued_chunk_bytes) == (0, 0)
    # what waits is bounded too
    while not client.queue:
        desk.submit(CLIENT, *[word for n in range(100) for word in (FULL, 0, n + 1, 1.0)])
    large = bytes(MAX_UNACKNOWLEDGED_BYTES)
    for _ in range(4 + WINDOW_WORDS * admission.QUEUED_CHUNK_BYTES // len(large)):
        assert not sent(desk.say(CLIENT, Chunk(3, 0, len(large), 1 << 40), large), CLIENT, Refusal)
    actions = desk.say(CLIENT, Chunk(3, 0, len(large), 1 << 40), large)
    assert refused(actions, CLIENT) == "more chunks in transfer than allowed"


@pytest.mark.parametrize("templates", ["0", "1"])
def test_a_client_keeps_within_its_quota_of_transfers(templates: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GT_TEMPLATES", templates)
    cluster = Cluster(backend="numpy")
    cluster.dispatcher._access = Access(identity_of=lambda peer: PeerIdentity("alice", "client", Quota(transfers=2)))
    large, most = np.arange(20_000, dtype=np.float32), [0]

    def admit_chunk(client: Any, *arguments: Any) -> bool:
        admitted = admission.admit_chunk(client, *arguments)
        most.append(len(client.transfers))
        return admitted

    monkeypatch.setattr(relay, "admit_chunk", admit_chunk)
    with cluster.client() as session:
        for _ in range(20):
            values = [gt.tensor(large + n) for n in range(7)]
            assert sum(value[1] for value in values).item() == 28
        assert session.connection.ended is None
    assert max(most) == 2


# -- for real ---------------------------------------------------------------------------------


def test_users_and_revoked_tokens(stack: contextlib.ExitStack, tmp_path: Path) -> None:
    folder, audit = tmp_path / "server", tmp_path / "audit.jsonl"
    alice, worker = new_token(folder, "alice", "client"), new_token(folder, "gpu", "worker")
    system = System(stack, "--folder", str(folder), "--audit", str(audit))
    alone = {"XDG_CONFIG_HOME": str(tmp_path / "elsewhere")}
    system.worker(*NUMPY, GT_TOKEN=worker, **alone)
    client = system.client("say(gt.ones(7).sum().item()); go(); gt.ones(3).sum().item()", GT_TOKEN=alice, **alone)
    client.expect("7.0")
    intruder = system.start("-m", "gt.worker", "-p", str(system.port), *NUMPY, GT_TOKEN=alice, **alone)
    assert intruder.end() == 1
    assert "the token of alice has the role client, not worker" in intruder.output

    assert token_command.main(["revoke", "alice", "--folder", str(folder)]) == 0
    wait_until(lambda: "disconnected" in audit.read_text(), what="the end of the connection")
    client.tell()
    assert client.end() == 1
    assert "the token was revoked" in client.output
    late = system.client("", GT_TOKEN=alice, **alone)
    assert late.end() == 1
    assert "or the token was revoked" in late.output

    lines = [json.loads(line) for line in audit.read_text().splitlines()]
    assert [(line["event"], line.get("user"), line.get("role"), line.get("reason")) for line in lines] == [
        ("connected", "gpu", "worker", None),
        ("connected", "alice", "client", None),
        ("refused", "alice", None, "the token of alice has the role client, not worker"),
        ("refused", "alice", "client", "the token was revoked"),
        ("disconnected", "alice", "client", None),
        ("refused", None, None, "no valid token"),
    ]
    assert all(line["address"].startswith("127.0.0.1") for line in lines)
    assert [worker.popen.poll() for worker in system.workers] == [None]


def test_a_full_disk_ends_the_audit_log_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    log = AuditLog("/dev/full", Dispatcher(), lambda peer: OWNER, lambda peer: "127.0.0.1:1")
    for _ in range(3):
        log.failed_handshake("127.0.0.1", "no valid token")
    said = capsys.readouterr().err
    assert said.count("the audit log ends here: /dev/full cannot be written (No space left on device)") == 1


def test_a_damaged_file_of_tokens_is_reported_once(
    stack: contextlib.ExitStack, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, keys = TokenFile(tmp_path), server_keys.key_pair_from(bytes(32))
    alice = new_token(tmp_path, "alice", "client")
    server = Server(f"tcp://127.0.0.1:{free_port()}", keys, Identities(None, file))
    stack.callback(server.close)
    file.path.write_text("damaged")
    for _ in range(3):
        server._tick(0.0)
    assert capsys.readouterr().err.count("the tokens that were valid before stay valid") == 1
    assert server.identities is not None
    assert server.identities.find(auth.token_keys(alice).public) is not None


def test_sending_to_a_server_that_has_refused_does_not_block(stack: contextlib.ExitStack) -> None:
    address, failures = f"tcp://127.0.0.1:{free_port()}", []
    listener = ZmqListener(address, SERVER_KEYS, IDENTITIES, lambda *what: failures.append(what))
    stack.callback(listener.close)
    connection = ZmqConnection(address, auth.peer_keys("a guess", SERVER_KEYS.public))
    stack.callback(connection.close)
    wait_until(lambda: list(listener.receive(0.01)) or (connection.wait(1) and connection.refused), what="the refusal")
    assert "another secret" in connection.refused
    assert failures == [("127.0.0.1", "no valid token")]
    for _ in range(100):
        connection.send([b"a message", b"of two frames"])
    assert list(listener.receive(0.05)) == []


def test_a_server_with_another_key_is_refused(stack: contextlib.ExitStack) -> None:
    """It knows the secret, but is not the server that the client knows."""
    address = f"tcp://127.0.0.1:{free_port()}"
    listener = ZmqListener(address, server_keys.key_pair_from(b"1" * 32), IDENTITIES)
    stack.callback(listener.close)
    connection = ZmqConnection(address, PEER_KEYS)
    stack.callback(connection.close)
    connection.send([b"a secret message"])
    received: list[object] = []
    wait_until(lambda: received.extend(listener.receive(0.01)) or (connection.wait(1) and connection.refused))
    assert "the server's key is not the one that the token or known_servers has" in connection.refused
    assert not received


def test_a_session_is_resumed_with_its_own_token_only(
    stack: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody who has seen the key of a session, but has another token."""
    monkeypatch.setitem(IDENTITIES._by_key, auth.token_keys("another").public, PeerIdentity("eve", "client"))
    pair = Pair(stack)
    pair.send(5, 5)
    pair.settle()
    assert pair.listener.identity(pair.name) == OWNER
    assert pair.listener.address(pair.name).startswith("127.0.0.1:")
    assert pair.listener.identity(b"nobody") is None
    eve = ZmqConnection(pair.address, auth.peer_keys("another", SERVER_KEYS.public))
    stack.callback(eve.close)
    eve.send([control(Resume(pair.client._key, 9, 0))])
    answers: list[list[bytes]] = []
    wait_until(lambda: pair.turn() and (eve.wait(1) or True) and (answers.extend(eve.take()) or eve.ended), 30)
    assert answers[0] == [control(Expired())]
    pair.send(5, 5)
    pair.settle()
    assert pair.client._attempt == 0


# -- files ------------------------------------------------------------------------------------


def test_workers_of_a_shared_server_open_no_files(system: System, tmp_path: Path) -> None:
    """The last bytes of many files can be guessed, so that knowing them proves nothing. The values still arrive."""
    secret, big = tmp_path / "of another user", tmp_path / "big"
    secret.write_bytes(b"private" + bytes(4096))
    client = system.client(
        f"""
        import json, tracemalloc
        from gt.client.stream import connect
        from gt.client.tensor.emit import call_with
        from gt.ops import OPS
        from gt.ops.system.files import proof
        for path in ({str(secret)!r}, "/nonexistent"):
            request = dict(path=path, head=0, proof=proof(b"", bytes(4096)), offsets=[0])
            types = (("types", (((7,), "uint8"),)),)
            value, _ = call_with(OPS["load_file"], json.dumps(request).encode(), (), types, connect.session())
            try:
                say("read", bytes(value.numpy()))
            except gt.RemoteError as error:
                say("refused", str(error).splitlines()[0])
        gt.save({{"x": gt.arange(4_000_000), "y": gt.ones(3), "z": gt.ones(0)}}, {str(big)!r})
        tracemalloc.start()
        again = gt.load({str(big)!r})
        say("peak", tracemalloc.get_traced_memory()[1] < 16_000_000)
        say("values", again["x"][3_999_999].item(), again["y"].tolist(), again["z"].shape)
        """
    )
    client.expect("values 3999999 [1.0, 1.0, 1.0]")
    assert client.end() == 0
    assert "private" not in client.output
    assert "peak True" in client.output
    one, other = [line for line in client.lines if line.startswith("refused")]
    assert one == other
    assert "a worker of a shared server opens no files" in one


# -- quotas of memory -------------------------------------------------------------------------

MIB = 1 << 20


def cluster_of(backend: str, workers: int = 1, **users: Quota) -> Cluster:
    """A cluster whose clients are these users, in this order."""
    cluster = Cluster(workers, backend=backend)
    names = iter(users.items())
    identities: dict[bytes, PeerIdentity] = {}

    def identity_of(peer: bytes) -> PeerIdentity:
        if peer.startswith(b"w"):
            return OWNER
        if peer not in identities:
            name, quota = next(names)
            identities[peer] = PeerIdentity(name.rstrip("_"), "client", quota)
        return identities[peer]

    cluster.dispatcher._access = Access(identity_of=identity_of)
    return cluster


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_quota_of_memory(backend: str) -> None:
    """The instruction that exceeds it fails with its own error; freed tensors make room; views take none."""
    cluster = cluster_of(backend, alice=Quota(memory=10 * MIB))
    with cluster.client():
        x = gt.zeros(MIB)  # 4 MiB
        views = [x[k:] for k in range(20)]
        y = x + 1
        with pytest.raises(gt.QuotaExceeded) as caught:
            (y + 1).sum().item()
        text = str(caught.value)
        assert "the memory quota of alice on this worker is 10.00 MiB: 8.00 MiB are in use, and this needs 4.00" in text
        assert isinstance(caught.value, gt.OutOfMemory)
        x += 1  # in place: no memory
        assert (x.sum() + y.sum()).item() == 2 * MIB
        del y
        z = x + 1
        assert z[0].item() == 2
        del x
        with pytest.raises(gt.QuotaExceeded):  # the views still hold the memory of x
            (z + 1).sum().item()
        assert views[-1][0].item() == 1
        del views
        assert (z + 1).sum().item() == 3 * MIB


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a_quota_counts_all_sessions_of_a_user_and_no_others(backend: str) -> None:
    quota = Quota(memory=10 * MIB)
    cluster = cluster_of(backend, alice=quota, alice_=quota, bob=Quota())
    one, two, bob = cluster.add_client(), cluster.add_client(), cluster.add_client()
    with use(one):
        x = gt.zeros(2 * MIB)
        assert x[0].item() == 0
    with use(bob):
        y = gt.zeros(8 * MIB)
        assert y[0].item() == 0
    with use(two), pytest.raises(gt.QuotaExceeded, match=r"8.00 MiB are in use"):
        gt.zeros(MIB).sum().item()
    cluster.kill_client(one)
    cluster.settle()
    with use(two):
        assert gt.zeros(MIB).sum().item() == 0
    del x, y


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_uploads_and_repeated_steps_are_within_the_quota(backend: str) -> None:
    cluster = cluster_of(backend, alice=Quota(memory=6 * MIB))
    with cluster.client():
        with pytest.raises(gt.QuotaExceeded):
            gt.tensor(np.zeros(2 * MIB, np.float32)).sum().item()
        x = gt.tensor(np.ones(MIB // 2, np.float32))  # 2 MiB
        for _ in range(12):  # the later ones are replayed; each has a peak of 4 MiB more
            y = x * 2
            y = y + 1
            gt.step()
        assert y.sum().item() == 1.5 * MIB
        kept = []
        for _ in range(8):
            y = x * 2
            y = y + 1
            gt.step()
            kept.append(y)
        with pytest.raises(gt.QuotaExceeded):
            kept[-1].sum().item()
        assert kept[0].sum().item() == 1.5 * MIB
        del kept, y
        assert (x + 1).sum().item() == MIB


def test_an_account_searches_for_freed_memory_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine("numpy")
    account = MemoryAccount(engine, "alice", 1 << 40)
    searches = 0
    held = MemoryAccount.held

    def counted(self: MemoryAccount) -> int:
        nonlocal searches
        searches += 1
        return held(self)

    monkeypatch.setattr(MemoryAccount, "held", counted)
    arrays = []
    for k in range(50_000):
        account.add(array := np.zeros(4))
        if k % 10 == 0:
            arrays.append(array)
    del array
    assert account.held() == 32 * len(arrays)
    assert searches < 20


def test_a_move_is_within_the_quota() -> None:
    """Each worker has half of x, and no room for the whole. They take part in the move, so nobody waits."""
    cluster = cluster_of("numpy", 2, alice=Quota(memory=6 * MIB))
    with cluster.client():
        gt.auto_shard()
        x = gt.zeros(2 * MIB)  # 4 MiB on each worker
        assert str(x.layout) == "S(0) on workers 0, 1"
        with pytest.raises(gt.QuotaExceeded, match=r"all_gather among workers 0, 1 failed .* quota of alice"):
            x.cumsum(0)[0].item()
        del x
        assert gt.zeros(2 * MIB).sum().item() == 0


def test_a_new_token_is_valid_at_once(stack: contextlib.ExitStack, tmp_path: Path) -> None:
    identities = Identities(None, TokenFile(tmp_path))
    address = f"tcp://127.0.0.1:{free_port()}"
    listener = ZmqListener(address, server_keys.make_server_keys(tmp_path), identities)
    stack.callback(listener.close)
    alice = new_token(tmp_path, "alice", "client")
    connection = ZmqConnection(address, auth.peer_keys(alice, server_keys.split_token(alice)[1] or b""))
    stack.callback(connection.close)
    connection.send([b"hello"])
    received: list[Any] = []
    wait_until(lambda: (received.extend(listener.receive(0.01)), connection.wait(1)) and received, what="the message")
    assert [frames for _, frames in received] == [[b"hello"]]
