"""Abandoned work: what has not started, and what nobody needs, is dropped. No value may change by it.

The random tests stop the workers for a while, so that the dispatcher's queues grow; then reads are abandoned, tensors
freed, and the rest is compared with an oracle. ``GT_SEEDS=1000 pytest tests/test_cancelling.py`` tries more seeds.
"""

from __future__ import annotations

import contextlib
import gc
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt import testing
from gt.client.stream import outbox
from gt.client.stream.connect import use
from gt.client.stream.pending import PendingValue
from gt.client.stream.session import Session
from gt.client.tensor.emit import call_with
from gt.dispatcher import cancelling, scheduling
from gt.dispatcher.lost_workers import queued_reads
from gt.errors import GtError
from gt.ops import OPS
from gt.testing import Cluster
from gt.wire.codec import encode
from gt.wire.messages import Cancel, Submit
from gt.wire.words import FETCH, RUN
from tests import test_templates
from tests.support.invariants import settled
from tests.support.processes import script
from tests.support.programs import Program
from tests.test_cluster import Play, seeds
from tests.test_sharding import CutPlay, signals  # noqa: F401, a fixture

pytestmark = pytest.mark.filterwarnings("ignore")  # torch warns about what the samples do on purpose


@pytest.fixture
def dropped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many words each `Cancel` removed from a queue."""
    counts: list[int] = []
    before = cancelling.cancel

    def cancel(client: Any, reads: Any) -> Any:
        def queued() -> int:
            return sum(len(m.stream) - at for m, at in client.queue if isinstance(m, Submit))

        count = queued()
        transfers = before(client, reads)
        counts.append(count - queued())
        return transfers

    monkeypatch.setattr("gt.dispatcher.core.cancel", cancel)
    return counts


def shrink(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers get little ahead, so that most of a program waits in the dispatcher."""
    rng = random.Random(seed)
    monkeypatch.setattr(scheduling, "MAX_AHEAD_US", rng.choice((1.0, 30.0)))
    monkeypatch.setattr(scheduling, "TURN_US", rng.choice((1.0, 9.0, 100.0)))
    monkeypatch.setattr(outbox, "BATCH_WORDS", rng.choice((10, 60, 640)))
    monkeypatch.setattr(outbox, "MAX_FREED", rng.choice((1, 4096)))


def abandon_a_read(tensor: gt.Tensor, session: Session, steps: int) -> None:
    """Begin a read, and stop waiting for it as Ctrl-C does, after this many messages were delivered."""
    link = session.connection.link
    assert isinstance(link, testing.ClusterLink)
    wait, left = link.wait, [None] * steps

    def interrupt() -> bool:
        if not left:
            raise KeyboardInterrupt
        left.pop()
        return False

    link.wait = lambda ready, timeout=None: wait(lambda: ready() or interrupt(), timeout)  # type: ignore[method-assign]
    try:
        with contextlib.suppress(KeyboardInterrupt, GtError):
            session.read(tensor._cell.id, tensor._type)
    finally:
        link.wait = wait  # type: ignore[method-assign]


def abandon(play: Play) -> None:
    """While the workers stand still: compute, begin to read, free; then cancel, and let the workers continue."""
    cluster, rng = play.cluster, play.rng
    cluster.paused |= set(cluster.workers)
    for _ in range(rng.randint(5, 30)):
        program = rng.choice(play.programs)
        rng.choice((program.compute, program.compute, program.write, program.look, program.free))()
        if rng.random() < 0.2:
            cluster.step()
    program = rng.choice(play.programs)
    if rng.random() < 0.3:
        program.send_large(rng.randint(70_000, 100_000))
    if program.slots and rng.random() < 0.7:
        tensor = rng.choice(program.slots).tensor
        abandon_a_read(tensor, program.session, rng.randint(0, 10))
    for program in play.programs:
        _free_some(program, rng)
        if rng.random() < 0.7:
            program.session.outbox.cancel()
    for _ in range(rng.choice((0, 3, 1000))):
        cluster.step()
    cluster.paused.clear()


def _free_some(program: Program, rng: random.Random) -> None:
    share = rng.choice((0.0, 0.5, 0.9, 1.0))
    program.slots[:] = [slot for slot in program.slots if rng.random() >= share]


@seeds(24)
def test_no_value_changes(seed: int, monkeypatch: pytest.MonkeyPatch, dropped: list[int]) -> None:
    shrink(seed, monkeypatch)
    play = Play(seed)
    for _ in range(4):
        abandon(play)
        for program in play.programs:
            program.read_all()
    play.end()
    assert all(count >= 0 for count in dropped)


@seeds(16)
def test_no_value_changes_on_several_workers(
    seed: int,
    monkeypatch: pytest.MonkeyPatch,
    dropped: list[int],
    signals: list[str],  # noqa: F811
) -> None:
    shrink(seed, monkeypatch)
    play = CutPlay(seed, signals)
    for _ in range(3):
        with gt.signal.context(play.rng.choice(play.names)):
            abandon(play)
        for program in play.programs:
            program.read_all()
    play.end()


@seeds(8)
def test_no_value_changes_with_fragments(seed: int, monkeypatch: pytest.MonkeyPatch, dropped: list[int]) -> None:
    """A loop is abandoned again and again while another one, with which it shares fragments, goes on."""
    shrink(seed, monkeypatch)
    assert _two_loops(seed, cancel=True) == _two_loops(seed, cancel=False)


def _two_loops(seed: int, cancel: bool) -> list[bytes]:
    cluster, rng = Cluster(workers=1 + seed % 3, seed=seed), random.Random(seed)
    with cluster.client() as session, use(session):
        try:
            gt.auto_shard(seed % 3 > 0)
            kept = test_templates.loop(seed, 20, test_templates.WITHOUT_READ)
            for _ in range(3):
                abandoned = test_templates.loop(seed, 20, test_templates.WITHOUT_READ)
                for _ in range(3):  # now both have fragments
                    next(kept)
                    next(abandoned)
                cluster.paused |= set(cluster.workers)
                for _ in range(rng.randint(1, 5)):
                    next(rng.choice((kept, abandoned)))
                    cluster.step()
                abandoned.close()
                del abandoned
                gc.collect()
                if cancel:
                    session.outbox.cancel()
                cluster.settle()
                cluster.paused.clear()
            return test_templates.outcome(next(kept))
        finally:
            gt.auto_shard(False)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A cluster with one worker that gets one instruction ahead, and a client whose session is the current one."""
    monkeypatch.setattr(scheduling, "MAX_AHEAD_US", 1.0)
    monkeypatch.setattr(scheduling, "TURN_US", 1.0)
    cluster = Cluster(backend="numpy")
    with cluster.client():
        yield cluster
        cluster.settle()
        settled(cluster)


@contextlib.contextmanager
def standstill(cluster: Cluster) -> Iterator[None]:
    """The worker receives nothing inside the block; what is emitted there is submitted at its end."""
    cluster.settle()
    cluster.paused |= set(cluster.workers)
    yield
    gt.cancel()
    cluster.settle()
    cluster.paused.clear()
    cluster.settle()


def instructions() -> int:
    return int(gt.debug.get_worker_stats()["total_instructions"])


def chain(x: gt.Tensor, steps: int) -> gt.Tensor:
    for _ in range(steps):
        x = x * 2
    return x


def test_an_abandoned_chain_does_not_run(cluster: Cluster) -> None:
    x = gt.ones(3)
    before = instructions()
    with standstill(cluster):
        chain(x, 100)
    assert instructions() - before < 5  # the worker had the first of them already
    assert x.tolist() == [1, 1, 1]


def test_what_is_alive_is_computed(cluster: Cluster) -> None:
    x = gt.ones(3)
    before = instructions()
    with standstill(cluster):
        y = chain(x, 10)
        chain(y, 50)
        y += 1
    assert y.tolist() == [1025] * 3
    assert 11 <= instructions() - before < 15


def test_a_write_is_dropped_with_its_target_only(cluster: Cluster) -> None:
    x, target = gt.ones(3), gt.zeros(3)
    before = instructions()
    with standstill(cluster):
        doomed = x.clone()
        for _ in range(20):
            doomed += 1
            target += 1
        del doomed
    assert target.tolist() == [20] * 3
    assert 20 <= instructions() - before < 25


def test_a_fragment_is_dropped_with_the_tensor_it_writes_only(cluster: Cluster) -> None:
    def rounds(x: gt.Tensor, count: int) -> None:
        for _ in range(count):
            x.add_(1).mul_(0.5).add_(1).mul_(2).sub_(0.5)
            gt.step()

    kept, abandoned = gt.zeros(3), gt.zeros(3)
    rounds(kept, 5)
    rounds(abandoned, 5)
    before = instructions()
    with standstill(cluster):
        rounds(kept, 4)
        rounds(abandoned, 4)
        gt.client.stream.connect.session().outbox.flush()
        cluster.settle()
        (client,) = cluster.dispatcher.clients.values()
        assert [m.stream[0] for m, _ in client.queue][-4:] == [RUN] * 4
        del abandoned
    expected = torch.zeros(3)
    for _ in range(9):
        expected.add_(1).mul_(0.5).add_(1).mul_(2).sub_(0.5)
    assert kept.tolist() == expected.tolist()
    assert 20 <= instructions() - before < 30


def test_an_abandoned_value_leaves_no_transfer(cluster: Cluster) -> None:
    (worker,) = cluster.workers.values()
    session = gt.client.stream.connect.session()
    with standstill(cluster):
        gt.from_numpy(np.zeros(100_000, np.float32))
    assert not worker.spaces[session.id].transfers
    assert not cluster.dispatcher.clients[session.id].transfers


def test_another_read_is_not_abandoned(cluster: Cluster) -> None:
    """Ctrl-C ends one read; a read of another thread in the same queue is answered."""
    session = gt.client.stream.connect.session()
    x = gt.ones(3)
    cluster.settle()
    cluster.paused |= set(cluster.workers)
    abandon_a_read(chain(x, 10), session, 3)
    y = x + 1
    pending = PendingValue(y._type.nbytes)
    request = session.replies.expect(pending)
    session.outbox.cut((FETCH, request, y._cell.id))
    abandon_a_read(chain(x, 10), session, 3)
    session.outbox.flush()
    cluster.settle()
    client = cluster.dispatcher.clients[session.id]
    assert [read for read, _ in queued_reads(client)] == [request]
    cluster.paused.clear()
    cluster.settle()
    assert pending.done
    session.replies.abandon(request)


def test_credit_comes_back_for_what_is_dropped(cluster: Cluster) -> None:
    session = gt.client.stream.connect.session()
    x = gt.ones(3)
    cluster.settle()
    with standstill(cluster):
        for _ in range(20):
            chain(x, 200)
        session.outbox.flush()
        ahead = session.outbox.sent - session.outbox.finished
        gt.cancel()
        cluster.settle()
        assert session.outbox.sent - session.outbox.finished < ahead / 4


def test_an_op_with_effects_runs(cluster: Cluster) -> None:
    """Also if its result is freed. This one fails, because its request names no file, and the client gets a report."""
    x = gt.ones(3)
    session = x._cell.session
    with standstill(cluster):
        chain(x, 10)
        call_with(OPS["save_file"], b"{}", (x,), (), session)
    assert len(session.failures.unread) == 1
    session.failures.unread.clear()


def test_a_malformed_queue_costs_the_client_its_connection(cluster: Cluster) -> None:
    session = cluster.add_client()
    name = cluster.name_of(session)
    cluster.paused |= set(cluster.workers)
    with use(session):
        chain(gt.ones(3), 5)
        session.outbox.flush()
    session.connection.send([encode(Submit(session.outbox.serial + 1, [], [16, 1], 2))])
    session.connection.send([encode(Cancel([]))])
    cluster.settle()
    cluster.paused.clear()
    assert "the stream ends inside an instruction" in cluster.closed[name]


def test_cancel_without_a_session(stack: Any) -> None:
    client = script("import gt; gt.cancel(); print('nothing to cancel')", stack=stack)
    assert client.end() == 0


PROGRAM = """
    import os, signal, threading, time
    import gt
    x = gt.rand(600, 600)
    (x @ x).sum().item()

    def step():
        y = x
        threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
        for _ in range({steps}):
            y = (y @ x) / 300
        return y.sum().item()

    try:
        step()
        print("it was not interrupted", flush=True)
    except KeyboardInterrupt:
        pass
    started = time.perf_counter()
    gt.ones(1).item()
    print("next read after", time.perf_counter() - started, flush=True)
    print("mean", round(x.mean().item(), 2), flush=True)
"""


@pytest.mark.parametrize(("steps", "waits"), [(3_000, "for a value"), (100_000, "for credit")])
def test_ctrl_c_in_a_wait(stack: Any, steps: int, waits: str) -> None:
    """The loop would take a minute and more."""
    client = script(PROGRAM.format(steps=steps), stack=stack)
    assert float(client.expect("next read after").split()[-1]) < 1
    client.expect("mean 0.5")
    assert client.end() == 0
