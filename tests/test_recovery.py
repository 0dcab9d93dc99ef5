"""Recovery: a program with ``gt.recovery("replay")`` computes the same values although workers die.

``GT_SEEDS=5000 pytest tests/test_recovery.py`` tries that many seeds instead of the usual few.
"""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gt
from gt.client.stream import connect
from gt.dispatcher.recovery import program_log, recoveries, snapshots
from gt.errors import ClusterError, ConfigError, NoWorkers, WorkerLost
from gt.testing import Cluster
from gt.worker.errors import DeviceBroken
from gt.worker.recovery.snapshot_store import NoSnapshots
from tests.support.invariants import always, settled
from tests.support.programs import Program
from tests.test_cluster import seeds, small  # noqa: F401, a fixture
from tests.test_sharding import AMBIGUOUS, rounding, signals  # noqa: F401, fixtures

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def _later_sessions_do_not_recover() -> Iterator[None]:
    yield
    connect.recover_later_sessions(None)


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers may die so often that a program makes no progress in between."""
    monkeypatch.setattr(program_log, "MAX_ATTEMPTS", 1000)


class Recorded(Program):
    """A program that remembers the bytes of every value it has read."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.values: list[bytes] = []
        read = self.session.read

        def recorded(id: int, type: Any) -> Any:
            data = read(id, type)
            self.values.append(bytes(data))
            return data

        self.session.read = recorded  # type: ignore[method-assign]


class Killer:
    """Kills workers after random messages, and adds new ones between two actions of the programs."""

    def __init__(self, cluster: Cluster, seed: int, often: float) -> None:
        self.cluster, self.rng, self.often, self.kills = cluster, random.Random(seed), often, 0
        cluster.after_step = self.after_step

    def after_step(self, cluster: Cluster) -> None:
        always(cluster)
        alive = [name for name, worker in cluster.workers.items() if worker.id >= 0]
        if len(alive) > 1 and self.rng.random() < self.often:
            self.kills += 1
            cluster.kill_worker(self.rng.choice(alive))

    def between(self) -> None:
        if len(self.cluster.workers) == 1 and self.often and self.rng.random() < 0.1:
            self.kills += 1
            self.cluster.kill_worker(next(iter(self.cluster.workers)))
        if not self.cluster.workers or (len(self.cluster.workers) < 4 and self.rng.random() < 0.2):
            self.cluster.add_worker()


def play(seed: int, often: float, names: tuple[str, ...] = (), snapshots: float = 0.0) -> tuple[list[bytes], int]:
    """Run a random program while workers die. Returns the values that it read, and how many workers died."""
    rng = random.Random(seed)
    backend = "numpy" if seed % 4 == 3 else "torch"
    cluster = Cluster(4 if names else rng.randint(1, 4), seed, backend)
    session = cluster.add_client()
    session.keep_program((0.0, 0.0))
    program = Recorded(session, random.Random(seed), backend)
    program.avoid, program.cuts = (AMBIGUOUS, True) if names else (frozenset(), False)
    killer = Killer(cluster, seed, often)
    with connect.use(session):
        for _ in range(50):
            killer.between()
            if killer.rng.random() < snapshots:
                gt.snapshot()
            name = rng.choice([*names, None, None])
            with gt.signal.context(name) if name else contextlib.nullcontext():
                if rng.random() < 0.06:
                    program.send_large(rng.randint(70_000, 300_000))
                else:
                    program.act()
        program.read_all()
    cluster.after_step = always
    session.outbox.flush_in_background()
    cluster.settle()
    settled(cluster)
    program.slots.clear()
    session.close()
    cluster.settle()
    settled(cluster)
    assert not len(cluster.storage)
    return program.values, killer.kills


@seeds(16)
@pytest.mark.usefixtures("often")
def test_a_death_changes_no_bit(seed: int, small: Any) -> None:  # noqa: F811
    small(seed)
    undisturbed, _ = play(seed, 0.0)
    values, kills = play(seed, 0.02)
    assert values == undisturbed, f"after {kills} deaths"
    values, kills = play(seed, 0.02, snapshots=0.2)
    assert values == undisturbed, f"with snapshots, after {kills} deaths"


@seeds(16)
@pytest.mark.usefixtures("often")
def test_a_death_changes_no_sharded_value(seed: int, small: Any, signals: list[str]) -> None:  # noqa: F811
    """Within rounding: a mesh may have become smaller."""
    small(seed)
    names = tuple(random.Random(seed).sample(signals, 4))
    play(seed, 0.01, names)
    play(seed, 0.01, names, snapshots=0.2)


def train(steps: int = 6) -> list[float]:
    """A small training loop: templated from its second step on."""
    gt.manual_seed(0)
    w, x = gt.randn(8, 8, requires_grad=True), gt.randn(16, 8)
    optimizer = gt.optim.Adam([w], lr=0.1)
    losses = []
    for _ in range(steps):
        loss = ((x @ w).relu() - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(workers=2, backend="numpy")


def kill_home(cluster: Cluster) -> None:
    home = next(client.home for client in cluster.dispatcher.clients.values() if client.log is not None)
    cluster.kill_worker(next(name for name, worker in cluster.workers.items() if worker.id == home))


def test_a_read_that_waits_gets_its_value(cluster: Cluster) -> None:
    with cluster.client() as session:
        gt.recovery("replay")
        x = gt.arange(6.0)
        session.outbox.flush()
        cluster.settle()
        kill_home(cluster)
        assert (x * 2).tolist() == [0, 2, 4, 6, 8, 10]


def test_another_client_keeps_its_tensors_and_its_errors(cluster: Cluster) -> None:
    with cluster.client():
        gt.recovery("replay")
        safe = gt.arange(3.0)
        assert safe.tolist() == [0, 1, 2]
        connect.recover_later_sessions(None)
        with cluster.client():
            elsewhere = gt.arange(3.0)
            assert elsewhere.tolist() == [0, 1, 2]
            with cluster.client():
                unsafe = gt.arange(3.0)
                assert unsafe.tolist() == [0, 1, 2]
                kill_home(cluster)
                with pytest.raises(WorkerLost, match=r"is gone, and what it held with it$"):
                    unsafe.tolist()
            assert elsewhere.tolist() == [0, 1, 2]
        assert (safe + 1).tolist() == [1, 2, 3]


def test_without_workers_reads_raise_until_one_joins(cluster: Cluster) -> None:
    with cluster.client():
        gt.recovery("replay")
        x = gt.arange(3.0)
        assert x.tolist() == [0, 1, 2]
        for name in list(cluster.workers):
            cluster.kill_worker(name)
        with pytest.raises(NoWorkers):
            x.tolist()
        cluster.add_worker()
        assert (x + 1).tolist() == [1, 2, 3]


def test_it_waits_for_a_new_worker() -> None:
    """Until there are as many as the program has used; a program on one worker goes on at once."""
    gt.register_config("dp", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=[0, 1])))
    cluster = Cluster(workers=2)
    with cluster.client() as session:
        gt.recovery("replay", wait=5)
        with gt.signal.context("dp"):
            x = gt.arange(4.0)
        assert x.tolist() == [0, 1, 2, 3]
        client = cluster.dispatcher.clients[session.id]
        kill_home(cluster)
        cluster.settle()
        assert client.home is None
        cluster.add_worker()
        cluster.settle()
        assert client.home is not None
        assert (x + 1).tolist() == [1, 2, 3, 4]
        kill_home(cluster)
        cluster.settle()
        assert client.home is None
        assert (x + 2).tolist() == [2, 3, 4, 5]  # seconds pass in the wait, and it goes on with one worker
        cluster.add_worker()
        kill_home(cluster)
        cluster.settle()
        assert client.home is not None


def test_a_mesh_is_placed_on_other_workers(tmp_path: Any) -> None:
    path = tmp_path / "signals.yaml"
    path.write_text("dp: {shard: {axis: 0, workers: [0, 1]}}\n")
    gt.load_config(str(path))
    cluster = Cluster(workers=3)
    with cluster.client() as session:
        gt.recovery("replay")
        with gt.signal.context("dp"):
            x = gt.arange(12.0).reshape(6, 2)
            y = x @ x.T
        before = y.numpy()
        cluster.kill_worker(b"w1")
        assert (y.numpy() == before).all()
        assert str(y.layout) == "S(0) on workers 2, 1"
        cluster.kill_worker(b"w2")
        np.testing.assert_allclose(y.numpy(), before)
        assert session.connection.worker_ids() == [0, 1, 2]
    gt.load_config(None)


def test_training_goes_on(cluster: Cluster) -> None:
    with cluster.client():
        want = train()
    with cluster.client():
        gt.recovery("replay")
        killer = Killer(cluster, 0, 0.02)
        got = train()
    assert killer.kills
    assert got == want


@pytest.mark.parametrize(
    ("limit", "text"), [("MAX_LOG_BYTES", "of instructions"), ("MAX_UPLOAD_BYTES", "has uploaded")]
)
def test_a_program_that_is_too_long_is_lost(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, limit: str, text: str
) -> None:
    monkeypatch.setattr(program_log, limit, 100)
    with cluster.client():
        gt.recovery("replay")
        x = gt.tensor(np.arange(50_000.0))
        assert x.sum().item() == 49_999 * 25_000
        kill_home(cluster)
        with pytest.raises(WorkerLost, match=f"is gone, and .*not rebuilt, because .*{text}"):
            x.sum().item()
        assert gt.ones(2).tolist() == [1, 1]


def test_a_program_that_ends_its_workers_is_lost(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster.client() as session:
        gt.recovery("replay")
        x = gt.arange(3.0)
        client = cluster.dispatcher.clients[session.id]

        def kill_each_home(cluster: Cluster) -> None:
            if client.reads and client.home in [worker.id for worker in cluster.workers.values()]:
                kill_home(cluster)

        for _ in range(program_log.MAX_ATTEMPTS + 1):
            cluster.add_worker()
        cluster.after_step = kill_each_home
        with pytest.raises(WorkerLost, match="workers in a row were lost"):
            x.tolist()
        cluster.after_step = None


def test_an_upload_goes_on_after_a_death(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker dies in the middle of it: the first chunks come from the log, the others from the client."""
    monkeypatch.setattr("gt.wire.transfers.CHUNK_BYTES", 1 << 12)
    monkeypatch.setattr("gt.wire.transfers.MAX_UNACKNOWLEDGED_BYTES", 1 << 14)
    values = np.arange(60_000.0, dtype="f")
    for steps in range(0, 120, 7):
        with cluster.client():
            gt.recovery("replay")
            assert gt.ones(1).item() == 1
            left = [steps]

            def kill_later(cluster: Cluster, left: list[int] = left) -> None:
                left[0] -= 1
                if left[0] == 0:
                    kill_home(cluster)

            cluster.after_step = kill_later
            assert (gt.tensor(values).numpy() == values).all()
            cluster.after_step = None
        while len(cluster.workers) < 2:
            cluster.add_worker()


def test_an_upload_does_not_wait_for_ever_without_workers(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last worker dies while the client sends; it raises, and goes on when a worker has joined."""
    monkeypatch.setattr("gt.wire.transfers.CHUNK_BYTES", 1 << 12)
    monkeypatch.setattr("gt.wire.transfers.MAX_UNACKNOWLEDGED_BYTES", 1 << 14)
    values = np.arange(60_000.0, dtype="f")
    with cluster.client():
        gt.recovery("replay")
        x = gt.ones(2)
        assert x.tolist() == [1, 1]
        for name in list(cluster.workers):
            cluster.kill_worker(name)
        with pytest.raises(NoWorkers, match="no worker is connected"):
            gt.tensor(values)
        cluster.add_worker()
        assert (gt.tensor(values).numpy() == values).all()
        assert x.tolist() == [1, 1]


def test_without_workers_emitting_waits_as_long_as_the_program_may(cluster: Cluster) -> None:
    with cluster.client() as session:
        gt.recovery("replay", wait=6)
        assert gt.ones(1).item() == 1
        for name in list(cluster.workers):
            cluster.kill_worker(name)
        cluster.settle()
        before = cluster.now
        with pytest.raises(NoWorkers):
            session.connection.require_worker()
        assert cluster.now - before == 6


def test_refused_calls(cluster: Cluster) -> None:
    with cluster.client():
        with pytest.raises(ConfigError, match='the mode is "replay" or "off"'):
            gt.recovery("snapshots")
        with pytest.raises(ConfigError, match=r"wait=-1.* from 0 to 600"):
            gt.recovery("replay", wait=-1)
        with pytest.raises(ConfigError, match=r"every='1'.* from 0 to 86400"):
            gt.recovery("replay", every="1")  # type: ignore[arg-type]
        gt.recovery("replay")
        gt.recovery("replay")
        with pytest.raises(ConfigError, match="before the first tensor"):
            gt.recovery("off")
        connect.recover_later_sessions(None)
    with cluster.client():
        gt.ones(1)
        with pytest.raises(ConfigError, match="before the first tensor"):
            gt.recovery("replay")


def test_a_read_that_fails_before_the_loss_is_noticed_is_held() -> None:
    """A collective breaks on the other workers first. The read is answered after the restart."""
    cluster = Cluster(workers=2)
    gt.register_config("dp", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=[0, 1])))
    with cluster.client() as session:
        gt.recovery("replay")
        with gt.signal.context("dp"):
            x = gt.arange(8.0).reshape(4, 2)
        assert x.sum().item() == 28
        client, notice = cluster.dispatcher.clients[session.id], (b"w2", b"")
        cluster.kill_worker(b"w2")
        unnoticed = cluster.wires.pop(notice)
        total = (x.T @ x).sum()
        held = []

        def notice_later(cluster: Cluster) -> None:
            if client.log is not None and client.log.held and not held:
                held.extend(client.log.held)
                cluster.wires[notice] = unnoticed

        cluster.after_step = notice_later
        assert total.item() == 276
        assert [reply.lost for _, reply, _ in held] == [True]


def test_a_read_fails_if_no_worker_is_lost_after_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """The network between two workers is broken, and both are there."""
    monkeypatch.setattr(recoveries, "HOLD_S", 3.0)
    cluster = Cluster(workers=2)
    gt.register_config("dp", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=[0, 1])))
    with cluster.client():
        gt.recovery("replay")
        with gt.signal.context("dp"):
            x = gt.arange(8.0).reshape(4, 2)
        assert x.sum().item() == 28
        cluster.network.lose(1)
        total = (x.T @ x).sum()
        with pytest.raises(WorkerLost):
            total.item()


# -- snapshots ---------------------------------------------------------------------------


def log_of(cluster: Cluster) -> program_log.ProgramLog:
    log = next(client.log for client in cluster.dispatcher.clients.values())
    assert log is not None
    return log


def test_a_program_runs_again_from_its_snapshot(cluster: Cluster) -> None:
    with cluster.client():
        gt.recovery("replay")
        x = gt.zeros(3)
        for _ in range(20):
            x += 1
        assert x.tolist() == [20, 20, 20]
        before = log_of(cluster).length
        assert gt.snapshot().wait()
        assert log_of(cluster).length == 0 < before
        x += 1
        failed = gt.arange(3)[gt.tensor([7])]
        kill_home(cluster)
        assert x.tolist() == [21, 21, 21]
        with pytest.raises(gt.RemoteError, match="index 7 is out of bounds"):
            failed.tolist()
        assert gt.snapshot().wait()
        cluster.add_worker()
        kill_home(cluster)
        with pytest.raises(gt.RemoteError, match="index 7 is out of bounds"):
            failed.tolist()
        assert (x + 1).tolist() == [22, 22, 22]
        assert len(cluster.storage) == 1
    cluster.settle()
    assert not len(cluster.storage)


def test_a_loss_while_a_snapshot_is_written(tmp_path: Any) -> None:
    """The snapshot before it counts; the new one is taken again, and then it counts."""
    path = tmp_path / "signals.yaml"
    path.write_text("dp: {shard: {axis: 0, workers: [0, 1]}}\n")
    gt.load_config(str(path))
    cluster = Cluster(workers=3)
    with cluster.client():
        gt.recovery("replay")
        with gt.signal.context("dp"):
            x = gt.arange(6.0)
        assert gt.snapshot().wait()
        first = log_of(cluster).snapshot
        x += 1
        cluster.paused.add(b"w2")
        taken = gt.snapshot()
        cluster.settle()
        assert log_of(cluster).snapshot is first
        cluster.paused.clear()
        cluster.kill_worker(b"w2")
        assert taken.wait()
        assert log_of(cluster).snapshot is not first
        assert x.tolist() == [1, 2, 3, 4, 5, 6]
        cluster.kill_worker(b"w1")
        assert (x * 2).tolist() == [2, 4, 6, 8, 10, 12]
    gt.load_config(None)


def test_snapshots_by_themselves(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster.client():
        gt.recovery("replay", every=3)
        x = gt.arange(3.0)
        assert x.tolist() == [0, 1, 2]
        for _ in range(3):
            cluster.tick()
        assert log_of(cluster).snapshot is None
        cluster.tick()
        cluster.settle()
        assert log_of(cluster).snapshot is not None
    with cluster.client():  # and when the log is half full
        gt.recovery("off")
        gt.recovery("replay")
        monkeypatch.setattr(program_log, "MAX_LOG_BYTES", 20_000)
        x = gt.zeros(3)
        for _ in range(2000):
            x += 1
            x.tolist()
        kill_home(cluster)
        assert x.tolist() == [2000, 2000, 2000]


def test_snapshots_that_cannot_be_taken(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster.client():
        with pytest.raises(ClusterError, match="is not on"):
            gt.snapshot().wait()
        gt.recovery("replay")
        x = gt.arange(3.0)
        first = gt.snapshot()
        with pytest.raises(ClusterError, match="the snapshot before it is not complete"):
            gt.snapshot().wait()
        assert first.wait()
        monkeypatch.setattr(cluster.storage, "hold", lambda part: open_nothing())
        with pytest.raises(ClusterError, match="cannot open the memory of worker 0: no such file"):
            gt.snapshot().wait()
        monkeypatch.undo()
        assert gt.snapshot().wait()
        monkeypatch.setattr(type(cluster._engine), "copy", lambda engine, array: open_nothing())
        with pytest.raises(ClusterError, match="a worker could not copy the tensors: no such file"):
            gt.snapshot().wait()
        monkeypatch.undo()
        monkeypatch.setattr("gt.worker.recovery.snapshots.SharedRing", lambda size: open_nothing())
        with pytest.raises(ClusterError, match="a worker could not write it: no such file"):
            gt.snapshot().wait()
        monkeypatch.setattr("gt.worker.recovery.snapshot_parts.SharedRings.read", lambda *range: open_nothing())
        monkeypatch.setattr(recoveries, "HOLD_S", 3.0)
        kill_home(cluster)
        with pytest.raises(WorkerLost, match="could not be restored: no such file"):
            x.tolist()


def open_nothing() -> Any:
    raise OSError("no such file")


@pytest.mark.parametrize("op", ["sum", "amax", "amin", "prod"])
def test_partial_tensors_are_restored(op: str) -> None:
    """Term by term if there are as many workers; combined if there are fewer."""
    gt.register_config("dp", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=[0, 1])))
    cluster = Cluster(workers=3)
    with cluster.client():
        gt.recovery("replay")
        with gt.signal.context("dp"):
            x = gt.arange(8.0).reshape(4, 2) + 1
            partial = getattr(x, op)(0)
            want = getattr(x, op)(0).tolist()
        assert gt.snapshot().wait()
        cluster.kill_worker(b"w1")
        cluster.settle()
        assert str(partial.layout).startswith("P(")
        assert str(partial.layout).endswith("on workers 2, 1")
        cluster.kill_worker(b"w2")
        cluster.settle()
        assert str(partial.layout) == "worker 2"
        assert partial.tolist() == want


def test_a_server_that_keeps_no_memory(cluster: Cluster) -> None:
    cluster.dispatcher.snapshots = cluster.dispatcher.scheduler._snapshots = snapshots.SnapshotKeeper(
        cluster.dispatcher.clients, cluster.dispatcher.workers, cluster.dispatcher.delivery, None, print
    )
    with cluster.client() as session:
        gt.recovery("replay")
        gt.ones(1).item()
        client = cluster.dispatcher.clients[session.id]
        cluster.dispatcher.snapshots.begin(client, [])
        assert client.log is not None
        cluster.dispatcher._schedule()
        assert client.log.taking is None


def test_a_device_that_breaks_during_a_restore_ends_the_worker(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the program runs again on another one; otherwise its tensors would be lost on a device that no op can use."""
    with cluster.client():
        gt.recovery("replay")
        x = gt.arange(3.0)
        assert gt.snapshot().wait()
        monkeypatch.setattr(type(cluster._engine), "upload_storage", lambda engine, data: open_nothing())
        monkeypatch.setattr(type(cluster._engine), "is_broken", lambda engine, error: True)
        kill_home(cluster)
        with pytest.raises(DeviceBroken, match="no such file"):  # the worker's process would end here
            x.tolist()
        monkeypatch.undo()
        kill_home(cluster)
        cluster.add_worker()
        assert x.tolist() == [0, 1, 2]


def test_the_user_is_told_what_the_program_waits_for(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = Cluster(workers=2, backend="numpy")
    gt.register_config("dp", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=[0, 1])))
    with cluster.client():
        gt.recovery("replay", wait=5)
        with gt.signal.context("dp"):
            x = gt.arange(4.0)
        assert x.tolist() == [0, 1, 2, 3]
        kill_home(cluster)
        assert x.tolist() == [0, 1, 2, 3]
        said = capsys.readouterr().err
        assert re.search(r"worker 0 \(cpu, pid \d+\) is gone; 1 of 2 workers are connected, so the program waits", said)
        assert "no worker has joined within 5 s; the program runs again on 1 worker\n" in said
        cluster.add_worker()
        kill_home(cluster)
        assert x.tolist() == [0, 1, 2, 3]
        assert re.search(r"worker \d \(cpu, pid \d+\) is gone; the program runs again\n", capsys.readouterr().err)
    with cluster.client() as session:
        connect.recover_later_sessions(None)
        session.keep_program((0.0, 0.0))
        assert gt.ones(1).item() == 1
        for name in list(cluster.workers):
            cluster.kill_worker(name)
        with pytest.raises(NoWorkers):
            gt.ones(1).item()
        assert "is gone; no other worker is connected\n" in capsys.readouterr().err


def test_a_snapshot_on_a_server_that_keeps_no_memory(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a host without shared memory. The program runs again from its beginning."""
    monkeypatch.setattr(cluster.dispatcher.snapshots, "_storage", None)
    with cluster.client():
        gt.recovery("replay")
        x = gt.arange(3.0) * 2
        with pytest.raises(ClusterError, match="no snapshot: this server cannot keep the memory of workers"):
            gt.snapshot().wait()
        kill_home(cluster)
        assert x.tolist() == [0, 2, 4]


def test_a_worker_that_takes_no_snapshots(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recoveries, "HOLD_S", 3.0)
    with cluster.client():
        gt.recovery("replay")
        x = gt.ones(2)
        assert gt.snapshot().wait()
        for worker in cluster.workers.values():
            worker.snapshots = NoSnapshots()
        with pytest.raises(ClusterError, match="a worker takes no snapshots"):
            gt.snapshot().wait()
        kill_home(cluster)
        with pytest.raises(WorkerLost, match="this worker restores no snapshots"):
            x.tolist()


def test_no_snapshot_with_a_worker_on_another_host(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """It could not open what the server holds. If it joins later, it gets no tensor of the snapshot."""
    with cluster.client():
        gt.recovery("replay")
        x = gt.ones(2)
        assert gt.snapshot().wait()
        monkeypatch.setattr("gt.testing.host_identity", lambda: "elsewhere")
        cluster.add_worker()
        with pytest.raises(ClusterError, match="worker 2 is on another host than the server, or of another user"):
            gt.snapshot().wait()
        kill_home(cluster)
        assert (x + 1).tolist() == [2, 2]
