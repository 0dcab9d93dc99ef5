"""The YAML blocks of the tuning guide, as they stand there: parameters keep their placement through optimizer steps."""

from __future__ import annotations

import pathlib
from typing import Any

import numpy as np
import pytest

import gt
from gt import nn
from gt.testing import Cluster

HOT_PATH = """
# config.yaml
hot_path:
  shard:
    axis: 0
    workers: [0, 1, 2, 3]
  compile: true  # Mark as compilation boundary
"""
DATA_PARALLEL = """
data_parallel:
  shard:
    axis: 0              # Batch dimension
    workers: [0, 1, 2, 3]
"""
MODEL_PARALLEL = """
model_parallel:
  shard:
    axis: 1              # Feature dimension
    workers: [0, 1]
"""
STAGES = """
stage_1:
  shard:
    axis: 0
    workers: [0, 1]
  backward: stage_1_backward

stage_2:
  shard:
    axis: 0
    workers: [2, 3]
  backward: stage_2_backward
"""
OPTIMIZERS = {"SGD": gt.optim.SGD, "AdamW": gt.optim.AdamW}
STEPS = 10


def train(text: str, stages: list[str], optimizer: str, created_inside: bool, path: pathlib.Path) -> Any:
    """Losses, and the layouts of the weights and biases before, after one step and after all."""
    path.write_text(text)
    with Cluster(4, backend="numpy").client():
        gt.load_config(path if text else None)
        gt.manual_seed(0)
        # large enough that a gather costs more than the start of a collective
        layers = []
        for stage, shape in zip(stages, ((80, 160), (160, 40)), strict=True):
            if created_inside:
                with gt.signal.context(stage):
                    layers.append(nn.Linear(*shape))
            else:
                layers.append(nn.Linear(*shape))
        model = nn.ModuleList(layers)
        step = OPTIMIZERS[optimizer](model.parameters(), lr=0.01)
        losses, layouts = [], [[str(p.layout) for p in model.parameters()]]
        rng = np.random.default_rng(0)
        for _ in range(STEPS):
            with gt.signal.context(stages[0]):
                x, y = (gt.tensor(rng.standard_normal((32, n)).astype("float32")) for n in (80, 40))
                hidden = layers[0](x).relu()
            with gt.signal.context(stages[1]):
                loss = (layers[1](hidden) - y).square().mean()
            step.zero_grad()
            loss.backward()
            step.step()
            losses.append(loss.item())
            layouts.append([str(p.layout) for p in model.parameters()])
        gt.load_config(None)
    return losses, layouts[0], layouts[1], layouts[-1]


ALL, TWO = "R on workers 0, 1, 2, 3", "R on workers 0, 1"
#: block -> its text, the signals of the two layers, and after the first step the layouts of parameters that were
#: created outside of the signals, on worker 0
CASES = {
    "hot_path": (HOT_PATH, ["hot_path"] * 2, [ALL] * 4),
    "data_parallel": (DATA_PARALLEL, ["data_parallel"] * 2, [ALL] * 4),
    "model_parallel": (MODEL_PARALLEL, ["model_parallel"] * 2, [TWO] * 4),
    # the parameters of the second stage are not on its workers: they stay where they are, and are copied for use
    "stages": (STAGES, ["stage_1", "stage_2"], [TWO] * 2 + ["worker 0"] * 2),
}
INSIDE = {
    "hot_path": ["S(0) on workers 0, 1, 2, 3"] * 4,
    "data_parallel": ["S(0) on workers 0, 1, 2, 3"] * 4,
    "model_parallel": ["S(1) on workers 0, 1", TWO] * 2,  # a bias has no dim 1
    "stages": ["S(0) on workers 0, 1"] * 2 + ["S(0) on workers 2, 3"] * 2,
}


@pytest.fixture(scope="module")
def one_worker(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    path = tmp_path_factory.mktemp("one") / "a.yaml"
    return {name: train("", ["a", "b"], name, False, path)[0] for name in OPTIMIZERS}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("block", CASES)
def test_parameters_created_outside(
    block: str, optimizer: str, tmp_path: pathlib.Path, one_worker: dict[str, list[float]]
) -> None:
    text, stages, expected = CASES[block]
    losses, before, first, last = train(text, stages, optimizer, False, tmp_path / "config.yaml")
    assert before == ["worker 0"] * 4
    assert first == last == expected  # whole before, whole on every worker that has a gradient after
    np.testing.assert_allclose(losses, one_worker[optimizer], rtol=1e-5)


@pytest.mark.parametrize("block", CASES)
def test_parameters_created_inside(block: str, tmp_path: pathlib.Path, one_worker: dict[str, list[float]]) -> None:
    text, stages, _ = CASES[block]
    losses, before, first, last = train(text, stages, "AdamW", True, tmp_path / "config.yaml")
    assert before == first == last == INSIDE[block]
    np.testing.assert_allclose(losses, one_worker["AdamW"], rtol=1e-5)
