"""`gt.pipeline.Pipeline`: gradients of every schedule equal those of the whole batch in torch."""

from __future__ import annotations

import functools
import gc
import itertools
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import gt
import gt.testing
from gt import nn
from gt.errors import ConfigError, GradError, ShapeError
from gt.pipeline import Pipeline, Schedule
from gt.pipeline.schedules import SCHEDULES
from gt.testing import Cluster
from gt.worker.core import Worker
from tests.support.shadow import wait_for_compiler

F = nn.functional
WIDTH = 4
RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def _no_configuration() -> Iterator[None]:
    yield
    gt.load_config(None)


class Part(nn.Module):
    """One rule for all operands (the norm), a transposed weight, and a bias."""

    def __init__(self, values: list[np.ndarray]) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(WIDTH, WIDTH).double(), nn.LayerNorm(WIDTH).double()
        self.load_state_dict(dict(zip(self.state_dict(), values, strict=True)))

    def forward(self, x: gt.Tensor) -> gt.Tensor:
        return x + self.norm(self.linear(x)).tanh()


def values_of(parts: int) -> list[list[np.ndarray]]:
    rng = np.random.default_rng(parts)
    shapes = ((WIDTH, WIDTH), (WIDTH,), (WIDTH,), (WIDTH,))
    return [[rng.standard_normal(shape) for shape in shapes] for _ in range(parts)]


def torch_model(values: list[list[np.ndarray]]) -> tuple[list[torch.Tensor], Callable[[torch.Tensor], torch.Tensor]]:
    parameters = [[torch.tensor(v, requires_grad=True) for v in part] for part in values]

    def forward(x: torch.Tensor) -> torch.Tensor:
        for weight, bias, scale, shift in parameters:
            y = torch.nn.functional.linear(x, weight, bias)
            x = x + torch.nn.functional.layer_norm(y, (WIDTH,), scale, shift).tanh()
        return x

    return [p for part in parameters for p in part], forward


def data(rows: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(rows)
    return rng.standard_normal((rows, WIDTH)), rng.standard_normal((rows, WIDTH))


def grads_of(parts: list[nn.Module]) -> list[np.ndarray]:
    return [p.grad.numpy() for part in parts for p in part.parameters()]


def check(name: str, stages: int, microbatches: int, rows: int) -> None:
    count = stages * SCHEDULES[name][1]
    values = values_of(count)
    x, y = data(rows)
    expected, forward = torch_model(values)
    loss = torch.nn.functional.mse_loss(forward(torch.tensor(x)), torch.tensor(y))
    loss.backward()
    parts = [Part(v) for v in values]
    result = Pipeline(parts, name, microbatches).step(gt.tensor(x), gt.tensor(y), F.mse_loss)
    assert result.item() == pytest.approx(loss.item(), abs=1e-12)
    for ours, theirs in zip(grads_of(parts), expected, strict=True):
        np.testing.assert_allclose(ours, theirs.grad.numpy(), rtol=0, atol=1e-10)
    gt.load_config(None)


@pytest.mark.parametrize("stages", [1, 2, 3, 4])
@pytest.mark.parametrize("name", SCHEDULES)
def test_gradients_equal_those_of_the_whole_batch(name: str, stages: int) -> None:
    with Cluster(4, seed=stages, backend="numpy").client():
        for microbatches in range(1, 9):
            check(name, stages, microbatches, rows=9)


@pytest.mark.long
@pytest.mark.parametrize(("name", "workers"), list(itertools.product(SCHEDULES, range(1, 9))))
def test_any_number_of_workers(name: str, workers: int) -> None:
    with Cluster(workers, seed=workers).client():
        for stages, microbatches in itertools.product(range(1, 5), (1, 3, 8)):
            check(name, stages, microbatches, rows=11)


@pytest.mark.parametrize("name", SCHEDULES)
def test_fifty_steps_equal_those_of_one_worker(name: str) -> None:
    values = values_of(2 * SCHEDULES[name][1])
    expected, forward = torch_model(values)
    optimizer = torch.optim.AdamW(expected, lr=1e-2)
    x, y = data(10)
    theirs, ours = [], []
    for _ in range(50):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(forward(torch.tensor(x)), torch.tensor(y))
        loss.backward()
        optimizer.step()
        theirs.append(loss.item())
    with Cluster(2, backend="numpy").client():
        pipeline = Pipeline([Part(v) for v in values], name, 4)
        adam = gt.optim.AdamW(pipeline.parameters(), lr=1e-2)
        batch, target = gt.tensor(x), gt.tensor(y)
        for _ in range(50):
            adam.zero_grad()
            ours.append(pipeline.step(batch, target, F.mse_loss))
            adam.step()
        ours = [loss.item() for loss in ours]
        layouts = {str(p.layout) for p in pipeline.parameters()}
    assert layouts == {"worker 0", "worker 1"}
    np.testing.assert_allclose(ours, theirs, rtol=1e-9)


def test_i_and_w_together_run_what_b_runs() -> None:
    """No gradient is computed twice: zb_h1 differs from 1f1b in order only."""
    counts = {}
    for name in ("1f1b", "zb_h1"):
        cluster = Cluster(2, backend="numpy")
        with cluster.client():
            parts = [Part(v) for v in values_of(2)]
            pipeline = Pipeline(parts, name, 4)
            x, y = map(gt.tensor, data(8))
            pipeline.step(x, y, F.mse_loss).item()
            cluster.settle()
            before = ran(cluster)
            pipeline.step(x, y, F.mse_loss).item()
            cluster.settle()
            counts[name] = ran(cluster) - before
            gt.load_config(None)
    assert counts["1f1b"] == counts["zb_h1"]


def ran(cluster: Cluster) -> int:
    return sum(w.interpreter.instructions + w.replayer.instructions for w in cluster.workers.values())


# -- what parts may be -------------------------------------------------------------------------


def run_both(
    parts: Callable[[Any], list[Any]], batch: Any, target: Any, loss_fn: Any, name: str = "1f1b", **options: Any
) -> None:
    """Compare a pipeline with the same parts one after the other on the whole batch."""
    with Cluster(3, backend="numpy").client():
        gt.manual_seed(0)
        plain, piped = parts(gt), parts(gt)
        modules = [[part for part in side if isinstance(part, nn.Module)] for side in (plain, piped)]
        for a, b in zip(*modules, strict=True):
            b.load_state_dict(a.state_dict())
        arguments = gt_tensors(batch)
        for part in plain:
            if isinstance(arguments, dict):
                arguments = part(**arguments)
            else:
                arguments = part(*arguments) if isinstance(arguments, tuple) else part(arguments)
        loss = loss_fn(arguments, gt_tensors(target))
        loss.backward()
        pipeline = Pipeline(piped, name, **{"microbatches": 3, **options})
        result = pipeline.step(gt_tensors(batch), gt_tensors(target), loss_fn)
        assert result.item() == pytest.approx(loss.item(), abs=1e-12)
        for a, b in zip(*modules, strict=True):
            for p, q in zip(a.parameters(), b.parameters(), strict=True):
                np.testing.assert_allclose(q.grad.numpy(), p.grad.numpy(), rtol=0, atol=1e-10)


def gt_tensors(batch: Any) -> Any:
    if isinstance(batch, np.ndarray):
        return gt.tensor(batch)
    if isinstance(batch, tuple):
        return tuple(map(gt_tensors, batch))
    return {k: gt_tensors(v) for k, v in batch.items()} if isinstance(batch, dict) else batch


def linear(gt: Any) -> nn.Module:
    return nn.Linear(WIDTH, WIDTH).double()


class Skip(nn.Module):
    """Hands its first input on beside its result."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH).double()

    def forward(self, x: gt.Tensor) -> tuple[gt.Tensor, gt.Tensor]:
        return self.linear(x).relu(), x * 2


class Between(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH).double()

    def forward(self, x: gt.Tensor, skipped: gt.Tensor) -> tuple[gt.Tensor, gt.Tensor]:
        return self.linear(x).tanh(), skipped


class Join(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH).double()

    def forward(self, x: gt.Tensor, skipped: gt.Tensor) -> gt.Tensor:
        return self.linear(x + skipped)


@pytest.mark.parametrize("name", ["1f1b", "zb_h1"])
def test_skip_connections_over_stages(name: str) -> None:
    run_both(lambda gt: [linear(gt), Skip(), Between(), Join()], *data(7), F.mse_loss, name)


def test_functions_dicts_masks_and_nones() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(WIDTH, WIDTH).double()

        def forward(self, *, x: gt.Tensor, mask: gt.Tensor) -> tuple[gt.Tensor, gt.Tensor, None, int]:
            return self.linear(x), mask, None, 3

    x, y = data(6)
    mask = RNG.integers(0, 2, (6, 1)).astype(bool)
    parts = lambda gt: [
        Masked(),
        lambda x, mask, nothing, n: (x * mask * n, mask),
        lambda x, mask: x.sum(1, keepdim=True),
    ]
    run_both(parts, {"x": x, "mask": mask}, y, lambda out, target: (out - target).square().mean())


def test_sums_instead_of_means() -> None:
    x, y = data(8)
    run_both(lambda gt: [linear(gt), linear(gt)], x, y, lambda a, b: (a - b).square().sum(), mean_loss=False)


def test_flattened_targets() -> None:
    x, y = RNG.standard_normal((5, 3, WIDTH)), RNG.standard_normal((15, WIDTH))
    run_both(lambda gt: [linear(gt), linear(gt)], x, y, lambda a, b: (a.reshape(b.shape) - b).square().mean())


def test_embeddings_tied_over_stages() -> None:
    class Out(nn.Module):
        def __init__(self, embedding: nn.Embedding) -> None:
            super().__init__()
            self.weight = embedding.weight

        def forward(self, x: gt.Tensor) -> gt.Tensor:
            return x @ self.weight.T

    def parts(gt: Any) -> list[Any]:
        embedding = nn.Embedding(9, WIDTH).double()
        return [embedding, linear(gt), Out(embedding)]

    ids = RNG.integers(0, 9, 8)
    for name in ("1f1b", "zb_h1", "gpipe"):
        run_both(parts, ids, RNG.integers(0, 9, 8), F.cross_entropy, name)


def test_several_stages_on_one_worker_and_fewer_microbatches_than_stages() -> None:
    for workers in ([0, 0, 1, 1], [1, 1, 1, 1], [0, 1, 0, 1], [2, 1, 0, 2]):
        run_both(lambda gt: [linear(gt) for _ in range(4)], *data(5), F.mse_loss, workers=workers, microbatches=2)


def test_microbatches_of_different_shapes() -> None:
    lengths = (3, 5, 2)
    batch = [RNG.standard_normal((2, n, WIDTH)) for n in lengths]
    with Cluster(2, backend="numpy").client():
        gt.manual_seed(0)
        parts = [linear(gt), linear(gt)]
        loss_fn = lambda out, target: (out - target).square().sum()
        pipeline = Pipeline(parts, "1f1b", 8, mean_loss=False)
        loss = pipeline.step([gt.tensor(x) for x in batch], [gt.tensor(x * 2) for x in batch], loss_fn)
        ours = grads_of(parts)
        for part in parts:
            part.zero_grad()
        expected = sum(loss_fn(parts[1](parts[0](gt.tensor(x))), gt.tensor(x * 2)) for x in batch)
        expected.backward()
        assert loss.item() == pytest.approx(expected.item())
        for a, b in zip(ours, grads_of(parts), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-10)


@pytest.mark.parametrize("name", SCHEDULES)
def test_shapes_that_change_with_each_step(name: str) -> None:
    """Other lengths, other numbers of microbatches: also fewer than stages, and again after others."""
    parts_count = 3 * SCHEDULES[name][1]
    with Cluster(3, backend="numpy").client():
        gt.manual_seed(0)
        parts = [linear(gt) for _ in range(parts_count)]
        pipeline = Pipeline(parts, name, 4)
        loss_fn = lambda out, target: (out - target).square().mean()
        for lengths in ((3, 5, 2), (3,), (2, 2), (3, 5, 2), (1, 2, 3, 4, 5, 6), (3,), (3, 5, 2)):
            batch = [RNG.standard_normal((2, n, WIDTH)) for n in lengths]
            loss = pipeline.step([gt.tensor(x) for x in batch], [gt.tensor(x * 2) for x in batch], loss_fn)
            ours, plain = grads_of(parts), []
            for part in parts:
                part.zero_grad()
            for x in batch:  # equal numbers of rows: equal shares
                y = gt.tensor(x)
                for part in parts:
                    y = part(y)
                plain.append(loss_fn(y, gt.tensor(x * 2)) / len(batch))
            expected = sum(plain)
            expected.backward()
            assert loss.item() == pytest.approx(expected.item())
            for a, b in zip(ours, grads_of(parts), strict=True):
                np.testing.assert_allclose(a, b, atol=1e-10)
            for part in parts:
                part.zero_grad()


# -- evaluation, accumulation, clipping, mixed precision, checkpointing ------------------------------


def test_evaluation_has_no_gradients() -> None:
    x, y = data(7)
    with Cluster(3, backend="numpy").client():
        parts = [Part(v) for v in values_of(3)]
        pipeline = Pipeline(parts, "1f1b", 3)
        batch = gt.tensor(x)
        whole = parts[2](parts[1](parts[0](batch))).detach()
        np.testing.assert_allclose(pipeline(batch).numpy(), whole.numpy(), atol=1e-12)
        assert not pipeline(batch).requires_grad
        loss = pipeline.evaluate(batch, gt.tensor(y), F.mse_loss)
        assert loss.item() == pytest.approx(F.mse_loss(whole, gt.tensor(y)).item())
        assert all(p.grad is None for p in pipeline.parameters())
        pair = Pipeline([lambda x: (x + 1, x - 1)], "gpipe", 2)(batch)
        np.testing.assert_allclose(pair[1].numpy(), x - 1)


def test_accumulation_and_clipping() -> None:
    x, y = data(8)
    expected, forward = torch_model(values_of(3))
    for _ in range(2):
        torch.nn.functional.mse_loss(forward(torch.tensor(x)), torch.tensor(y)).backward()
    norm = torch.nn.utils.clip_grad_norm_(expected, 0.01)
    with Cluster(3, backend="numpy").client():
        parts = [Part(v) for v in values_of(3)]
        pipeline = Pipeline(parts, "zb_h1", 4)
        for _ in range(2):
            pipeline.step(gt.tensor(x), gt.tensor(y), F.mse_loss)
        ours = nn.utils.clip_grad_norm_(pipeline.parameters(), 0.01)
        assert ours.item() == pytest.approx(norm.item())
        for a, b in zip(grads_of(parts), expected, strict=True):
            np.testing.assert_allclose(a, b.grad.numpy(), atol=1e-10)


@pytest.mark.filterwarnings("ignore:mkldnn_matmul")
@pytest.mark.parametrize("name", ["1f1b", "zb_h1"])
def test_mixed_precision(name: str) -> None:
    x, y = (a.astype("float32") for a in data(8))
    with Cluster(2).client():
        gt.manual_seed(0)
        parts = [nn.Linear(WIDTH, WIDTH) for _ in range(2)]
        pipeline = Pipeline(parts, name, 1)
        with gt.autocast(dtype=gt.bfloat16):
            whole = F.mse_loss(parts[1](parts[0](gt.tensor(x))), gt.tensor(y))
        whole.backward()
        expected = grads_of(parts)
        for microbatches, tolerance in ((1, 1e-6), (4, 2e-2)):
            for p in pipeline.parameters():
                p.grad = None
            pipeline = Pipeline(parts, name, microbatches)
            with gt.autocast(dtype=gt.bfloat16):
                loss = pipeline.step(gt.tensor(x), gt.tensor(y), F.mse_loss)
            assert loss.item() == pytest.approx(whole.item(), rel=tolerance)
            for a, b in zip(grads_of(parts), expected, strict=True):
                np.testing.assert_allclose(a, b, atol=tolerance)
            assert parts[0].weight.grad.dtype is gt.float32


@pytest.mark.parametrize("name", ["1f1b", "zb_h1"])
def test_checkpointing(name: str) -> None:
    class Checkpointed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(WIDTH, 8).double(), nn.Linear(8, WIDTH).double()

        def forward(self, x: gt.Tensor) -> gt.Tensor:
            return gt.checkpoint(lambda x: self.down(self.up(x).tanh()), x, use_reentrant=False)

    run_both(lambda gt: [Checkpointed() for _ in range(3)], *data(6), F.mse_loss, name)


# -- stages on several workers ------------------------------------------------------------------

SHARDED = """
first: {mesh: {tp: 2}, workers: [0, 1], replicate: true}
second: {shard: {axis: 0, workers: [2, 3]}}
columns: {match: "0.linear.weight", mesh: {tp: 2}, workers: [0, 1], shard: {0: tp}}
sharded: {match: "1.linear.weight", shard: {axis: 0, workers: [2, 3]}}
"""


def test_tensor_parallel_data_parallel_and_fully_sharded_stages(tmp_path: pathlib.Path) -> None:
    (tmp_path / "sharding.yaml").write_text(SHARDED)
    x, y = data(8)
    expected, forward = torch_model(values_of(2))
    torch.nn.functional.mse_loss(forward(torch.tensor(x)), torch.tensor(y)).backward()
    with Cluster(4, backend="numpy").client():
        gt.load_config(tmp_path / "sharding.yaml")
        parts = [Part(v) for v in values_of(2)]
        pipeline = Pipeline(parts, "zb_h1", 3, signals=["first", "second"])
        optimizer = gt.optim.SGD(pipeline.parameters(), lr=0.0)
        for _ in range(3):
            optimizer.zero_grad()
            pipeline.step(gt.tensor(x), gt.tensor(y), F.mse_loss)
            optimizer.step()
        for ours, theirs in zip(grads_of(parts), expected, strict=True):
            np.testing.assert_allclose(ours, theirs.grad.numpy(), rtol=0, atol=1e-10)
        layouts = [str(p.layout) for p in pipeline.parameters()]
        assert layouts[0] == "S(0) on workers 0, 1"
        assert layouts[1] == "R on workers 0, 1"
        assert layouts[4] == "S(0) on workers 2, 3"
        assert layouts[5] == "R on workers 2, 3"


FULLY_SHARDED = """
first: {shard: {axis: 0, workers: [0, 1]}}
second: {shard: {axis: 0, workers: [2, 3]}}
parameters0: {match: "0.*", shard: {axis: 0, workers: [0, 1]}}
parameters1: {match: "1.*", shard: {axis: 0, workers: [2, 3]}}
"""


@pytest.mark.parametrize("name", ["1f1b", "zb_h1"])
def test_fully_sharded_stages(name: str, tmp_path: pathlib.Path) -> None:
    """Parameters, their gradients and the state of the optimizer stay in blocks on the workers of their stage."""
    (tmp_path / "sharding.yaml").write_text(FULLY_SHARDED)
    x, y = data(8)
    expected, forward = torch_model(values_of(2))
    adam = torch.optim.AdamW(expected, lr=1e-2)
    with Cluster(4, backend="numpy").client():
        gt.load_config(tmp_path / "sharding.yaml")
        pipeline = Pipeline([Part(v) for v in values_of(2)], name, 4, signals=["first", "second"])
        optimizer = gt.optim.AdamW(pipeline.parameters(), lr=1e-2)
        for _ in range(5):
            adam.zero_grad()
            torch.nn.functional.mse_loss(forward(torch.tensor(x)), torch.tensor(y)).backward()
            adam.step()
            optimizer.zero_grad()
            pipeline.step(gt.tensor(x), gt.tensor(y), F.mse_loss)
            optimizer.step()
        for number, (ours, theirs) in enumerate(zip(pipeline.parameters(), expected, strict=True)):
            where = "workers 0, 1" if number < 4 else "workers 2, 3"
            assert str(ours.layout) == f"S(0) on {where}"
            assert str(optimizer.state[ours]["exp_avg"].layout) == f"S(0) on {where}"
            np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=0, atol=1e-10)


def test_stages_are_submodules_of_a_placed_model(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "stages.yaml").write_text(
        'a: {match: "head.*", workers: [0], replicate: true}\nb: {match: "tail.*", workers: [1], replicate: true}\n'
    )

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.tail = linear(gt), linear(gt)

    x, y = data(4)
    with Cluster(2, backend="numpy").client():
        gt.load_config(tmp_path / "stages.yaml")
        model = Model()
        gt.signal.place(model)
        pipeline = Pipeline([model.head, model.tail], "1f1b", 2, signals=["a", "b"])
        pipeline.step(gt.tensor(x), gt.tensor(y), F.mse_loss).item()
        assert str(model.tail.weight.layout) == "worker 1"
    assert "matches no parameter" not in capsys.readouterr().err


def test_without_a_configuration_signals_are_ignored() -> None:
    x, y = data(4)
    with Cluster(2, backend="numpy").client():
        parts = [linear(gt), linear(gt)]
        pipeline = Pipeline(parts, "1f1b", 2, signals=["a pipeline", "b pipeline"])
        pipeline.step(gt.tensor(x), gt.tensor(y), F.mse_loss)
        assert str(parts[1].weight.layout) == "worker 0"


# -- repeated steps ----------------------------------------------------------------------------


def test_repeated_steps_are_fragments() -> None:
    cluster = Cluster(2, backend="numpy")
    x, y = data(8)
    with cluster.client() as session:
        pipeline = Pipeline([Part(v) for v in values_of(2)], "1f1b", 4)
        optimizer = gt.optim.SGD(pipeline.parameters(), lr=0.1)
        batch, target = gt.tensor(x), gt.tensor(y)

        def step() -> None:
            optimizer.zero_grad()
            pipeline.step(batch, target, F.mse_loss)
            optimizer.step()

        for _ in range(4):
            step()
        cluster.settle()
        before = {name: (w.interpreter.instructions, w.replayer.instructions) for name, w in cluster.workers.items()}
        step()
        session.outbox.flush()
        cluster.settle()
        for name, worker in cluster.workers.items():
            interpreted = worker.interpreter.instructions - before[name][0]
            replayed = worker.replayer.instructions - before[name][1]
            assert replayed > 3 * interpreted  # moves are interpreted


def losses_in_torch(steps: int) -> list[float]:
    """Of the whole batch, which changes with each step."""
    x, y = data(8)
    parameters, forward = torch_model(values_of(2))
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    losses = []
    for i in range(steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(forward(torch.tensor(x + i)), torch.tensor(y))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def losses_in_stages(steps: int, name: str, compiled: bool, after_step: Callable[[], None] = bool) -> list[float]:
    x, y = data(8)
    pipeline = Pipeline([Part(v) for v in values_of(2)], name, 4)
    optimizer = gt.optim.SGD(pipeline.parameters(), lr=0.1)

    def step(batch: gt.Tensor, target: gt.Tensor) -> gt.Tensor:
        optimizer.zero_grad()
        loss = pipeline.step(batch, target, F.mse_loss)
        optimizer.step()
        return loss

    run, losses = gt.compile(step) if compiled else step, []
    for i in range(steps):
        losses.append(run(gt.tensor(x + i), gt.tensor(y)).item())
        after_step()
    return losses


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("name", ["1f1b", "zb_h1"])
def test_a_compiled_step(name: str, workers: int) -> None:
    with Cluster(workers, backend="numpy").client():
        losses = losses_in_stages(6, name, compiled=True)
    np.testing.assert_allclose(losses, losses_in_torch(6), rtol=1e-10)


@pytest.mark.parametrize("name", ["1f1b", "zb_h1"])
def test_a_step_leaves_no_reference_cycles(name: str) -> None:
    """A cycle would keep tensors until Python collects garbage, and `gt.compile` would refuse the step."""
    x, y = data(8)
    with Cluster(2, backend="numpy").client():
        pipeline = Pipeline([Part(v) for v in values_of(2)], name, 4)
        batch, target, kept = gt.tensor(x), gt.tensor(y), []
        gc.disable()
        try:
            for _ in range(4):
                pipeline.step(batch, target, F.mse_loss).item()
                kept.append([entry["client"]["tensors"] for entry in gt.debug.memory().values()])
        finally:
            gc.enable()
    assert kept[1:] == kept[1:2] * 3


@pytest.mark.long
@pytest.mark.parametrize(("levels", "compiled"), [("auto", False), ("all", False), ("auto", True)])
def test_workers_that_compile(
    levels: str, compiled: bool, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with ``GT_AUTO_COMPILE=1``, ``GT_COMPILE=1``, and the first with ``@gt.compile``."""
    monkeypatch.setenv("GT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(gt.testing, "Worker", functools.partial(Worker, levels=levels))
    cluster = Cluster(2)
    workers = list(cluster.workers.values())

    def wait() -> None:
        for worker in workers:
            wait_for_compiler(worker.replayer.levels)

    with cluster.client():
        losses = losses_in_stages(14, "1f1b", compiled, wait)
    np.testing.assert_allclose(losses, losses_in_torch(14), rtol=1e-9)
    for worker in workers:
        tried = [entry for entry in worker.replayer.levels.stats() if entry["compile_seconds"] > 0]
        assert tried, worker.replayer.levels.stats()


# -- mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "options", "text"),
    [
        (([1, 2], "1f1b"), {}, "pipeline: pass the number of microbatches"),
        (
            ([1, 2, 3], "zbv", 4),
            {},
            "pipeline: 3 parts cannot be divided into stages of 2; schedule zbv has 2 parts in each stage",
        ),
        (([], "1f1b", 4), {}, "pipeline: 0 parts cannot be divided into stages of 1"),
        (([1, 2], "1f1b", 4), {"signals": ["a"]}, "pipeline: 1 signals for 2 stages"),
        (([1, 2], "1f1b", 4), {"workers": [0, 1, 2]}, "pipeline: 3 workers for 2 stages"),
        (([1, 2], "1f1b", 4), {"workers": [0, 1], "signals": ["a", "b"]}, "pass signals or workers, not both"),
        (([1, 2], Schedule([["F0", "B0"]])), {}, "schedule custom is for 1 parts and 1 microbatches, not for 2 and 1"),
        (([1], "nowhere.csv"), {}, "nowhere.csv: the schedule cannot be read"),
        (([1], "2f2b", 2), {}, "there is no schedule '2f2b'"),
    ],
)
def test_wrong_arguments(arguments: Any, options: Any, text: str) -> None:
    with pytest.raises(ConfigError) as error:
        Pipeline(*arguments, **options)
    assert text in str(error.value)


def test_wrong_batches() -> None:
    with Cluster(1, backend="numpy").client():
        x, y = map(gt.tensor, data(4))
        pipeline = Pipeline([linear(gt)], "1f1b", 8)
        with pytest.raises(ShapeError, match="a batch of 4 rows cannot be cut into 8 microbatches"):
            pipeline.step(x, y, F.mse_loss)
        with pytest.raises(ShapeError, match="a list of microbatches needs at least one"):
            pipeline.step([], y, F.mse_loss)
        with pytest.raises(ConfigError, match="2 microbatches, and targets for 1"):
            pipeline.step([x, x], [y], F.mse_loss)
        with pytest.raises(ShapeError, match="the tensors of a batch have 4 and 3 rows"):
            Pipeline([linear(gt)], "1f1b", 2).step((x, x[:3]), y, F.mse_loss)
        with pytest.raises(ShapeError, match="a batch of 4 rows, and targets of 2"):  # the loss would broadcast them
            Pipeline([linear(gt)], "1f1b", 2).step(x, y[:2], F.mse_loss)
        with pytest.raises(GradError, match="the loss does not require grad"):
            Pipeline([lambda x: x], "1f1b", 2).step(x, y, F.mse_loss)
        with pytest.raises(ConfigError, match="worker 7 does not exist; there are: 0"):
            Pipeline([linear(gt)], "1f1b", 2, workers=[7]).step(x, y, F.mse_loss)


def test_a_schedule_of_ones_own(tmp_path: pathlib.Path) -> None:
    (tmp_path / "own.csv").write_text("F0,F1,B0,I1,W1\nF0,I0,F1,I1,W0,W1\n")
    run_both(lambda gt: [linear(gt), linear(gt)], *data(5), F.mse_loss, str(tmp_path / "own.csv"), microbatches=None)


@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1"])
@pytest.mark.parametrize("workers", [[0, 0], [0, 1]])
def test_a_batch_with_a_graph_of_its_own(schedule: str, workers: list[int]) -> None:
    def gradients(lib: Any, steps: Callable[[Any, Any, Any, list[Any]], Any]) -> list[np.ndarray]:
        rng = np.random.default_rng(7)
        layers = [lib.nn.Linear(3, 3).double() for _ in range(3)]
        for layer in layers:
            layer.load_state_dict({k: lib.tensor(rng.standard_normal(v.shape)) for k, v in layer.state_dict().items()})
        x, scale = lib.tensor(rng.standard_normal((6, 3))), lib.ones(3, dtype=lib.float64, requires_grad=True)
        h = layers[0](x).tanh()
        targets = lib.tensor(rng.standard_normal((6, 3))) * scale
        loss = steps(lib, h, targets, layers[1:])
        leaves = [scale, *(p for layer in layers for p in layer.parameters())]
        return [np.asarray(value.detach().numpy()) for value in (loss, *(leaf.grad for leaf in leaves))]

    def whole(lib: Any, h: Any, targets: Any, layers: list[Any]) -> Any:
        loss = lib.nn.functional.mse_loss(layers[1](layers[0](h)), targets)
        loss.backward()
        return loss

    def piped(lib: Any, h: Any, targets: Any, layers: list[Any]) -> Any:
        return Pipeline(layers, schedule, 3, workers=workers).step(h, targets, F.mse_loss)

    with Cluster(workers=2).client():
        of_stages = gradients(gt, piped)
    for ours, theirs in zip(of_stages, gradients(torch, whole), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-12)


def test_the_last_part_may_return_the_loss() -> None:
    with Cluster(workers=2, backend="numpy").client():
        x, layer = gt.ones(6, 2), nn.Linear(2, 2)
        pipeline = Pipeline([layer, lambda x: (x**2).mean()], "1f1b", 3)
        expected = (layer(x) ** 2).mean().item()
        assert pipeline.step(x, None, None).item() == pytest.approx(expected)
        assert pipeline.evaluate(x, None, None).item() == pytest.approx(expected)
        with pytest.raises(ShapeError, match=r"the last part, without a loss function, returned float32\[2,2\]"):
            Pipeline([layer, nn.Identity()], "1f1b", 3).step(x, None, None)
        with pytest.raises(gt.DTypeError, match="the last part, without a loss function, returned NoneType"):
            Pipeline([layer, lambda x: None], "1f1b", 3).step(x, None, None)


def test_a_microbatch_without_rows_has_no_mean() -> None:
    with Cluster(backend="numpy").client():
        x, parts = gt.ones(3, 2), [nn.Linear(2, 2), nn.Identity()]
        cut = [x[:2], x[:0], x[2:]]
        with pytest.raises(ShapeError, match="microbatch 1 has no rows, so it has no mean; leave it out"):
            Pipeline(parts, "1f1b", 3).step(cut, cut, F.mse_loss)
        sums = Pipeline(parts, "1f1b", 3, mean_loss=False)
        loss = sums.step(cut, cut, lambda a, b: F.mse_loss(a, b, reduction="sum"))
        assert loss.item() == pytest.approx(F.mse_loss(parts[0](x), x, reduction="sum").item())


def test_the_signals_of_a_pipeline_are_no_configuration(capsys: Any, monkeypatch: Any) -> None:
    """One warning says that there is none, and nothing names signals that the user never wrote."""
    monkeypatch.setattr("gt.client.signals.config.was_removed", lambda: False)
    monkeypatch.setattr("gt.client.signals.signal._warned", set())
    with Cluster(workers=2).client():
        pipe = Pipeline([nn.Linear(2, 2), nn.Linear(2, 2)], schedule="gpipe", microbatches=2)
        for _ in range(2):
            with gt.signal.context("batch"):
                pipe.step(gt.ones(4, 2), gt.zeros(4, 2), F.mse_loss)
    assert [line for line in capsys.readouterr().err.splitlines() if "batch" in line] == [
        "[gt] signal 'batch' and all others are ignored: there is no configuration; GT_CONFIG=file.yaml names one"
    ]


def test_too_few_parts_for_the_schedule(capsys: Any) -> None:
    Pipeline([nn.Identity(), nn.Identity()], schedule="zbv", microbatches=4)
    assert capsys.readouterr().err == (
        "[gt] pipeline: 2 parts are only one stage; schedule zbv has 2 parts in each stage: 2 stages need 4 parts\n"
    )
    Pipeline([nn.Identity()] * 4, schedule="zbv", microbatches=4)
    assert capsys.readouterr().err == ""


def test_an_error_names_its_part() -> None:
    with Cluster(workers=2, backend="numpy").client():
        pipeline = Pipeline([nn.Linear(4, 3), nn.Linear(4, 3)], microbatches=2)
        with pytest.raises(ShapeError) as caught:
            pipeline(gt.ones(4, 4))
    assert caught.value.__notes__ == ["in part 1 of the pipeline, Linear, with microbatch 0"]
