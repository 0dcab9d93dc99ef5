"""Whole clusters in one thread: random programs, interleavings and deaths, all drawn from a seed.

``GT_SEEDS=5000 pytest tests/test_cluster.py`` tries that many seeds of each test instead of the usual few.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
from typing import Any

import numpy as np
import pytest

from gt.client.stream import outbox
from gt.client.stream.pending import PendingValue
from gt.client.stream.session import Session
from gt.client.tensor.emit import call, call_into, call_many, create, upload
from gt.dispatcher import admission, scheduling
from gt.errors import ClusterError, ConnectionLost, NoWorkers, RemoteError, ShapeError, WorkerLost
from gt.ops import OPS
from gt.testing import Cluster
from gt.types import DTYPES, TensorType
from gt.wire.messages import ChunkTaken, Define, Done, Execute, Leave
from gt.wire.words import FETCH
from gt.worker.core import Worker
from gt.worker.engines import make_engine
from tests.support.invariants import always, settled
from tests.support.programs import SAMPLES, Program
from tests.support.small_limits import shrink_limits

pytestmark = pytest.mark.filterwarnings("ignore")  # torch warns about what the samples do on purpose


def seeds(usual: int) -> Any:
    """This many seeds, or ``GT_SEEDS``; half of the usual ones run in `make test-all` only."""
    if "GT_SEEDS" in os.environ:
        return pytest.mark.parametrize("seed", range(int(os.environ["GT_SEEDS"])))
    long = [pytest.param(seed, marks=pytest.mark.long) for seed in range(usual // 2, usual)]
    return pytest.mark.parametrize("seed", [*range(usual // 2), *long])


class Play:
    """Several programs on one cluster, their steps interleaved at random."""

    def __init__(self, seed: int, clients: int | None = None, workers: int | None = None) -> None:
        self.rng = random.Random(seed)
        self.backend = "numpy" if seed % 4 == 3 else "torch"
        self.cluster = Cluster(workers or self.rng.randint(1, 4), seed, self.backend)
        self.cluster.after_step = always
        self.programs = [self.join() for _ in range(clients or self.rng.randint(1, 4))]

    def join(self) -> Program:
        return Program(self.cluster.add_client(), random.Random(self.rng.random()), self.backend)

    def act(self) -> None:
        program = self.rng.choice(self.programs)
        what = self.rng.random()
        if what < 0.05:
            for _ in range(self.rng.randint(1, 8)):
                self.cluster.step()
        elif what < 0.08:
            program.session.outbox.flush_in_background()
        elif what < 0.10:
            program.session.worker_stats()
        elif what < 0.12:
            self.cluster.tick()
        elif what < 0.18:
            program.send_large(self.rng.randint(70_000, 300_000))
        else:
            program.act()

    def end(self) -> None:
        """Check all values; then end everything, and check that nothing remains."""
        for program in self.programs:
            program.read_all()
        self.settle()
        for program in self.programs:
            program.slots.clear()
            program.session.close()
        self.cluster.settle()
        settled(self.cluster)
        assert not self.cluster.dispatcher.clients
        assert all(not worker.spaces for worker in self.cluster.workers.values())

    def settle(self) -> None:
        for program in self.programs:
            program.session.outbox.flush_in_background()
        self.cluster.settle()
        settled(self.cluster)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Limits so small that every program reaches them."""
    return lambda seed: shrink_limits(monkeypatch, seed)


@seeds(120)
def test_values_are_right_whatever_the_order(seed: int, small: Any) -> None:
    small(seed)
    play = Play(seed)
    for _ in range(60):
        play.act()
    play.end()


@seeds(80)
def test_workers_die(seed: int, small: Any) -> None:
    small(seed)
    play = Play(seed)
    deaths = Deaths(play)
    for _ in range(60):
        deaths.act()
    deaths.stop()
    while play.cluster.workers:
        deaths.kill_worker()
    play.cluster.settle()
    deaths.revive()
    for program in play.programs:  # after all that, new tensors work
        program.slots.clear()
        for _ in range(8):
            program.compute()
    play.end()


@seeds(80)
def test_clients_die(seed: int, small: Any) -> None:
    small(seed)
    play = Play(seed, clients=3)
    deaths = Deaths(play)
    for _ in range(60):
        deaths.act(workers=False)
    deaths.stop()
    play.end()


@seeds(40)
def test_all_die_and_come_back(seed: int, small: Any) -> None:
    small(seed)
    play = Play(seed)
    deaths = Deaths(play)
    for _ in range(80):
        deaths.act(clients=True)
    deaths.stop()
    play.end()


class Deaths:
    """Kills at any moment: after any message, whatever anyone waits for."""

    def __init__(self, play: Play) -> None:
        self.play, self.cluster, self.rng = play, play.cluster, play.rng
        #: dead workers, and the programs affected since the last action
        self.dead: set[int] = set()
        self.hit: set[Program] = set()

    def act(self, workers: bool = True, clients: bool | None = None) -> None:
        clients = not workers if clients is None else clients
        kinds = [self.kill_worker] * workers + [self.kill_client] * clients
        if self.rng.random() < 0.08:
            self._after(self.rng.randint(0, 12), self.rng.choice(kinds))
        if not self.cluster.workers and self.rng.random() < 0.7:
            self.revive()
        try:
            self.play.act()
        except NoWorkers:
            assert self.dead
            if not self.cluster.workers:
                self.revive()
        except ConnectionLost:  # it was the one that died
            assert any(p.session.connection.ended for p in self.play.programs)
        self._mourn()
        self.play.programs = [p for p in self.play.programs if p.session.connection.ended is None]
        while len(self.play.programs) < 2:
            self.play.programs.append(self.play.join())

    def stop(self) -> None:
        self.cluster.after_step = always
        if not self.cluster.workers:
            self.revive()
        self.cluster.settle()
        self._mourn()
        self.play.programs = [p for p in self.play.programs if p.session.connection.ended is None]

    def _after(self, steps: int, kill: Any) -> None:
        left = [steps]

        def count(cluster: Cluster) -> None:
            always(cluster)
            left[0] -= 1
            if left[0] < 0:
                cluster.after_step = always
                kill()

        self.cluster.after_step = count

    def kill_worker(self) -> None:
        admitted = [name for name, worker in self.cluster.workers.items() if worker.id >= 0]
        if admitted:
            name = self.rng.choice(admitted)
            self.dead.add(self.cluster.workers[name].id)
            self._mourn()
            self.cluster.kill_worker(name)

    def _mourn(self) -> None:
        """A program may have lost tensors if its worker is dead, or will be a dead one that is not noticed yet."""
        unnoticed = self.dead & set(self.cluster.dispatcher.workers)
        for program in self.play.programs:
            client = self.cluster.dispatcher.clients.get(program.session.id)
            if client is not None and unnoticed and (client.home is None or client.home in unnoticed):
                self.hit.add(program)
            if not self.cluster.dispatcher.workers:  # no receiver takes the chunks sent now
                self.hit.add(program)
        for program in self.hit:
            program.lose()
        if not unnoticed:
            self.hit.clear()

    def kill_client(self) -> None:
        alive = [p for p in self.play.programs if p.session.connection.ended is None]
        if alive:
            self.cluster.kill_client(self.rng.choice(alive).session)

    def revive(self) -> None:
        for _ in range(self.rng.randint(1, 2)):
            self.cluster.add_worker()


# -- every op ------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_every_sample_of_every_op(backend: str) -> None:
    cluster = Cluster(2, seed=1, backend=backend)
    program = Program(cluster.add_client(), random.Random(1), backend)
    program.reuse = 0.0
    for sample in SAMPLES:
        if not OPS[sample.op].view:
            program.compute(sample)
            program.read_all()
            program.slots.clear()
    assert {name for name, op in OPS.items() if not op.view and not op.effects} - program.ops == set()


# -- failures ------------------------------------------------------------------------------


def a_cluster(workers: int = 1, seed: int = 0) -> tuple[Cluster, Session]:
    cluster = Cluster(workers, seed)
    cluster.after_step = always
    return cluster, cluster.add_client()


def tensor(session: Session, *values: float, dtype: str = "float32") -> Any:
    array = np.array(values, dtype)
    return upload(memoryview(array).cast("B"), TensorType(array.shape, DTYPES[dtype]), session)


def large(session: Session, nbytes: int, value: int = 1) -> Any:
    array = np.full(nbytes // 4, value, np.int32)
    return upload(memoryview(array).cast("B"), TensorType(array.shape, DTYPES["int32"]), session)


def picked(x: Any, *places: int) -> Any:
    index = tensor(x._cell.session, *places, dtype="int64")
    return call(OPS["index"], (x, index), (("dims", (0,)),))


def test_the_first_cause_is_reported_and_the_session_continues() -> None:
    cluster, session = a_cluster()
    x = tensor(session, 1, 2, 3)
    bad = picked(x, 7)
    worse = call(OPS["add"], (bad, x))
    worst = call(OPS["mul"], (picked(worse, 99), 2.0))
    for failed in (bad, worse, worst):
        with pytest.raises(
            RemoteError, match=r"^index\(float32\[3\], int64\[1\], dims=\(0,\)\) failed on worker 0 \(cpu\)"
        ):
            failed.numpy()
    with pytest.raises(RemoteError, match=r"called at .*test_cluster.py:\d+: return call"):
        worst.numpy()
    assert x.numpy().tolist() == [1, 2, 3]
    assert call(OPS["add"], (x, x)).numpy().tolist() == [2, 4, 6]
    del bad, worse, worst, failed
    gc.collect()  # the tracebacks of the errors hold them
    session.outbox.flush()
    cluster.settle()
    settled(cluster)
    (worker,) = cluster.workers.values()
    assert worker.spaces[session.id].placeholders == 0


def test_a_failed_write_takes_its_target_with_it_and_no_other() -> None:
    _, session = a_cluster()
    x, y = tensor(session, 1, 2, 3), tensor(session, 4, 5, 6)
    call_into(OPS["index_put"], x, (1.0, tensor(session, 8, dtype="int64")), (("dims", (0,)), ("accumulate", False)))
    call_into(OPS["add"], y, (1.0,))
    with pytest.raises(RemoteError, match=r"^index_put_"):
        x.numpy()
    assert y.numpy().tolist() == [5, 6, 7]


# -- lost workers --------------------------------------------------------------------------


@pytest.mark.long
def test_a_large_value_that_went_to_a_worker_now_gone_is_lost_not_broken(small: Any) -> None:
    lost = 0
    for seed in range(40):
        small(seed)
        cluster, session = a_cluster(2, seed)
        x = large(session, 250_000, seed)  # its chunks are pending, its instruction is not sent yet
        while (home := cluster.dispatcher.clients[session.id].home) is None:
            cluster.step()
        cluster.kill_worker(next(n for n, w in cluster.workers.items() if w.id == home))
        message = ""
        try:
            assert set(x.numpy()) == {seed}
        except WorkerLost as error:
            message = str(error)
        assert not message or f"worker {home} (cpu, pid " in message
        lost += bool(message)
        assert set(large(session, 250_000, 5).numpy()) == {5}
        cluster.settle()
        del x
        gc.collect()
        session.outbox.flush()
        cluster.settle()
        settled(cluster)
    assert lost > 10


def test_a_worker_that_dies_before_its_memory_was_opened() -> None:
    cluster, session = a_cluster()
    x = large(session, 1 << 20)
    session.outbox.flush()
    cluster.settle()
    cluster.paused.add(cluster.name_of(session))
    session.outbox.extend((FETCH, 1000, x._cell.id))
    pending = session.replies.pending[1000] = PendingValue(x.nbytes)
    session.outbox.flush()
    cluster.settle()  # the value is in the worker's lane, and the client knows its position
    cluster.kill_worker(next(iter(cluster.workers)))
    cluster.paused.clear()
    cluster.settle()
    assert isinstance(pending.error, WorkerLost)
    assert "worker" in str(pending.error)
    assert "is gone" in str(pending.error)


def test_a_write_with_a_lost_operand_leaves_nothing_behind() -> None:
    cluster, session = a_cluster()
    lost = tensor(session, 1, 2)
    session.outbox.flush()
    cluster.settle()
    cluster.kill_worker(next(iter(cluster.workers)))
    cluster.add_worker()
    cluster.settle()
    x = tensor(session, 3, 4)
    call_into(OPS["add"], x, (lost,))
    with pytest.raises(WorkerLost):
        x.numpy()
    session.outbox.flush()
    cluster.settle()
    settled(cluster)
    del x
    session.outbox.flush()
    cluster.settle()
    settled(cluster)


def test_without_workers_a_client_gets_an_error_and_does_not_hang() -> None:
    cluster, session = a_cluster()
    x = tensor(session, 1)
    session.outbox.flush()
    cluster.settle()
    cluster.kill_worker(next(iter(cluster.workers)))

    def run_ahead() -> None:
        y = x
        for _ in range(100_000):  # it runs out of credit, and never reads
            y = call(OPS["add"], (y, 1.0))

    with pytest.raises(NoWorkers, match="no worker is connected"):
        run_ahead()
    with pytest.raises(NoWorkers, match="no worker is connected"):
        large(session, 1 << 20)
    cluster.add_worker()
    assert tensor(session, 5).numpy() == [5]


def test_reads_without_workers_cost_no_credit_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "WINDOW_WORDS", 1000)
    monkeypatch.setattr(scheduling, "WINDOW_WORDS", 1000)
    monkeypatch.setattr(admission, "WINDOW_WORDS", 1000)
    monkeypatch.setattr(admission, "MAX_SUBMIT_WORDS", 1000)
    cluster = Cluster(0)
    session = cluster.add_client()
    for _ in range(40):  # the server must not treat it as a client that ignores its credit
        with pytest.raises(NoWorkers):
            tensor(session, *range(400)).numpy()
    assert session.connection.ended is None
    cluster.add_worker()
    assert tensor(session, 5).numpy() == [5]


# -- one client and the others -------------------------------------------------------------


def test_a_client_that_receives_nothing_does_not_block_others(small: Any) -> None:
    for seed in range(30):
        small(seed)
        cluster, slow = a_cluster(1, seed)
        quick = cluster.add_client()
        x = large(slow, 300_000, seed)
        cluster.paused.add(cluster.name_of(slow))
        slow.outbox.extend((FETCH, 1000, x._cell.id))  # requested, and then the process is stopped
        for _ in range(200):  # with more to do than a worker receives ahead
            x = call(OPS["add"], (x, 1))
            slow.outbox._submit()
        for i in range(50):
            assert call(OPS["add"], (tensor(quick, i), 1.0)).numpy() == [i + 1]
        if seed % 2:
            cluster.kill_client(slow)
        else:
            cluster.paused.clear()
        for i in range(50):
            assert call(OPS["add"], (tensor(quick, i), 1.0)).numpy() == [i + 1]
        if not seed % 2:
            assert set(x.numpy()) == {seed + 200}
        cluster.settle()
        del x
        slow.outbox.flush_in_background()
        quick.outbox.flush_in_background()
        cluster.settle()
        settled(cluster)


def test_nothing_of_a_client_stays_when_it_is_killed() -> None:
    for seed in range(30):
        cluster, session = a_cluster(3, seed)
        other = cluster.add_client()
        kept = tensor(other, 1, 2)
        for _ in range(seed % 5):
            x = large(session, 200_000)
        x = large(session, 3 << 20)
        session.outbox.extend((FETCH, 1000, x._cell.id))
        session.outbox._submit()
        for _ in range(3 * seed):
            cluster.step()
        cluster.kill_client(session)
        cluster.settle()
        assert kept.numpy().tolist() == [1, 2]
        assert list(cluster.dispatcher.clients) == [other.id]
        assert all(list(w.spaces) in ([], [other.id]) for w in cluster.workers.values())
        assert all(not w.uploads.rings._open for w in cluster.workers.values())
        settled(cluster)


def test_tensors_of_two_sessions_do_not_meet() -> None:
    cluster, one = a_cluster()
    with pytest.raises(ClusterError, match="two sessions cannot be used together"):
        call(OPS["add"], (tensor(one, 1), tensor(cluster.add_client(), 1)))


# -- large numbers of things ---------------------------------------------------------------


def test_many_values_that_are_just_small_enough_stay_within_the_credit() -> None:
    cluster, session = a_cluster()
    tensors = [large(session, 64 << 10, i) for i in range(200)]
    assert tensors[-1].numpy()[0] == 199
    cluster.settle()
    del tensors
    session.outbox.flush()
    cluster.settle()
    settled(cluster)


@pytest.mark.long
@pytest.mark.parametrize("count", [65_529, 65_532, 65_536, 140_000])
def test_many_tensors_dropped_at_once(count: int) -> None:
    """Whatever their number, a submission never ends inside an instruction."""
    cluster, session = Cluster(1), None
    session = cluster.add_client()
    x = tensor(session, 1)
    tensors = [call(OPS["add"], (x, 1.0)) for _ in range(count)]
    assert tensors[-1].numpy() == [2]
    del tensors
    for _ in range(60):
        x = call(OPS["add"], (x, 1.0))
        session.outbox.flush()
    assert x.numpy() == [61]
    session.outbox.flush()
    cluster.settle()
    (worker,) = cluster.workers.values()
    assert len(worker.spaces[session.id].store) == 1


def test_an_interrupted_value_in_chunks_does_not_block_later_ones(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(20):
        small(seed)
        cluster, session = a_cluster(1, seed)
        for n in range(12):
            send, left = session.connection.link.send, [n]

            def interrupted(frames: Any, send: Any = send, left: Any = left) -> None:
                left[0] -= 1
                if left[0] == -1:
                    raise KeyboardInterrupt
                send(frames)

            monkeypatch.setattr(session.connection.link, "send", interrupted)
            with contextlib.suppress(KeyboardInterrupt):
                large(session, 250_000)
            monkeypatch.setattr(session.connection.link, "send", send)
            assert set(large(session, 250_000, n).numpy()) == {n}
        cluster.settle()
        held = [t for w in cluster.workers.values() for t in w.spaces[session.id].transfers.values()]
        assert all(isinstance(t, Exception) for t in held)


def test_a_call_no_frame_could_hold_is_refused_at_the_users_line() -> None:
    _, session = a_cluster()
    x = tensor(session, *range(20_000))
    with pytest.raises(ShapeError, match=r"^split\(float32\[20000\], .*more than 16384 operands and results"):
        call_many(OPS["split"], (x,), (("sizes", (1,) * 20_000), ("dim", 0)))
    with pytest.raises(ShapeError, match="larger than any memory"):
        create(OPS["full"], (1.0,), (("shape", (1 << 40, 1 << 40)), ("dtype", "float32")), session)
    with pytest.raises(ShapeError, match="65 dims are more than 64"):
        call(OPS["view"], (x,), (("shape", (20_000, *(1,) * 64)),))
    assert x.numpy()[-1] == 19_999


def test_the_weight_of_a_background_flush_during_an_upload_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """The background thread may submit between the bytes of a tensor and the instruction that takes them."""
    send = Session.upload

    def upload(session: Session, data: memoryview) -> Any:
        sent = send(session, data)
        session.outbox.flush_in_background()
        return sent

    monkeypatch.setattr(Session, "upload", upload)
    cluster = Cluster()
    with cluster.client() as session:
        x = create(OPS["full"], (1.5,), (("shape", (2,)), ("dtype", "float32")), session)
        values = np.arange(480)
        tensor = upload_array(values, session)
        assert call(OPS["add"], (x, x)).numpy().tolist() == [3, 3]
        assert tensor.numpy().tolist() == values.tolist()


def upload_array(values: Any, session: Session) -> Any:
    return upload(memoryview(values).cast("B"), TensorType(values.shape, DTYPES["int64"]), session)


def test_an_interrupt_while_waiting_for_room_leaves_no_tensor_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "BATCH_WORDS", 1)
    cluster = Cluster()
    with cluster.client() as session:
        x = create(OPS["full"], (1.5,), (("shape", (2,)), ("dtype", "float32")), session)
        flush = session.outbox.flush
        interrupts = iter([True, True, True])

        def interrupted() -> None:
            flush()
            if next(interrupts, False):
                raise KeyboardInterrupt

        monkeypatch.setattr(session.outbox, "flush", interrupted)
        for act in (lambda: call(OPS["neg"], (x,)), lambda: call_many(OPS["sort"], (x,), SORTED), lambda: x + x):
            with pytest.raises(KeyboardInterrupt):
                act()
        gc.collect()
        session.outbox.flush()
        cluster.settle()
        (worker,) = cluster.workers.values()
        assert set(worker.spaces[session.id].store) == {x._cell.id}


SORTED = (("dim", 0), ("descending", False), ("stable", False))


def test_a_worker_ignores_messages_for_a_closed_client() -> None:
    worker = Worker(make_engine("numpy"))
    for message in (Execute(7, [], [], 5), Define(7, [], [], []), Leave(7, 1, "gone"), ChunkTaken(1, 2, 7)):
        sent = [send.message for send in worker.handle(message)]
        assert sent == ([Done(7, 5, 0)] if isinstance(message, Execute) else [])
