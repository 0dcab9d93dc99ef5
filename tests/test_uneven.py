"""Uneven clusters: blocks in proportion to weights, or to the measured speeds of the workers."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gt
from gt.client.stream import connect
from gt.dispatcher.ledger import group_backend
from gt.dispatcher.plan.hierarchy import LineProfile, LinkSpeed, host_steps
from gt.dispatcher.plan.layouts import Layout, Mesh
from gt.dispatcher.plan.moves import MoveStep
from gt.dispatcher.plan.signals import SignalRule, Signals
from gt.dispatcher.plan.speeds import parts_by_speed, weights_by_speed
from gt.ops.placement import P, R, Shard
from gt.testing import Cluster
from gt.types import TensorType
from gt.wire.structures import SignalSpec, WorkerInfo
from gt.worker.engines import make_engine, speed
from tests.support.processes import System

pytestmark = pytest.mark.filterwarnings("ignore")

SIGNALS = """
workers: [0, 1]
given:  {shard: {axis: 0}, weights: [3, 1]}
speed:  {shard: {axis: 0}, weights: speed}
copies: {replicate: true, weights: [3, 1]}
even:   {shard: {axis: 0}}
"""


@pytest.fixture
def signals(tmp_path: Any) -> Iterator[None]:
    (tmp_path / "signals.yaml").write_text(SIGNALS)
    gt.load_config(tmp_path / "signals.yaml")
    yield
    gt.load_config(None)


@pytest.fixture
def by_speed() -> Iterator[None]:
    gt.auto_shard(by_speed=True)
    yield
    gt.auto_shard(False)


@pytest.fixture
def recovery() -> Iterator[None]:
    yield
    connect.recover_later_sessions(None)


def rows(x: gt.Tensor) -> list[int]:
    """The rows of each worker's block."""
    return [sizes[0] for _, sizes in x.layout.blocks.values()]


def create(signal: str, *shape: int) -> gt.Tensor:
    with gt.signal.context(signal):
        return gt.ones(*shape)


# -- weights from speeds ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("speeds", "weights"),
    [
        ([100.0, 100.0], 2),
        ([100.0, 85.0], 2),  # within 20 %
        ([100.0, 0.0], 2),  # unknown
        ([100.0, float("nan")], 2),
        ([100.0, float("inf")], 2),
        ([-1.0, 100.0], 2),
        ([100.0], 1),
        ([100.0, 50.0], (11, 5)),
        ([50.0, 100.0], (5, 11)),
        ([100.0, 97.0, 50.0, 48.0], (11, 11, 5, 5)),
        ([100.0, 1.0], (15, 1)),  # nobody is left out
        ([1e6, 1.0, 1.0], (30, 1, 1)),
    ],
)
def test_weights_by_speed(speeds: list[float], weights: Any) -> None:
    assert weights_by_speed(speeds) == weights


def test_noise_does_not_change_the_weights_of_two_kinds() -> None:
    rng = np.random.default_rng(0)
    noisy = [[a * rng.uniform(0.97, 1.0) for a in (90.0, 90.0, 40.0, 40.0)] for _ in range(200)]
    chosen = {weights_by_speed(speeds) for speeds in noisy}
    assert all(w[0] == w[1] and w[2] == w[3] for w in chosen), chosen  # workers of one kind get the same
    assert len(chosen) <= 2
    alike = [[90.0 * rng.uniform(0.85, 1.0) for _ in range(8)] for _ in range(200)]
    assert {weights_by_speed(speeds) for speeds in alike} == {8}


def test_only_the_first_axis_of_a_mesh_has_weights() -> None:
    assert parts_by_speed((2, 2), [100.0, 120.0, 50.0, 100.0]) == ((11, 5), 2)
    assert parts_by_speed((1, 2), [100.0, 50.0]) == (1, (11, 5))
    assert parts_by_speed((2, 2), [100.0, 50.0, 100.0, 50.0]) == (2, 2)
    assert parts_by_speed((1, 1), [100.0]) == (1, 1)


def test_a_worker_measures_its_speed() -> None:
    for backend in ("torch", "numpy"):
        assert speed.measure_speed(make_engine(backend, "cpu")) > 0.1


@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_a_measurement_that_does_not_fit_into_memory(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speed, "CPU_ROWS", 1 << 24)
    assert speed.measure_speed(make_engine(backend, "cpu")) == 0.0


# -- blocks ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("signals")
def test_blocks_follow_weights() -> None:
    with Cluster(workers=2, backend="numpy", speeds=[40.0, 20.0]).client():
        x = create("given", 8, 4)
        assert str(x.layout) == "S(0) on workers 0, 1"
        assert x.layout.blocks == {0: ((0, 0), (6, 4)), 1: ((6, 0), (2, 4))}
        assert rows(x * 2 + 1) == [6, 2]
        assert rows(create("speed", 16, 4)) == [11, 5]
        assert rows(create("even", 8, 4)) == [4, 4]
        moved = gt.signal.tensor(x, "even").clone()
        assert (rows(moved), moved.sum().item()) == ([4, 4], 32)
        assert "weighted 3:1" in repr(x.layout.story)
        assert [worker.speed for worker in gt.workers()] == [40.0, 20.0]
        assert "speed=40" in repr(gt.workers()[0])


@pytest.mark.usefixtures("signals")
@pytest.mark.parametrize("speeds", [(0.0,), (40.0,), (40.0, 36.0)])
def test_workers_of_one_speed_are_even(speeds: tuple[float, ...]) -> None:
    with Cluster(workers=2, backend="numpy", speeds=speeds).client():
        assert create("speed", 8, 4).layout == create("even", 8, 4).layout
        assert rows(create("speed", 8, 4)) == [4, 4]


@pytest.mark.parametrize("weights", [[0, 1], [-3, 1], [1 << 40, 1], [1], [1, 2, 3], []])
def test_weights_that_no_configuration_file_may_have(weights: list[int]) -> None:
    """A client that sends them harms nobody: its mesh is even."""
    spec = SignalSpec("a", [0, 1], [], [(0, "")], False, None, True, weights=[("", weights), ("b", [7])])
    rule = Signals([spec]).rule("a", [0, 1])
    assert isinstance(rule, SignalRule)
    assert rule.mesh is Mesh((0, 1))


def train(steps: int = 6) -> tuple[list[float], list[Any]]:
    """Losses and parameters of a training with a batch that no mesh cuts evenly."""
    gt.manual_seed(1)
    model = gt.nn.Sequential(gt.nn.Linear(40, 200), gt.nn.ReLU(), gt.nn.LayerNorm(200), gt.nn.Linear(200, 10))
    optimizer = gt.optim.AdamW(model.parameters(), lr=0.01)
    data, labels = gt.randn(203, 40), gt.randint(0, 10, (203,))
    losses = []
    for _ in range(steps):
        loss = gt.nn.functional.cross_entropy(model(data), labels)
        optimizer.zero_grad()
        loss.backward()
        gt.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses, [p.detach().numpy() for p in model.parameters()]


@pytest.mark.usefixtures("by_speed")
@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_data_parallel_training_with_an_uneven_batch(backend: str) -> None:
    """The mean of the loss and of the gradient is that of all rows, not of the means of blocks."""
    with Cluster(workers=1, backend=backend).client():
        wanted = train()
    with Cluster(workers=3, backend=backend, speeds=[90.0, 30.0, 60.0]).client():
        assert rows(gt.ones(203, 40)) == [102, 31, 70]
        losses, parameters = train()
    assert losses == pytest.approx(wanted[0], rel=1e-4)
    for got, want in zip(parameters, wanted[1], strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("signals")
def test_gradients_of_an_uneven_batch() -> None:
    x = np.random.default_rng(0).standard_normal((7, 5))
    with Cluster(workers=2, backend="numpy").client():
        with gt.signal.context("given"):
            batch = gt.tensor(x)
        assert rows(batch) == [5, 2]
        w = gt.ones(5, 3, dtype=gt.float64, requires_grad=True)
        (batch @ w).square().mean().backward()
        assert w.grad is not None
        np.testing.assert_allclose(w.grad.numpy(), x.T @ (x @ np.ones((5, 3))) * 2 / 21, rtol=1e-12)


@pytest.mark.usefixtures("by_speed")
def test_the_same_program_on_the_same_speeds_gives_the_same_bits() -> None:
    results = []
    for seed in (1, 2):
        with Cluster(workers=2, seed=seed, speeds=[50.0, 20.0]).client():
            results.append(train(3))
    assert results[0][0] == results[1][0]
    assert all(a.tobytes() == b.tobytes() for a, b in zip(results[0][1], results[1][1], strict=True))


@pytest.mark.usefixtures("by_speed")
def test_rebalance_onto_a_slower_worker() -> None:
    cluster = Cluster(workers=1, backend="numpy", speeds=[80.0, 80.0, 20.0])
    with cluster.client():
        array = np.random.default_rng(0).standard_normal((320, 40)).astype("f")
        x = gt.tensor(array)
        cluster.add_worker()
        gt.rebalance()
        assert rows(x) == [160, 160]
        cluster.add_worker()
        gt.rebalance()
        assert rows(x) == [150, 140, 30]
        assert x.numpy().tobytes() == array.tobytes()
        assert rows(x * 2) == rows(x)


@pytest.mark.usefixtures("signals")
def test_checkpoints_of_weighted_tensors(tmp_path: Any) -> None:
    x = np.random.default_rng(0).standard_normal((9, 5))
    with Cluster(workers=2, backend="numpy").client():
        with gt.signal.context("given"):
            state = {"x": gt.tensor(x)}
        gt.save(state, tmp_path / "folder.safetensors")
        other = {"x": create("even", 9, 5).double()}
        gt.load(tmp_path / "folder.safetensors", into=other)
        assert (rows(state["x"]), rows(other["x"])) == ([7, 2], [5, 4])
        np.testing.assert_array_equal(other["x"].numpy(), x)
        gt.save(other, tmp_path / "back.safetensors")
        again = {"x": create("given", 9, 5).double()}
        gt.load(tmp_path / "back.safetensors", into=again)
        assert rows(again["x"]) == [7, 2]
        np.testing.assert_array_equal(again["x"].numpy(), x)


# -- recovery --------------------------------------------------------------------------------


@pytest.mark.usefixtures("by_speed", "recovery")
@pytest.mark.parametrize("snapshot", [False, True])
def test_a_program_that_runs_again_has_the_weights_of_before(snapshot: bool) -> None:
    """Although the worker that takes the place of the lost one has another speed."""
    cluster = Cluster(workers=2, speeds=[60.0, 20.0, 60.0])
    with cluster.client():
        gt.recovery("replay")
        x = gt.randn(320, 40)
        total = (x @ x.T).sum()
        before = total.numpy().tobytes()
        if snapshot:
            gt.snapshot()
        assert rows(x) == [240, 80]
        cluster.add_worker()
        (lost,) = [name for name, worker in cluster.workers.items() if worker.id == 1]
        cluster.kill_worker(lost)
        cluster.settle()
        assert rows(x) == [240, 80]
        assert x.layout.workers == (0, 2)
        assert total.numpy().tobytes() == before


@pytest.mark.usefixtures("signals", "recovery")
def test_a_weighted_mesh_on_fewer_workers() -> None:
    cluster = Cluster(workers=2)
    with cluster.client():
        gt.recovery("replay")
        x = create("given", 8, 4)
        assert rows(x) == [6, 2]
        cluster.kill_worker(next(name for name, worker in cluster.workers.items() if worker.id == 1))
        assert x.sum().item() == 32
        assert x.layout.workers == (0,)


# -- between hosts, and between kinds of devices -------------------------------------------------


def test_collectives_of_unequal_blocks_between_hosts_are_flat() -> None:
    link = LinkSpeed(500.0, 1.0)
    profile = LineProfile(((0, 1), (2, 3)), 1, LinkSpeed(1.0, 1e-5), link)
    t = TensorType((1 << 12, 64))
    for mesh, flat in ((Mesh((0, 1, 2, 3)), False), (Mesh((0, 1, 2, 3), ((1, 1, 3, 3),)), True)):
        sharded, whole, terms = (Layout(mesh, (p,)) for p in (Shard(0), R, P))
        gather = MoveStep("all_gather", sharded, whole)
        scatter = MoveStep("reduce_scatter", terms, sharded)
        for step in (gather, scatter):
            assert (host_steps(t, step, profile)[0].steps == (step,)) == flat, (step, mesh)
        # terms are whole on every worker, so their sum is cut evenly on the way
        assert len(host_steps(t, MoveStep("all_reduce", terms, whole), profile)[0].steps) > 1


def info(id: int, gpu: str = "", speed: float = 0.0) -> WorkerInfo:
    return WorkerInfo(id, "torch", "cuda:0" if gpu else "cpu", "h", 1, gpu, "s", speed=speed)


@pytest.mark.parametrize("cuda_ipc", [False, True])
def test_a_cpu_worker_beside_gpu_workers_exchanges_through_the_host(cuda_ipc: bool) -> None:
    assert group_backend([info(0, "a"), info(1, "b")], cuda_ipc) == "nccl"
    assert group_backend([info(0, "a"), info(1, "b"), info(2)], cuda_ipc) == "gloo"
    assert group_backend([info(0), info(1, "a")], cuda_ipc) == "gloo"
    speeds = [i.speed for i in (info(0, "a", 40_000.0), info(1, "b", 15_000.0), info(2, "", 90.0))]
    assert weights_by_speed(speeds) == (23, 8, 1)


# -- real processes ------------------------------------------------------------------------------

#: a worker whose engine computes everything four times, except for what it writes in place
SLOW_WORKER = """
import sys
from gt.worker.engines.torch import TorchEngine
from gt.worker.__main__ import main

link = TorchEngine.link

def slow(self, signature):
    kernel = link(self, signature)
    return kernel if signature.into else lambda *operands: [kernel(*operands) for _ in range(4)][-1]

TorchEngine.link = slow
sys.exit(main(sys.argv[1:]))
"""

PROGRAM = """
    import json

    def train():
        gt.manual_seed(1)
        model = gt.nn.Sequential(gt.nn.Linear(64, 256), gt.nn.GELU(), gt.nn.Linear(256, 10))
        optimizer = gt.optim.AdamW(model.parameters(), lr=0.01)
        data, labels = gt.randn(512, 64), gt.randint(0, 10, (512,))
        losses = []
        for step in range(6):
            loss = gt.nn.functional.cross_entropy(model(data), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        return dict(losses=losses, rows=[sizes[0] for _, sizes in data.layout.blocks.values()])

    even = train()
    gt.auto_shard(by_speed=True)
    uneven = train()
    speeds = [worker.speed for worker in sorted(gt.workers(), key=lambda worker: worker.id)]
    say(json.dumps(dict(even=even, uneven=uneven, speeds=speeds)))
"""


def test_blocks_follow_the_measured_speed_of_real_workers(stack: contextlib.ExitStack) -> None:
    system = System(stack)
    system.worker("--threads", "1", "--backend", "torch")
    options = "--host", "localhost", "-p", str(system.port), "--threads", "1", "--backend", "torch"
    system.start("-c", SLOW_WORKER, *options, GT_VERBOSE="1").expect("joined")
    client = system.client(PROGRAM, GT_AUTO_SHARD="1")
    assert client.end() == 0, client.output
    even, uneven, (fast, slow) = json.loads(client.lines[-1]).values()
    assert fast > 1.5 * slow > 0
    weights = weights_by_speed([fast, slow])
    assert isinstance(weights, tuple)
    assert uneven["rows"] == [512 * weight // sum(weights) for weight in weights]
    assert uneven["rows"][0] > uneven["rows"][1]
    assert even["rows"] == [256, 256]
    assert uneven["losses"] == pytest.approx(even["losses"], rel=1e-4)
