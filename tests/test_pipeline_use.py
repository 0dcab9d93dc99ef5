"""`gt.pipeline.Pipeline` as people use it: nested values between parts, writes in place, buffers, wrong arguments."""

from __future__ import annotations

import pathlib
from collections import namedtuple
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt import nn
from gt.errors import ConfigError, DTypeError, GradError, ShapeError
from gt.pipeline import Action, Pipeline, Schedule, read_schedule
from gt.testing import Cluster

F = nn.functional
RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((8, 4)), RNG.standard_normal((8, 4))
SPLIT_OR_NOT = pytest.mark.parametrize("name", ["1f1b", "zb_h1"])


@pytest.fixture(autouse=True)
def _cluster() -> Iterator[Cluster]:
    cluster = Cluster(2, backend="numpy")
    with cluster.client():
        gt.manual_seed(0)
        yield cluster
        gt.load_config(None)


def linear() -> nn.Linear:
    return nn.Linear(4, 4).double()


class Calls(nn.Module):
    """A linear layer and what is done with it."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.linear, self.function = linear(), function

    def forward(self, *args: Any) -> Any:
        return self.function(self.linear, *args)


def compare(parts: list[nn.Module], name: str, **options: Any) -> Pipeline:
    """The gradients are those of the whole batch without a pipeline."""
    for part in parts:
        part.zero_grad()
    h: Any = gt.tensor(X)
    for part in parts:
        h = part(*h) if isinstance(h, tuple) else part(h)
    F.mse_loss(h, gt.tensor(Y)).backward()
    expected = [p.grad.numpy() for part in parts for p in part.parameters()]
    for part in parts:
        part.zero_grad()
    pipeline = Pipeline(parts, name, 4, **options)
    pipeline.step(gt.tensor(X), gt.tensor(Y), F.mse_loss)
    for ours, p in zip(expected, [p for part in parts for p in part.parameters()], strict=True):
        np.testing.assert_allclose(p.grad.numpy(), ours, rtol=0, atol=1e-12)
    return pipeline


Pair = namedtuple("Pair", "a b")


@SPLIT_OR_NOT
def test_dicts_and_lists_between_parts(name: str) -> None:
    """The same value is handed on twice: the backward pass of the first part needs both gradients at once."""

    def first(layer: Any, x: Any) -> Any:
        h = layer(x).tanh()
        return {"h": h, "more": [h * 2, None, 3], "pair": Pair(x, h)}, h

    def second(layer: Any, given: Any, h: Any) -> Any:
        twice, nothing, number = given["more"]
        assert nothing is None
        return layer(given["h"] + twice * number) + given["pair"].b + given["pair"].a + h

    compare([Calls(first), Calls(second)], name)


@SPLIT_OR_NOT
@pytest.mark.parametrize("workers", [[0, 1], [0, 0]])
def test_a_part_writes_its_input(name: str, workers: list[int]) -> None:
    """On one worker both parts hold the same memory, and the first part needs its output for its gradient."""
    first = Calls(lambda layer, x: layer(x).tanh() + 0)
    compare([first, nn.Sequential(nn.ReLU(inplace=True), linear())], name, workers=workers)

    def write_view(layer: Any, x: Any) -> Any:
        x[:, 1] = 0.5
        x[:, :2].mul_(3)
        return layer(x)

    compare([first, Calls(write_view)], name, workers=workers)


@pytest.mark.parametrize("workers", [[0, 1], [0, 0]])
def test_a_part_writes_what_the_part_before_needs(workers: list[int]) -> None:
    """In torch this is an error. Here the input is a copy, so the gradients are right."""
    parts = [Calls(lambda layer, x: layer(x).tanh()), Calls(lambda layer, x: layer(x.clone().mul_(2)))]
    pipeline = compare(parts, "1f1b", workers=workers)
    expected = [p.grad.numpy() for p in pipeline.parameters()]
    parts[1].function = lambda layer, x: layer(x.mul_(2))
    for p in pipeline.parameters():
        p.grad = None
    pipeline.step(gt.tensor(X), gt.tensor(Y), F.mse_loss)
    for p, theirs in zip(pipeline.parameters(), expected, strict=True):
        np.testing.assert_allclose(p.grad.numpy(), theirs, rtol=0, atol=1e-12)


def test_buffers_are_on_the_workers_of_their_stage() -> None:
    """Batch norm uses the statistics of each microbatch, as in torch if the microbatches run one after the other."""
    layer, norm = linear(), nn.BatchNorm1d(4).double()
    constant = nn.Module()
    constant.register_buffer("scale", gt.full((4,), 2.0, dtype=gt.float64))
    constant.forward = lambda x: x * constant.scale
    theirs = torch.nn.Linear(4, 4).double(), torch.nn.BatchNorm1d(4).double()
    theirs[0].load_state_dict({key: torch.tensor(value.numpy()) for key, value in layer.state_dict().items()})
    pipeline = Pipeline([layer, norm, constant], "1f1b", 4, workers=[0, 1, 1])
    for _ in range(2):
        pipeline.step(gt.tensor(X), gt.tensor(Y), F.mse_loss)
        for x, y in zip(torch.tensor(X).split(2), torch.tensor(Y).split(2), strict=True):
            (torch.nn.functional.mse_loss(theirs[1](theirs[0](x)) * 2, y) / 4).backward()
    for ours, expected in ((norm.running_mean, theirs[1].running_mean), (layer.weight.grad, theirs[0].weight.grad)):
        np.testing.assert_allclose(ours.numpy(), expected.numpy(), rtol=0, atol=1e-10)
    assert norm.num_batches_tracked.item() == 8
    for buffer in (norm.running_mean, norm.running_var, constant.scale):
        assert str(buffer.layout) == "worker 1"


def test_joined_outputs() -> None:
    outputs = Pipeline([lambda x: {"y": x + 1, "rest": [x, None, 3], "pair": Pair(x, x * 2)}], "gpipe", 3)(gt.tensor(X))
    np.testing.assert_allclose(outputs["y"].numpy(), X + 1)
    np.testing.assert_allclose(outputs["rest"][0].numpy(), X)
    assert outputs["rest"][1:] == [None, 3]
    np.testing.assert_allclose(outputs["pair"].b.numpy(), X * 2)


@SPLIT_OR_NOT
def test_mixed_precision_with_checkpoints(name: str) -> None:
    with Cluster(2).client():
        gt.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4)) for _ in range(2)]
        x, y = gt.tensor(X.astype("float32")), gt.tensor(Y.astype("float32"))
        grads = []
        for run in (lambda layer, x: layer(x), lambda layer, x: gt.checkpoint(layer, x, use_reentrant=False)):
            parts = [lambda x, run=run, layer=layer: run(layer, x) for layer in layers]
            with gt.autocast(dtype=gt.bfloat16):
                Pipeline(parts, name, 2).step(x, y, F.mse_loss)
            grads.append([p.grad.numpy() for layer in layers for p in layer.parameters()])
            for layer in layers:
                layer.zero_grad()
    for plain, again in zip(*grads, strict=True):
        np.testing.assert_array_equal(plain, again)


# -- mistakes --------------------------------------------------------------------------------------


def test_a_step_after_a_step_that_failed() -> None:
    parts = [linear(), linear()]
    pipeline = Pipeline(parts, "zb_h1", 4)

    def fails(output: Any, target: Any) -> Any:
        raise ValueError("no loss")

    with pytest.raises(ValueError, match="no loss") as caught:
        pipeline.step(gt.tensor(X), gt.tensor(Y), fails)
    assert caught.value.__notes__ == ["in the loss function of the pipeline, with microbatch 0"]
    assert all(p.grad is None for p in pipeline.parameters())
    compare(parts, "zb_h1")


@pytest.mark.parametrize(
    ("batch", "targets", "loss_fn", "error", "text"),
    [
        (X, "Y", F.mse_loss, DTypeError, "the batch has a numpy.ndarray; gt.tensor"),
        ("X", torch.tensor(Y), F.mse_loss, DTypeError, "the batch has a torch.Tensor; gt.tensor"),
        (("X", {"a": [X]}), "Y", F.mse_loss, DTypeError, "the batch has a numpy.ndarray"),
        (["X", "X"], "Y", F.mse_loss, ConfigError, "pass a list of their targets too"),
        ("X", "Y", lambda a, b: 3.0, DTypeError, "the loss function returned float; expected a tensor"),
        ("X", "Y", lambda a, b: a - b, ShapeError, r"the loss function returned float64\[2,4\]; expected one number"),
    ],
)
def test_wrong_batches_and_losses(batch: Any, targets: Any, loss_fn: Any, error: Any, text: str) -> None:
    def replaced(tree: Any) -> Any:
        if isinstance(tree, str):
            return gt.tensor({"X": X, "Y": Y}[tree])
        return type(tree)(map(replaced, tree)) if isinstance(tree, tuple | list) else tree

    pipeline = Pipeline([linear(), linear()], "1f1b", 4)
    for run in (pipeline.step, pipeline.evaluate):
        with pytest.raises(error, match=text):
            run(replaced(batch), replaced(targets), loss_fn)


def test_a_step_without_gradients() -> None:
    x, y = gt.tensor(X), gt.tensor(Y)
    with gt.no_grad(), pytest.raises(GradError, match=r"under gt\.no_grad, call evaluate"):
        Pipeline([linear()], "1f1b", 2).step(x, y, F.mse_loss)
    forwards = Pipeline([linear()], Schedule([["F0", "F1"]]))
    assert forwards.evaluate(x, y, F.mse_loss).item() > 0
    with pytest.raises(ConfigError, match="schedule custom has no backward pass; call evaluate"):
        forwards.step(x, y, F.mse_loss)


@pytest.mark.parametrize(
    ("stages", "options", "text"),
    [
        (3, {}, "stages is a int; expected a list of modules or functions"),
        ([abs, None], {}, "part 1 is None; expected a module or a function"),
        ([abs], {"schedule": None}, "schedule=None; expected a name, a file or a gt.pipeline.Schedule"),
        ([abs], {"chunks": "2"}, "chunks='2'; expected an integer, 1 or more"),
        ([abs], {"schedule": Schedule([["F0", "B0"]]), "chunks": 1}, "chunks=1; the schedule has its own"),
        ([abs], {"workers": 3}, "workers=3; expected a list with one item for each stage"),
        ([abs], {"workers": [[]]}, r"stage 0: workers has \[\]; expected a worker, or several, each once"),
        ([abs], {"workers": [[0, 0]]}, r"stage 0: workers has \[0, 0\]; expected a worker"),
        ([abs], {"workers": ["a"]}, "stage 0: workers has 'a'; expected a worker"),
        ([abs], {"signals": "a"}, "signals='a'; expected a list with one item for each stage"),
        ([abs], {"signals": [1]}, "stage 0: signals has 1; expected the name of a signal"),
    ],
)
def test_wrong_arguments(stages: Any, options: Any, text: str) -> None:
    options = {"microbatches": None if isinstance(options.get("schedule"), Schedule) else 2, **options}
    with pytest.raises(ConfigError, match=text):
        Pipeline(stages, **options)


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        (5, "expected a list with one item for each stage, not 5"),
        ([None], r"stage 0: expected a list of actions such as \[F0, B0\], not None"),
        ([{"F0": 1}], "stage 0: expected a list of actions"),
        (["F0 B0", []], "schedule custom: stage 1: there are no actions"),
        ([[Action("X", 0, 0)]], "stage 0: '0X0' is not an action"),
        ([[Action("F", 0, -1)]], "stage 0: '0F-1' is not an action"),
        ([["F٠"]], "is not an action"),
        (["F0 B0 999999999F0 999999999B0"], "no stage runs part 1"),  # at once: it does not count all of them
    ],
)
def test_wrong_schedules(rows: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Schedule(rows)


def test_a_schedule_from_a_spreadsheet(tmp_path: pathlib.Path) -> None:
    """With the mark of UTF-8, the line ends of Windows, and lines of empty cells."""
    path = tmp_path / "own.csv"
    path.write_bytes(b"\xef\xbb\xbfF0,B0,,\r\n,,,\r\n,F0,B0,\r\n ,\r\n")
    assert read_schedule(path).rows == Schedule(["F0 B0", "F0 B0"]).rows
    assert Pipeline([linear(), linear()], path).schedule.stages == 2
