"""``gt.snapshot(name=…)`` and ``gt.fork``: new tensors with the values of a snapshot, for the same user only."""

from __future__ import annotations

import gc
import pathlib
import random
from collections.abc import Iterator
from typing import Any

import pytest

import gt
from gt.client.stream import connect
from gt.client.stream.session import Session
from gt.dispatcher.recovery import kept_snapshots
from gt.errors import ClusterError, ConfigError, ConnectionLost, QuotaExceeded, Refused
from gt.testing import Cluster
from gt.wire.codec import encode
from gt.wire.identities import Quota
from gt.wire.recovery_messages import DropKept, Fork, Keep
from gt.worker.errors import DeviceBroken
from tests.support.invariants import settled
from tests.test_cluster import seeds, small  # noqa: F401, a fixture
from tests.test_journal import Twins
from tests.test_recovery import _later_sessions_do_not_recover, kill_home  # noqa: F401, a fixture
from tests.test_tenants import MIB, cluster_of

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(workers=2, backend="numpy")


@pytest.fixture
def signals(tmp_path: pathlib.Path) -> Iterator[None]:
    path = tmp_path / "signals.yaml"
    path.write_text("rows: {shard: {axis: 0, workers: [0, 1, 2]}}\ncopies: {replicate: true, workers: [0, 1, 2]}\n")
    gt.load_config(str(path))
    yield
    gt.load_config(None)


def kept(cluster: Cluster) -> list[int]:
    """How many snapshots the dispatcher knows, and how many parts each worker has."""
    cluster.settle()
    return [len(cluster.dispatcher.kept), *(len(worker.kept) for worker in cluster.workers.values())]


class Training:
    def __init__(self) -> None:
        gt.manual_seed(0)
        self.model = gt.nn.Sequential(gt.nn.Linear(4, 8), gt.nn.ReLU(), gt.nn.Linear(8, 2))
        self.optimizer = gt.optim.Adam(self.model.parameters(), lr=0.1)
        self.x = gt.rand(6, 4)

    def steps(self, count: int) -> list[float]:
        losses = []
        for _ in range(count):
            self.optimizer.zero_grad()
            loss = self.model(self.x).square().sum()
            loss.backward()
            self.optimizer.step()
            losses.append(loss.item())
        return losses

    def snapshot(self, **more: Any) -> Any:
        return gt.snapshot(model=self.model, optimizer=self.optimizer, **more)

    def load(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


def test_training_goes_on_from_a_snapshot_in_the_same_and_in_another_session(cluster: Cluster) -> None:
    with cluster.client():
        training = Training()
        training.steps(4)
        taken = training.snapshot(epoch=3, data=[training.x, ("a", None)])
        want = training.steps(4)
        running = training.model[0].weight.tolist()
        state = gt.fork(taken)
        assert training.model[0].weight.tolist() == running  # forking changes nothing
        assert (state["epoch"], state["data"][1]) == (3, ("a", None))
        assert state["data"][0].tolist() == training.x.tolist()
        training.load(state)
        assert training.steps(4) == want
        with cluster.client():
            other = Training()
            other.load(gt.fork(str(taken)))
            assert other.steps(4) == want
        training.load(gt.fork(taken))  # as often as one likes
        assert training.steps(4) == want


def test_a_write_changes_neither_the_snapshot_nor_another_fork(cluster: Cluster) -> None:
    with cluster.client():
        x = gt.arange(4.0)
        view = x[1:3]
        taken = gt.snapshot(x=x, view=view)
        x += 1
        one, two = gt.fork(taken), gt.fork(taken)
        one["x"] *= 10
        assert x.tolist() == [1, 2, 3, 4]
        assert one["x"].tolist() == [0, 10, 20, 30]
        assert two["x"].tolist() == [0, 1, 2, 3]
        assert (one["view"].tolist(), view.tolist()) == ([1, 2], [2, 3])


def test_the_layout_is_that_of_the_snapshot(signals: None) -> None:
    cluster = Cluster(3, backend="numpy")
    with cluster.client():
        with gt.signal.context("rows"):
            x = gt.ones(5, 2)
        terms = x.sum(0)  # a partial sum
        state = gt.fork(gt.snapshot(x=x, terms=terms))
        assert str(state["x"].layout) == str(x.layout) == "S(0) on workers 0, 1, 2"
        assert str(state["terms"].layout) == str(terms.layout)
        assert (state["x"] + x).tolist() == (2 * x).tolist()
        assert state["terms"].tolist() == [5, 5]


def test_a_failure_is_part_of_the_snapshot(cluster: Cluster) -> None:
    with cluster.client():
        wrong = gt.arange(3)[gt.tensor([7])]
        state = gt.fork(gt.snapshot(wrong=wrong, x=gt.ones(2)))
        assert state["x"].tolist() == [1, 1]
        with pytest.raises(gt.RemoteError, match="index 7 is out of bounds"):
            state["wrong"].tolist()


@pytest.mark.parametrize("recovery", [False, True])
def test_what_a_snapshot_has_is_not_cancelled(recovery: bool) -> None:
    """The tensor was freed after the snapshot, and nothing has run yet."""
    cluster = Cluster(workers=0, backend="numpy")
    with cluster.client() as session:
        if recovery:
            session.keep_program((0.0, 0.0))
        x = gt.arange(3.0) + 1
        taken, whole = gt.snapshot(x=x), gt.snapshot() if recovery else None
        y = x * 2
        del x, y
        gt.cancel()
        cluster.settle()
        cluster.add_worker()
        if whole is not None:
            assert whole.wait()
            cluster.add_worker()
            kill_home(cluster)
            assert (gt.ones(1) + 1).tolist() == [2]
        else:
            assert gt.fork(taken)["x"].tolist() == [1, 2, 3]


# -- the end of a snapshot -----------------------------------------------------------------


def test_it_is_freed_when_dropped(cluster: Cluster) -> None:
    with cluster.client():
        taken = gt.snapshot(x=gt.ones(3))
        state = gt.fork(taken)
        assert sum(kept(cluster)) == 2
        taken.drop()
        taken.drop()
        with pytest.raises(ClusterError, match="no such snapshot of yours: it was dropped"):
            gt.fork(taken)
        assert sum(kept(cluster)) == 0
        assert state["x"].tolist() == [1, 1, 1]


def test_it_is_freed_with_its_handle(cluster: Cluster) -> None:
    with cluster.client():
        taken = gt.snapshot(x=gt.ones(3))
        del taken
        gc.collect()
        assert sum(kept(cluster)) == 0


@pytest.mark.parametrize("kill", [False, True])
def test_it_is_freed_with_its_session(cluster: Cluster, kill: bool) -> None:
    session = cluster.add_client()
    with connect.use(session):
        taken = gt.snapshot(x=gt.ones(3))
        assert taken.wait()
    cluster.kill_client(session) if kill else session.close()
    assert sum(kept(cluster)) == 0
    with cluster.client(), pytest.raises(ClusterError, match="its session has ended"):
        gt.fork(str(taken))


def test_keep_lets_it_outlive_its_session(cluster: Cluster) -> None:
    session = cluster.add_client()
    with connect.use(session):
        text = str(gt.snapshot(x=gt.ones(3), keep=60))
    cluster.settle()
    cluster.kill_client(session)
    cluster.settle()
    cluster.tick(30)
    with cluster.client():
        assert gt.fork(text)["x"].tolist() == [1, 1, 1]
    cluster.tick(31)
    cluster.tick(31)
    assert sum(kept(cluster)) == 0
    with cluster.client(), pytest.raises(ClusterError, match="its session has ended"):
        gt.fork(text)


# -- refusals ------------------------------------------------------------------------------


def test_another_user_cannot_fork_it() -> None:
    cluster = cluster_of("numpy", alice=Quota(), alice_=Quota(), bob=Quota())
    one, two, bob = cluster.add_client(), cluster.add_client(), cluster.add_client()
    with connect.use(one):
        taken = gt.snapshot(x=gt.ones(3))
        assert taken.wait()
    with connect.use(bob):
        with pytest.raises(ClusterError) as wrong_user:
            gt.fork(str(taken))
        with pytest.raises(ClusterError) as wrong_text:
            gt.fork("0" * 32)
        x = gt.zeros(1)
        bob.outbox.flush()
        bob.send_quietly(Fork(99, str(taken), [1000]))  # without asking
        bob.send_quietly(DropKept(str(taken)))
        assert x.tolist() == [0]
    assert str(wrong_user.value).replace(str(taken), "0" * 32) == str(wrong_text.value)
    assert "no such snapshot of yours" in str(wrong_text.value)
    with connect.use(two):
        assert gt.fork(str(taken))["x"].tolist() == [1, 1, 1]
    state = next(client for client in cluster.dispatcher.clients.values() if client.id == bob.id)
    assert "no such snapshot" in state.tensors[1000].text  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (lambda key: Keep(9, "short", [1], b"", 0.0), "a malformed snapshot"),
        (lambda key: Keep(9, "k" * 32, [], b"", 0.0), "a malformed snapshot"),
        (lambda key: Keep(9, "k" * 32, [1], b"", -1.0), "a malformed snapshot"),
        (lambda key: Keep(9, "k" * 32, [1] * 20000, b"", 0.0), "a snapshot of 20000 tensors"),
        (lambda key: Keep(9, "k" * 32, [1], b"x" * (2 << 20), 0.0), "and 2097152 bytes"),
        (lambda key: Keep(9, "k" * 32, [77], b"", 0.0), "tensor 77, which does not exist"),
        (lambda key: Keep(9, key, [1], b"", 0.0), "two snapshots with the same key"),
        (lambda key: Fork(9, key, [1]), "to a tensor that exists"),
        (lambda key: Fork(9, key, [1 << 50]), "to a tensor that exists"),
        (lambda key: Fork(9, key, [50, 51]), "2 tensors for a snapshot of 1"),
    ],
)
def test_a_malformed_message_costs_its_sender_the_connection(cluster: Cluster, message: Any, text: str) -> None:
    with cluster.client() as session:
        x = gt.ones(3)
        taken = gt.snapshot(x=x)
        assert taken.wait()
        session.connection.send([encode(message(str(taken)))])
        cluster.settle()
        with pytest.raises(Refused, match=text):
            x.tolist()
    assert sum(kept(cluster)) == 0


def test_arguments(cluster: Cluster) -> None:
    with cluster.client():
        with pytest.raises(ConfigError, match=r"snapshot\(keep=-1\): a number of seconds from 0 to 86400"):
            gt.snapshot(x=gt.ones(1), keep=-1)
        with pytest.raises(ConfigError, match="there is no tensor in it"):
            gt.snapshot(epoch=3)
        with pytest.raises(ConfigError, match="this snapshot has no names"):
            gt.fork(gt.snapshot())
        with pytest.raises(ConfigError, match=r"fork\(NoneType\): neither a snapshot nor the text of one"):
            gt.fork(None)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="cannot be saved"):
            gt.snapshot(x=gt.ones(1), f=lambda: 1)


def test_the_number_of_snapshots_is_limited(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_snapshots, "MAX_SNAPSHOTS", 3)
    with cluster.client():
        x = gt.ones(1)
        snapshots = [gt.snapshot(x=x) for _ in range(4)]
        with pytest.raises(ClusterError, match="has 3 snapshots already: drop some of them"):
            snapshots[3].wait()
        snapshots[0].drop()
        cluster.settle()
        assert gt.snapshot(x=x).wait()


@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_it_counts_against_the_quota(backend: str) -> None:
    """Also after its session has ended; and a fork does."""
    cluster = cluster_of(backend, alice=Quota(memory=10 * MIB), alice_=Quota(memory=10 * MIB))
    one, two = cluster.add_client(), cluster.add_client()
    with connect.use(one):
        x = gt.zeros(MIB)  # 4 MiB
        taken = gt.snapshot(x=x, keep=60)
        assert taken.wait()
        with pytest.raises(
            ClusterError, match=r"could not copy the tensors: the memory quota of alice .* 8.00 MiB are"
        ):
            gt.snapshot(x=x).wait()
        state = gt.fork(taken)
        with pytest.raises(QuotaExceeded, match=r"gt.fork failed on worker 0 .*the memory quota of alice"):
            state["x"].sum().item()
        assert x.sum().item() == 0
    cluster.kill_client(one)
    cluster.settle()
    with connect.use(two):
        y = gt.zeros(MIB)
        with pytest.raises(QuotaExceeded, match=r"8.00 MiB are in use"):
            (y + 1).sum().item()
        two.send_quietly(DropKept(str(taken)))
        assert (y + 1).sum().item() == MIB


# -- lost workers --------------------------------------------------------------------------


def test_the_only_copy_is_lost(cluster: Cluster) -> None:
    with cluster.client() as session:
        x = gt.ones(3)
        taken = gt.snapshot(x=x)
        assert taken.wait()
        home = cluster.dispatcher.clients[session.id].home
        cluster.kill_worker(next(name for name, worker in cluster.workers.items() if worker.id == home))
        cluster.settle()
        with pytest.raises(
            ClusterError, match=r"worker 0 \(cpu, pid \d+\) is gone, and a part of the snapshot with it"
        ):
            gt.fork(taken)
        lost = gt.snapshot(x=x)
        with pytest.raises(ClusterError, match=r"worker 0 .* is gone"):
            lost.wait()
        assert gt.fork(gt.snapshot(x=gt.zeros(1)))["x"].tolist() == [0]


def test_a_replicated_tensor_survives(signals: None) -> None:
    cluster = Cluster(3, backend="numpy")
    with cluster.client():
        with gt.signal.context("copies"):
            x = gt.arange(3.0)
        taken = gt.snapshot(x=x)
        assert taken.wait()
        for name in list(cluster.workers)[:2]:
            cluster.kill_worker(name)
            cluster.settle()
            assert gt.fork(taken)["x"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("cut", [False, True])
def test_with_recovery_it_is_taken_again(cluster: Cluster, cut: bool) -> None:
    """The program that runs again takes it and copies it again, also after it was dropped. If the log begins after it,
    what was forked is in the snapshot of the program."""
    with cluster.client():
        gt.recovery("replay")
        x = gt.arange(3.0)
        taken = gt.snapshot(x=x)
        x += 1
        state = gt.fork(taken)
        if cut:
            assert gt.snapshot().wait()
        kill_home(cluster)
        assert state["x"].tolist() == [0, 1, 2]
        assert x.tolist() == [1, 2, 3]
        if cut:
            with pytest.raises(ClusterError, match="is gone, and a part of the snapshot with it"):
                gt.fork(taken)
        else:
            assert gt.fork(taken)["x"].tolist() == [0, 1, 2]
        taken.drop()
        cluster.add_worker()
        kill_home(cluster)
        assert state["x"].tolist() == [0, 1, 2]
        del state
    assert sum(kept(cluster)) == 0


def test_a_program_that_runs_again_copies_the_snapshot_of_another_session(cluster: Cluster) -> None:
    """It was dropped, and its session has ended: it is kept until no program needs it."""
    session = cluster.add_client()
    with connect.use(session):
        taken = gt.snapshot(x=gt.arange(3.0))
        assert taken.wait()
    with cluster.client() as other:
        other.keep_program((0.0, 0.0))
        state = gt.fork(str(taken))
        moved = gt.ones(3) + state["x"]
        assert moved.tolist() == [1, 2, 3]
        taken.drop()
        cluster.settle()
        session.close()
        assert sum(kept(cluster)) == 2
        cluster.kill_worker(next(n for n, worker in cluster.workers.items() if not len(worker.kept)))
        assert (moved + state["x"]).tolist() == [1, 3, 5]
        assert gt.snapshot().wait()  # the log begins here
        cluster.tick()
        assert sum(kept(cluster)) == 0


# -- random --------------------------------------------------------------------------------


@seeds(12)
def test_random_snapshots_and_forks(seed: int, small: Any) -> None:  # noqa: F811
    """Several sessions take, fork, drop and end, while workers die. The dispatcher is read again after every event."""
    small(seed)
    rng = random.Random(seed)
    cluster = Cluster(rng.randint(1, 3), seed, "numpy")
    twins = Twins(cluster)
    texts: dict[str, list[float]] = {}
    sessions: list[tuple[Session, list[Any], list[Any]]] = []
    for _ in range(40):
        if len(sessions) < 2:
            session = cluster.add_client()
            if rng.random() < 0.6:
                session.keep_program((0.0, 0.0))
            sessions.append((session, [], []))
        session, taken, tensors = rng.choice(sessions)
        action = rng.choice(("create", "write", "take", "take", "fork", "fork", "drop", "kill", "end"))
        with connect.use(session):
            if action == "create" or not tensors:
                value = [float(rng.randrange(100)) for _ in range(3)]
                tensors.append([gt.tensor(value) + 0, value, session.connection.recovery is not None])
            elif action == "write":
                one = rng.choice(tensors)
                one[0] += 1
                one[1] = [v + 1 for v in one[1]]
            elif action == "take":
                one = rng.choice(tensors)
                taken.append(gt.snapshot(x=one[0], keep=rng.choice((0, 5))))
                texts[str(taken[-1])] = one[1]
            elif action == "fork" and texts:
                text = rng.choice(list(texts))
                try:
                    tensors.append([gt.fork(text)["x"], texts[text], False])
                except ClusterError:
                    del texts[text]
            elif action == "drop" and taken:
                taken.pop(rng.randrange(len(taken))).drop()
            elif action == "kill" and rng.random() < 0.5:
                cluster.kill_worker(rng.choice(list(cluster.workers)))
                cluster.add_worker()
            elif action == "end" and rng.random() < 0.3:
                check(tensors)
                sessions = [entry for entry in sessions if entry[0] is not session]
                cluster.kill_client(session)
        for _ in range(rng.randrange(10)):
            cluster.step()
    for session, taken, tensors in sessions:
        with connect.use(session):
            check(tensors)
        taken.clear()
        tensors.clear()
        session.close()
    cluster.settle()
    for _ in range(8):
        cluster.tick()
        cluster.settle()
    settled(cluster)
    assert sum(kept(cluster)) == 0
    assert all(not worker.kept._waiting for worker in cluster.workers.values())
    assert twins.events > 20


def check(tensors: list[Any]) -> None:
    """Every value is right; only a tensor of a program that is not kept may be lost, and a fork."""
    for tensor, value, recovers in tensors:
        try:
            assert tensor.tolist() == value
        except (ClusterError, ConnectionLost):
            assert not recovers


def test_a_device_that_breaks_while_it_copies(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(engine: object, value: object) -> None:
        raise RuntimeError("device-side assert")

    with cluster.client():
        x = gt.arange(3.0)
        kept = gt.snapshot(x=x)
        assert kept.wait()
        monkeypatch.setattr(type(cluster._engine), "copy", broken)
        monkeypatch.setattr(type(cluster._engine), "is_broken", lambda engine, error: True)
        with pytest.raises(DeviceBroken, match="device-side assert"):  # the worker's process would end here
            gt.snapshot(x=x).wait()
        with pytest.raises(DeviceBroken, match="device-side assert"):
            gt.fork(kept)["x"].tolist()
        monkeypatch.undo()
