"""How long workers wait for collectives in fully sharded training, with prefetching (the default) and without it.

Both are measured one after the other, each on a system of its own, because the server decides. The figure is the time
in which a worker waits for a collective that all its members have started, per step, from the events of the workers.
"""

from __future__ import annotations

import os
import pathlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gt
from benchmarks.autoshard.system import System
from gt.client.stream.connect import session
from gt.client.stream.step_report import StepRecording

CONFIG = """
data: {shard: {axis: 0}}
parameters: {match: "*", shard: {axis: 0}}
"""
WARMUP = 5


def waits(
    port: int, batch: int, width: int, layers: int, rounds: int, prefetch: bool
) -> tuple[list[float], list[float]]:
    """Seconds of exposed communication, and of the whole step, for each round."""
    with _setting("GT_NO_PREFETCH", "0" if prefetch else "1"), System(2, port), tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "sharded.yaml"
        file.write_text(CONFIG)
        gt.load_config(file)
        try:
            return _measured(_training(batch, width, layers), rounds)
        finally:
            gt.load_config(None)


def _training(batch: int, width: int, layers: int) -> Any:
    gt.manual_seed(0)
    stack = [layer for _ in range(layers) for layer in (gt.nn.Linear(width, width), gt.nn.ReLU())]
    model = gt.nn.Sequential(*stack)
    optimizer = gt.optim.SGD(model.parameters(), lr=0.01)
    with gt.signal.context("data"):
        x, y = gt.randn(batch, width), gt.randn(batch, width)

    def step() -> None:
        optimizer.zero_grad()
        loss = gt.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        loss.item()

    return step


def _measured(step: Any, rounds: int) -> tuple[list[float], list[float]]:
    for _ in range(WARMUP):
        step()
    exposed, whole = [], []
    for _ in range(rounds):
        recording = StepRecording(session())
        step()
        breakdown = recording.breakdown()
        exposed.append(breakdown.times["exposed communication"] / 1e9)
        whole.append(breakdown.wall / 1e9)
    return exposed, whole


@contextmanager
def _setting(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before
