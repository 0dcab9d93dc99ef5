"""How long workers wait for collectives in fully sharded training, with prefetching (the default) and without it.

Both are measured one after the other, each on a system of its own, because the server decides. The figure is the time
per step in which a worker waits for a collective that all its members have started, from the events of the workers.
Over NCCL the wait is on the GPU, where these events do not show it. There the figure is the time in which a GPU runs a
kernel of NCCL and nothing else, from a trace of its kernels.
"""

from __future__ import annotations

import os
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import gt
from benchmarks.autoshard.system import System
from gt.client.stream.connect import session
from gt.client.stream.step_report import StepRecording
from gt.events.breakdown import Breakdown
from gt.events.kernels import exposed_communication

CONFIG = """
data: {shard: {axis: 0}}
parameters: {match: "*", shard: {axis: 0}}
"""
WARMUP = 5

Step = Callable[[], None]


class Waits(NamedTuple):
    """Seconds of each round."""

    exposed: list[float]
    #: the whole step
    whole: list[float]
    #: whether they come from the kernels of GPUs
    from_kernels: bool


def waits(port: int, batch: int, width: int, layers: int, rounds: int, prefetch: bool) -> Waits:
    """Exposed communication, and the whole step."""
    with tempfile.TemporaryDirectory() as name, training(port, batch, width, layers, prefetch, name) as step:
        return _measured(step, rounds, pathlib.Path(name))


@contextmanager
def training(port: int, batch: int, width: int, layers: int, prefetch: bool, folder: str) -> Iterator[Step]:
    """A system of its own, and a step of fully sharded training on its two workers."""
    with _setting("GT_NO_PREFETCH", "0" if prefetch else "1"), System(2, port):
        file = pathlib.Path(folder) / "sharded.yaml"
        file.write_text(CONFIG)
        gt.load_config(file)
        try:
            step = _training(batch, width, layers)
            for _ in range(WARMUP):
                step()
            yield step
        finally:
            gt.load_config(None)


def _training(batch: int, width: int, layers: int) -> Step:
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


def _measured(step: Step, rounds: int, folder: pathlib.Path) -> Waits:
    from_kernels = not recorded_step(step).waits_known
    if from_kernels:
        traced_step(step, folder)  # the first trace of a worker takes seconds to start
        pairs = [(traced_step(step, folder), _seconds(step)) for _ in range(rounds)]
    else:
        recorded = [recorded_step(step) for _ in range(rounds)]
        pairs = [(each.times["exposed communication"] / 1e9, each.wall / 1e9) for each in recorded]
    return Waits([exposed for exposed, _ in pairs], [whole for _, whole in pairs], from_kernels)


def recorded_step(step: Step) -> Breakdown:
    """Where the time of one step went."""
    recording = StepRecording(session())
    step()
    return recording.breakdown()


def traced_step(step: Step, folder: pathlib.Path) -> float:
    """The seconds of exposed communication of one step, on average over the workers, from a trace of its kernels."""
    file = folder / "step.json"
    with gt.debug.trace(file, kernels=True):
        step()
    return statistics.mean(exposed_communication(file).values()) / 1e9


def _seconds(step: Step) -> float:
    """How long a step takes without a trace."""
    started = time.perf_counter()
    step()
    return time.perf_counter() - started


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
