"""Sharded tensors: random programs over random layouts give the same values as one worker.

``GT_SEEDS=5000 pytest tests/test_sharding.py`` tries that many seeds instead of the usual few.
"""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import gt
from gt import testing
from gt.client.stream import configuration, scope
from gt.errors import ConfigError
from gt.testing import Cluster
from gt.wire.codec import encode
from tests.support import programs
from tests.support.event_record import RecordedDispatcher
from tests.support.processes import environment
from tests.test_cluster import Deaths, Play, seeds, small  # noqa: F401, a fixture

pytestmark = pytest.mark.filterwarnings("ignore")

#: over four workers: sharded on disjoint, overlapping and nested meshes, replicated, on one worker, and with weights
SIGNALS = """
dp:      {shard: {axis: 0, workers: [0, 1]}}
tp:      {shard: {axis: 1, workers: [0, 1]}}
three:   {shard: {axis: 0, workers: [3, 1, 2]}}
other:   {shard: {axis: 1, workers: [2, 3]}}
all:     {shard: {axis: 0, workers: [0, 1, 2, 3]}}
copies:  {replicate: true, workers: [1, 2]}
alone:   {shard: {axis: 0, workers: [3]}}
grid:    {mesh: {a: 2, b: 2}, shard: {0: a, 1: b}}
nested:  {mesh: {a: 2, b: 2}, shard: {0: [a, b]}}
column:  {mesh: {a: 2, b: 2}, shard: {1: b}}
forced:  {shard: {axis: 0, workers: [0, 1]}, output: {axis: 0}}
slow:    {shard: {axis: 0, workers: [0, 1]}, weights: [3, 1]}
steep:   {shard: {axis: 1, workers: [3, 1, 2]}, weights: [1, 2, 4]}
uneven:  {mesh: {a: 2, b: 2}, shard: {0: a, 1: b}, weights: {a: [3, 1]}}
deep:    {mesh: {a: 2, b: 2}, shard: {0: [a, b]}, weights: {a: [3, 1], b: [1, 2]}}
"""


@pytest.fixture
def signals(tmp_path: Any) -> Iterator[list[str]]:
    path = tmp_path / "signals.yaml"
    path.write_text(SIGNALS)
    gt.load_config(str(path))
    yield [name for name in configuration.current.signals if not name.startswith("@")]
    gt.load_config(None)


#: ops whose choice among equal values depends, in torch, on the other values in the block
AMBIGUOUS = frozenset({"topk", "kthvalue", "mode", "median_dim", "nanmedian_dim"})


class CutPlay(Play):
    """A play in which each step is under a random signal, or none."""

    def __init__(self, seed: int, names: list[str]) -> None:
        super().__init__(seed, workers=4)
        self.names = random.Random(seed).sample(names, 4)

    def join(self) -> programs.Program:
        program = super().join()
        program.avoid, program.cuts = AMBIGUOUS, True
        return program

    def act(self) -> None:
        name = self.rng.choice([*self.names, None, None])
        with gt.signal.context(name) if name else contextlib.nullcontext():
            super().act()


@pytest.fixture(autouse=True)
def rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of floats in another order round differently, and doubles may be computed from such floats."""
    monkeypatch.setitem(programs.TOLERANCES, "float64", programs.TOLERANCES["float32"])


@seeds(60)
def test_values_do_not_depend_on_how_they_are_cut(seed: int, small: Any, signals: list[str]) -> None:  # noqa: F811
    small(seed)
    play = CutPlay(seed, signals)
    for _ in range(60):
        play.act()
    play.end()
    assert not scope.active


class CutDeaths(Deaths):
    """A program with tensors on several workers may lose any of them with one worker."""

    def _mourn(self) -> None:
        if self.dead:
            for program in self.play.programs:
                program.lose()

    def act(self, workers: bool = True, clients: bool | None = None) -> None:
        with contextlib.suppress(ConfigError):  # a signal names a worker that is dead
            super().act(workers, clients)


@seeds(60)
def test_workers_die_while_tensors_move(seed: int, small: Any, signals: list[str]) -> None:  # noqa: F811
    small(seed)
    play = CutPlay(seed, signals)
    deaths = CutDeaths(play)
    for _ in range(60):
        deaths.act()
    deaths.stop()
    play.end()


def test_the_same_events_give_the_same_actions(
    signals: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    """What a dispatcher does follows from its events alone, not from the process: hashes of texts differ there."""
    monkeypatch.setattr(testing, "Dispatcher", RecordedDispatcher)
    records = []
    for seed in range(6):
        play = CutPlay(seed, signals)
        deaths = CutDeaths(play)
        for _ in range(40):
            deaths.act()
        deaths.stop()
        play.end()
        assert isinstance(play.cluster.dispatcher, RecordedDispatcher)
        records.append(play.cluster.dispatcher.events)
    (path := tmp_path / "events").write_bytes(encode(records))
    command = [sys.executable, "-m", "tests.support.event_record", str(path)]
    hashes = "1" if os.environ.get("PYTHONHASHSEED") == "2" else "2"
    repeated = subprocess.run(command, env=environment(PYTHONHASHSEED=hashes), capture_output=True, text=True)
    actions = sum(len(answer) for events in records for _, _, answer in events)
    assert repeated.stdout == f"equal actions: {actions}\n", repeated.stderr[-4000:]


@seeds(40)
def test_clients_die_while_tensors_move(seed: int, small: Any, signals: list[str]) -> None:  # noqa: F811
    small(seed)
    play = CutPlay(seed, signals)
    deaths = CutDeaths(play)
    for _ in range(60):
        deaths.act(workers=False)
    deaths.stop()
    play.end()


@seeds(12)
def test_a_lost_worker_is_reported_as_such_wherever_its_values_went(
    seed: int, signals: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by workers that got the value through several other workers."""
    monkeypatch.setattr("gt.client.stream.replies.FAILURE_DETAIL_TIMEOUT_S", 0.05)
    rng, lost = random.Random(seed), 0
    for _ in range(40):
        lost += read_after_a_death(rng, signals)
    assert lost > 5


def read_after_a_death(rng: random.Random, signals: list[str]) -> bool:
    """Compute under several signals while a worker dies. True for `WorkerLost`; otherwise the value must be right."""
    cluster, steps = Cluster(workers=4), iter(range(rng.randint(1, 60)))
    dying = rng.choice(list(cluster.workers))

    def count(cluster: Cluster) -> None:
        if next(steps, None) is None and dying in cluster.workers:
            cluster.kill_worker(dying)

    with cluster.client():
        want = np.arange(16.0, dtype="f").reshape(4, 4)
        try:
            with gt.signal.context(rng.choice(signals)):
                x = gt.arange(16.0).reshape(4, 4)
            cluster.settle()
            cluster.after_step = count
            for name in rng.choices(signals, k=rng.randint(2, 5)):
                with gt.signal.context(name):
                    x = x @ x * 0.1
                want = want @ want * np.float32(0.1)
            np.testing.assert_allclose(x.numpy(), want, rtol=1e-4)
        except gt.WorkerLost:
            return True
        except ConfigError:  # a signal names a worker that is dead
            pass
    return False


def test_sync_batch_norm_of_a_sharded_batch(signals):
    """The statistics are those of the whole batch, and not of one worker's block."""
    x = np.random.default_rng(0).standard_normal((6, 3))
    with Cluster(workers=4).client():
        with gt.signal.context("dp"):
            batch = gt.tensor(x)
        result = gt.nn.SyncBatchNorm(3, dtype=gt.float64)(batch).detach().numpy()
    np.testing.assert_allclose(result, (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-5), rtol=1e-9, atol=1e-9)
