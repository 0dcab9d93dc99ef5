"""Tensors sharded across workers in real processes: values, memory, and deaths during a collective."""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterator

import numpy as np
import pytest

import gt
from gt.client.stream import connect
from gt.errors import WorkerLost


@pytest.fixture(params=["torch", "numpy"])
def system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Three workers; dp splits dim 0 over two of them, tp dim 1, all dim 0 over the three."""
    monkeypatch.setenv("GT_BACKEND", request.param)
    gt.register_config("dp", gt.SignalConfig(shard=gt.ShardConfig(0, [0, 1])))
    gt.register_config("tp", gt.SignalConfig(shard=gt.ShardConfig(1, [0, 1])))
    gt.register_config("all", gt.SignalConfig(shard=gt.ShardConfig(0, [0, 1, 2])))
    gt.register_config("third", gt.SignalConfig(shard=gt.ShardConfig(0, [2])))
    gt.gpu_workers(3)
    yield
    gt.load_config(None)
    gt.disconnect()


def worker_pid(number: int) -> int:
    return next(w.pid for w in connect.session().connection.workers if w.id == number)


def test_values_are_those_of_one_worker(system: None) -> None:
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(501, 300)).astype("f"), rng.normal(size=(300, 70)).astype("f")
    with gt.signal.context("dp"):
        x = gt.from_numpy(a)
    with gt.signal.context("tp"):
        w = gt.from_numpy(b)
    np.testing.assert_array_equal(x.numpy(), a)
    np.testing.assert_array_equal(w.numpy(), b)
    np.testing.assert_allclose((x @ w).numpy(), a @ b, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose((x.T @ x).numpy(), a.T @ a, rtol=1e-4, atol=1e-3)
    assert str(x.layout) == "S(0) on workers 0, 1"
    with gt.signal.context("third"):
        y = (x @ w).relu()
    assert str(y.layout) == "worker 2"
    np.testing.assert_allclose(y.numpy(), np.maximum(a @ b, 0), rtol=1e-4, atol=1e-3)


@pytest.mark.long
def test_each_worker_holds_its_part_only(system: None) -> None:
    with gt.signal.context("all"):
        x = gt.zeros(300, 1000)
    assert x.sum().item() == 0
    held = [entry["client"]["bytes"] for entry in gt.debug.memory().values()]
    assert all(400_000 <= nbytes <= 410_000 for nbytes in held)


def test_a_failure_on_one_worker_is_reported_wherever_its_value_moved(system: None) -> None:
    with gt.signal.context("dp"):
        x = gt.arange(10)
        bad = gt.ones(10, dtype=gt.int64) // x  # division by zero, on worker 0 only
    with gt.signal.context("third"):
        moved = bad + 1
    for y in (bad, moved, moved.sum()):
        with pytest.raises(gt.RemoteError, match="floor_divide") as error:
            y.numpy()
        assert "test_sharding_real.py" in str(error.value)
    assert x.sum().item() == 45


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV])
def test_a_lost_worker_is_reported_and_the_others_continue(system: None, how: signal.Signals) -> None:
    with gt.signal.context("dp"):
        x = gt.randn(400, 300)
    unsharded = gt.ones(3)
    x.sum().item()  # the group exists now
    os.kill(worker_pid(1), signal.SIGSTOP)  # so that the collective is pending when the worker dies
    with gt.signal.context("dp"):
        y = x.T @ x + x.sum()
    connect.session().outbox.flush()
    os.kill(worker_pid(1), how)
    os.kill(worker_pid(1), signal.SIGCONT)
    with pytest.raises(WorkerLost, match="worker 1 "):
        y.numpy()
    assert (
        unsharded.sum().item() == 3 or connect.session().connection.workers
    )  # tensors on other workers are still there
    gt.register_config("two", gt.SignalConfig(shard=gt.ShardConfig(0, [0, 2])))
    with gt.signal.context("two"):
        z = gt.ones(100, 10)
    assert z.sum().item() == 1000
    assert (z.T @ z)[0, 0].item() == 100


@pytest.mark.long
def test_unused_groups_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty meshes of four workers, some of them twice: sockets and threads stay as many as a few groups need."""
    monkeypatch.setenv("GT_BACKEND", "numpy")
    gt.gpu_workers(4)
    try:
        meshes = [m for n in (2, 3, 4) for m in itertools.permutations(range(4), n)]
        pids = [w.pid for w in connect.session().connection.workers]
        x = gt.arange(60).float()
        counted = []
        for number, mesh in enumerate([*meshes, *meshes[:20]]):
            gt.register_config("some", gt.SignalConfig(shard=gt.ShardConfig(0, list(mesh))))
            with gt.signal.context("some"):
                y = gt.signal.tensor(x, "some") * 2
            assert y.sum().item() == 3540
            if number % 20 == 19:
                counted.append(_settled(pids))
        assert max(map(max, counted)) < 450
        assert max(counted[-1]) < max(counted[1]) + 40
    finally:
        gt.load_config(None)
        gt.disconnect()


def _settled(pids: list[int]) -> list[int]:
    """Descriptors and threads of each worker: groups are left in the background."""
    before: list[int] = []
    while before != (now := [len(os.listdir(f"/proc/{pid}/{what}")) for pid in pids for what in ("fd", "task")]):
        before = now
        time.sleep(0.2)
    return now
