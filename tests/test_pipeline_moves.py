"""Moves between the stages of a pipeline block neither side, and a lost worker ends a step with an error."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import numpy as np
import pytest

import gt
from benchmarks.pipelines.memory import held_activations
from gt import nn
from gt.client.stream import connect
from gt.errors import WorkerLost
from gt.pipeline import Pipeline
from gt.testing import Cluster
from gt.worker.space import PLACEHOLDERS

STAGES = {"stage0": [0], "stage1": [1]}


@pytest.fixture(autouse=True)
def _stages() -> Iterator[None]:
    for name, workers in STAGES.items():
        gt.register_config(name, gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=workers)))
    yield
    gt.load_config(None)


def arrays(cluster: Cluster, worker: int) -> int:
    """How many tensors a worker has, without those that are still on their way."""
    spaces = next(w for w in cluster.workers.values() if w.id == worker).spaces.values()
    return sum(type(value) not in PLACEHOLDERS for space in spaces for value in space.store.values())


@pytest.mark.parametrize("paused", [0, 1])
def test_the_stages_go_on_while_a_move_is_pending(paused: int) -> None:
    """One worker gets no messages: the other one computes, also in place, until it needs what moves."""
    cluster = Cluster(2, backend="numpy")
    with cluster.client() as session:
        with gt.signal.context("stage0"):
            x = gt.ones(4)
        with gt.signal.context("stage1"):
            y = gt.ones(4)
        session.outbox.flush()
        cluster.settle()
        before, other = arrays(cluster, 1 - paused), 1 - paused
        name = next(name for name, worker in cluster.workers.items() if worker.id == paused)
        cluster.paused.add(name)
        moved = gt.signal.tensor(x, "stage1")
        with gt.signal.context(f"stage{other}"):
            z = (x if other == 0 else y) + 1
            z.add_(1)
        session.outbox.flush()
        cluster.settle()
        assert arrays(cluster, other) == before + 1
        cluster.paused.clear()
        assert z.tolist() == [3.0] * 4
        assert (moved + y).tolist() == [2.0] * 4


def test_a_write_waits_for_a_move_that_reads_the_memory() -> None:
    cluster = Cluster(2, backend="numpy")
    with cluster.client() as session:
        with gt.signal.context("stage0"):
            x = gt.ones(4)
        session.outbox.flush()
        cluster.settle()
        cluster.paused.add(next(name for name, worker in cluster.workers.items() if worker.id == 1))
        moved = gt.signal.tensor(x, "stage1").clone()
        x.add_(1)
        session.outbox.flush()
        cluster.settle()
        space = next(iter(next(w for w in cluster.workers.values() if w.id == 0).spaces.values()))
        assert space.awaited is not None
        cluster.paused.clear()
        assert moved.tolist() == [1.0] * 4
        assert x.tolist() == [2.0] * 4


def test_a_full_worker_does_not_hold_up_the_next_stage() -> None:
    """The work of stage 1 is behind much work of stage 0 in the stream."""
    cluster = Cluster(2, backend="numpy")
    with cluster.client() as session:
        with gt.signal.context("stage1"):
            y = gt.ones(4)
        with gt.signal.context("stage0"):
            x = gt.ones(600, 600)
        session.outbox.flush()
        cluster.settle()
        before = arrays(cluster, 1)
        cluster.paused.add(next(name for name, worker in cluster.workers.items() if worker.id == 0))
        with gt.signal.context("stage0"):
            for _ in range(12):  # each is more than a worker gets ahead
                x = x @ x
        with gt.signal.context("stage1"):
            z = y + 1
        session.outbox.flush()
        cluster.settle()
        assert arrays(cluster, 1) == before + 1
        cluster.paused.clear()
        assert z.tolist() == [2.0] * 4


def parts(count: int) -> list[nn.Module]:
    return [nn.Linear(4, 4) for _ in range(count)]


@pytest.mark.parametrize("seed", range(4))
def test_a_worker_lost_in_a_step(seed: int) -> None:
    cluster = Cluster(3, seed=seed, backend="numpy")
    x = np.ones((8, 4), "float32")
    with cluster.client() as session:
        pipeline = Pipeline(parts(3), "1f1b", 4)
        pipeline.step(gt.tensor(x), gt.tensor(x), nn.functional.mse_loss).item()
        loss = pipeline.step(gt.tensor(x), gt.tensor(x), nn.functional.mse_loss)
        session.outbox.flush()
        for _ in range(10 * seed):
            cluster.step()
        cluster.kill_worker(next(name for name, worker in cluster.workers.items() if worker.id == 1))
        with pytest.raises(WorkerLost):
            loss.item()
        with pytest.raises(WorkerLost):
            [p.grad.sum().item() for p in pipeline.parameters()]
        assert gt.ones(3).sum().item() == 3  # the session goes on


def test_processes_a_worker_killed_in_a_step() -> None:
    gt.gpu_workers(2)
    try:
        pipeline = Pipeline(parts(2), "zb_h1", 4)
        x = gt.ones(8, 4)
        pipeline.step(x, x, nn.functional.mse_loss).item()
        victim = next(w.pid for w in gt.workers() if w.id == 1)
        os.kill(victim, signal.SIGSTOP)  # so that moves are pending when the worker dies
        loss = pipeline.step(x, x, nn.functional.mse_loss)
        connect.session().outbox.flush()
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(WorkerLost):
            loss.item()
    finally:
        gt.disconnect()


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved_1f1b"])
def test_the_activations_that_a_stage_holds(schedule: str) -> None:
    held, expected = held_activations(schedule)
    # on a busy machine an action may be sent in pieces: then up to two tensors in the middle of one are counted too; or
    # two actions in one message: then the moment between them is not seen
    for count, peak in zip(held, expected, strict=True):
        assert peak // 2 <= count <= peak + 2
    if schedule == "1f1b":
        assert expected == [4, 3, 2, 1]


@pytest.mark.parametrize("schedule", ["zb_h1", "zbv"])
def test_the_activations_of_a_split_backward(schedule: str) -> None:
    """Between I and W a stage holds a gradient of the same shape beside the activation."""
    held, expected = held_activations(schedule)
    for count, peak in zip(held, expected, strict=True):
        assert peak // 2 <= count <= 2 * peak + 2


def test_an_evaluation_holds_no_activations() -> None:
    """A tensor in the middle of a part may be seen; those of earlier microbatches are gone."""
    assert max(held_activations("1f1b", evaluate=True)[0]) <= 2
