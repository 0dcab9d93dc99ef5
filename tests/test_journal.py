"""The journal of the dispatcher, without sockets: cut after any record, it leads to the same actions."""

from __future__ import annotations

import hashlib
import os
import pathlib
import random
import subprocess
import sys
from typing import Any

import pytest

import gt
from gt.dispatcher.actions import Action, Close, SendAll
from gt.dispatcher.core import Dispatcher
from gt.dispatcher.journal import journal as journal_module
from gt.dispatcher.journal import journal_file
from gt.dispatcher.journal.journal import Journal, PeerRecord
from gt.dispatcher.journal.journal_file import JournalFile, read_records
from gt.dispatcher.journal.restart import Restart
from gt.dispatcher.journal.state_codec import UnknownState, decode_state, encode_state
from gt.dispatcher.listeners import Clocks
from gt.dispatcher.recovery.snapshot_folder import SnapshotFolder
from gt.dispatcher.tenants.access import Access
from gt.errors import ConfigError
from gt.testing import Cluster
from gt.wire.codec import Decode, encode
from gt.wire.identities import OWNER
from gt.wire.leases.leased_listener import LeasedListener
from gt.wire.sockets import TcpConnection
from tests.support.keys import IDENTITIES, PEER_KEYS
from tests.support.processes import ROOT
from tests.test_cluster import Deaths, Play, seeds, small  # noqa: F401

pytestmark = pytest.mark.filterwarnings("ignore")  # torch warns about what the samples do on purpose


def comparable(actions: list[Action]) -> list[Any]:
    """Actions as plain values."""
    result: list[Any] = []
    for action in actions:
        if isinstance(action, Close):
            result.append((action.peer, action.reason))
        elif isinstance(action, SendAll):
            result.append((action.peers, encode(action.message)))
        else:
            head = None if action.message is None else encode(action.message)
            result.append((action.peer, head, [bytes(frame) for frame in action.rest]))
    return result


class Wrapped:
    """A cluster's dispatcher whose events pass `event` first."""

    def __init__(self, cluster: Cluster) -> None:
        self.core: Any = cluster.dispatcher
        self.events = 0
        cluster.dispatcher = self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.core, name)

    def event(self, name: str, *arguments: Any) -> list[Action]:
        raise NotImplementedError

    def handle(self, *arguments: Any) -> list[Action]:
        return self.event("handle", *arguments)

    def gone(self, *arguments: Any) -> list[Action]:
        return self.event("gone", *arguments)

    def refuse(self, *arguments: Any) -> list[Action]:
        return self.event("refuse", *arguments)

    def tick(self, *arguments: Any) -> list[Action]:
        return self.event("tick", *arguments)


# -- the state ---------------------------------------------------------------------------


class Twins(Wrapped):
    """A dispatcher that is written and read again before every event. The old one and the new one must act alike."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        core = self.core
        self.externals = {"clock": core.listeners.clock, "wall": core.inspections._wall, "access": core._access}
        if isinstance(cluster.storage, SnapshotFolder):
            self.externals["snapshots"] = cluster.storage
        else:
            core.snapshots._storage = None  # memory ends with the server

    def event(self, name: str, *arguments: Any) -> list[Action]:
        other = decode_state(encode_state(self.core, self.externals), self.externals)
        actions = getattr(self.core, name)(*arguments)
        assert comparable(actions) == comparable(getattr(other, name)(*arguments))
        self.core = other
        self.events += 1
        return actions


@seeds(12)
def test_a_dispatcher_read_after_every_event_acts_alike(seed: int, small: Any) -> None:  # noqa: F811
    """Random programs, with deaths of workers and clients. Each value is right, too."""
    small(seed)
    play = Play(seed)
    twins = Twins(play.cluster)
    deaths = Deaths(play)
    for _ in range(30):
        deaths.act(clients=True)
    deaths.stop()
    play.end()
    assert twins.events > 20


def train(steps: int = 6) -> list[float]:
    """Repeated steps with an upload in each; the losses."""
    gt.manual_seed(0)
    model = gt.nn.Sequential(gt.nn.Linear(8, 16), gt.nn.ReLU(), gt.nn.Linear(16, 4))
    optimizer = gt.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for step in range(steps):
        x = gt.tensor([[float((i * j + step) % 5) for j in range(8)] for i in range(12)])
        loss = (model(x) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("recovery", [False, True])
def test_training_with_a_dispatcher_read_after_every_event(
    workers: int, recovery: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Templates, auto-sharding with collectives, and the log of a program."""
    monkeypatch.setenv("GT_AUTO_SHARD", "1")
    results = []
    for wrapped in (False, True):
        cluster = Cluster(workers, seed=3)
        twins = Twins(cluster) if wrapped else None
        with cluster.client():
            if recovery:
                gt.recovery("replay")
            results.append(train())
            if recovery and workers > 1:
                cluster.kill_worker(next(iter(cluster.workers)))
                results[-1] += train(2)
        assert twins is None or twins.events > 20
    assert results[0] == results[1]


def test_what_cannot_be_written() -> None:
    with pytest.raises(UnknownState, match=r"builtins\.object cannot be written: <object"):
        encode_state([object()], {})


def test_objects_that_refer_to_each_other() -> None:
    shared: list[Any] = [1, "two", b"three", 4.5, None, True]
    shared.append(shared)
    key = ((1, 2), "x")
    copy = decode_state(encode_state([shared, {key: shared}, {3, 1}, (shared,)], {}), {})
    assert copy[0][:6] == shared[:6]
    assert copy[0][6] is copy[0] is copy[1][key] is copy[3][0]
    assert copy[2] == {1, 3}


# -- the file ----------------------------------------------------------------------------


def test_records_and_a_torn_last_one(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "journal"
    file = JournalFile(path, [(1, 0, 5, b"first")])
    payloads = [b"", b"x", bytes(3 * journal_file.FIRST_SPACE_BYTES), b"last"]  # the file grows
    for i, payload in enumerate(payloads):
        file.append(2, i, 7 + i, payload)
    used = file.used
    file.close()
    data = path.read_bytes()
    expected = [(1, 0, 5, b"first"), *[(2, i, 7 + i, payload) for i, payload in enumerate(payloads)]]
    assert list(read_records(data)) == expected
    for cut in (1, 4, 5, 20, 27):  # in the payload, in the head, in the record before
        torn = data[: used - cut]
        assert list(read_records(torn)) == expected[:-1], cut
        assert list(read_records(torn + bytes(100))) == expected[:-1], cut
    damaged = bytearray(data)
    damaged[used - 1] ^= 1
    assert list(read_records(bytes(damaged))) == expected[:-1]
    assert list(read_records(b"")) == []


def open_journal(folder: pathlib.Path, server: str = "key", reports: list[str] | None = None) -> Journal:
    return Journal(folder, server, (reports if reports is not None else []).append)


def test_folders_that_cannot_be_used(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = open_journal(tmp_path / "a")
    journal.begin(encode_state([], {}), [])
    with pytest.raises(ConfigError, match=r"a: another server that runs uses this folder"):
        open_journal(tmp_path / "a")
    journal.release()
    with pytest.raises(ConfigError, match="its journal is of the server with the public key key; name another folder"):
        list((other := open_journal(tmp_path / "a", "another")).events())
    other.release()
    monkeypatch.setattr(journal_module, "VERSION", "9.9")
    with pytest.raises(ConfigError, match=r"its journal is of GT \S+ \(protocol \d+\), and this is GT 9\.9"):
        list((other := open_journal(tmp_path / "a")).events())
    other.release()
    (tmp_path / "a" / "journal").write_bytes(b"something else, which is long enough for a head")
    with pytest.raises(ConfigError, match="journal there is not a journal of GT"):
        list((other := open_journal(tmp_path / "a")).events())
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"file: (File exists|Not a directory)"):
        open_journal(tmp_path / "file")


def test_a_disk_that_is_full(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The journal says so once, and is removed: nobody goes on from a part of it."""
    reports: list[str] = []
    journal = open_journal(tmp_path / "a", reports=reports)
    journal.describe = lambda peer: PeerRecord(peer, b"", "", OWNER)
    journal.begin(encode_state([], {}), [])

    def full(fd: int, at: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    for _ in range(3):
        journal.message(b"peer", [bytes(journal_file.FIRST_SPACE_BYTES)])
    assert len(reports) == 1
    assert "cannot be written (No space left on device); the server goes on, and its sessions end with it" in reports[0]
    assert not (tmp_path / "a" / "journal").exists()
    assert not journal.is_long
    journal.close()


# -- events ------------------------------------------------------------------------------


class NoSockets:
    """The part of a `ZmqListener` that sessions without a connection need."""

    def send(self, peer: bytes, frames: list[Any]) -> bool:
        return True

    def drop(self, peer: bytes) -> None: ...

    def tcp(self, peer: bytes) -> TcpConnection:
        return TcpConnection(-1, PEER_KEYS.public)


class Shell:
    """A server without sockets; ``actions`` are those of each event since it was created."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.journal = open_journal(folder)
        self.listener = LeasedListener(NoSockets(), IDENTITIES, 60.0, print, self.journal)  # type: ignore[arg-type]
        access, clocks = Access(identity_of=lambda peer: OWNER), Clocks(self.journal.clock, lambda: 0)
        self.core: Any = Dispatcher(access=access, clocks=clocks)
        self.actions: list[Any] = []
        externals = {"access": access, "clock": clocks.clock, "wall": clocks.wall}
        self.restart = Restart(self.journal, self.listener, externals)
        self.decode = Decode("dispatcher")

    def use_core(self, core: Any) -> None:
        self.core = core

    def _act(self, actions: list[Action]) -> list[Action]:
        self.actions.append(comparable(actions))
        return actions

    def receive(self, peer: bytes, frames: list[bytes]) -> list[Action]:
        self.journal.message(peer, frames)
        return self._act(self.core.handle(peer, self.decode(frames[0]), tuple(frames[1:]), len(frames[0])))

    def gone(self, peer: bytes) -> list[Action]:
        self.journal.gone(peer)
        return self._act(self.core.gone(peer))

    def refuse(self, peer: bytes, reason: str) -> list[Action]:
        self.journal.refused(peer, reason)
        return self._act(self.core.refuse(peer, reason))

    def tick_core(self, now: float) -> list[Action]:
        self.journal.tick(now)
        return self._act(self.core.tick(now))

    def flush(self, now: int) -> None:
        self.core.listeners.flush(now)

    def close(self) -> None:
        self.journal.close()
        self.journal.release()


class Journaled(Wrapped):
    """A cluster whose dispatcher has a journal."""

    def __init__(self, cluster: Cluster, shell: Shell) -> None:
        super().__init__(cluster)
        self.shell, self.core = shell, shell.core

    def event(self, name: str, *arguments: Any) -> list[Action]:
        self.events += 1
        if name == "handle":
            peer, message, rest, _ = arguments
            return self.shell.receive(peer, [encode(message), *map(bytes, rest)])
        event = {"gone": self.shell.gone, "refuse": self.shell.refuse, "tick": self.shell.tick_core}[name]
        return event(*arguments)


def record_play(folder: pathlib.Path, seed: int) -> Shell:
    """A random play, with deaths, whose events are in a journal in this folder."""
    shell = Shell(folder)
    shell.restart.write_state(shell.core)
    cluster = Cluster(0, seed, "numpy")
    Journaled(cluster, shell)
    for _ in range(3):
        cluster.add_worker()
    play = Play.__new__(Play)
    play.rng, play.backend, play.cluster = random.Random(seed), "numpy", cluster
    play.programs = [play.join() for _ in range(2)]
    deaths = Deaths(play)
    for _ in range(30):
        deaths.act(clients=True)
    deaths.stop()
    play.end()
    return shell


@seeds(4)
def test_a_journal_that_is_cut_after_any_record(seed: int, small: Any, tmp_path: pathlib.Path) -> None:  # noqa: F811
    small(seed)
    whole = record_play(tmp_path / "whole", seed)
    whole.close()
    data = (tmp_path / "whole" / "journal").read_bytes()
    ends, at = [], 0
    for *_, payload in read_records(data):
        at += journal_file._HEAD.size + len(payload)
        ends.append(at)
    assert len(ends) > 30
    draw = random.Random(seed)
    for end in ends[2:] if len(ends) < 122 else sorted(draw.sample(ends[2:], 120)):
        cut = tmp_path / str(end)
        cut.mkdir()
        (cut / "journal").write_bytes(data[: end + draw.choice((0, 7, 25))])  # some have a torn record at the end
        shell = Shell(cut)
        for kind, peer, value in shell.journal.events():
            shell.restart._replay(shell, kind, peer, value)
        assert shell.actions == whole.actions[: len(shell.actions)]
        shell.close()
    assert len(shell.actions) > 10, "the last cut is near the end"


def digest(folder: str) -> str:
    """A digest of all actions that follow from a journal."""
    shell = Shell(pathlib.Path(folder))
    for kind, peer, value in shell.journal.events():
        shell.restart._replay(shell, kind, peer, value)
    return hashlib.sha256(repr(shell.actions).encode()).hexdigest()


def test_actions_do_not_depend_on_the_process(tmp_path: pathlib.Path) -> None:
    """Sets of texts have another order in every process, and sets of objects too."""
    record_play(tmp_path, 1).close()
    program = f"from tests.test_journal import digest; print(digest({str(tmp_path)!r}))"
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(digests) == 1


def test_a_state_that_makes_no_sense(tmp_path: pathlib.Path) -> None:
    shell = Shell(tmp_path)
    shell.journal.begin(b"\x91\x91\xa5other", [])
    shell.close()
    with pytest.raises(ConfigError, match=r"the journal cannot be read \(KeyError: 'other'\); remove it"):
        Shell(tmp_path).restart.restore(shell)
