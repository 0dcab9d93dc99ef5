"""Whole clusters in one thread: random programs, interleavings and deaths, all drawn from a seed.

``GT_SEEDS=5000 pytest tests/test_cluster.py`` tries that many seeds of each test instead of the usual few.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from typing import Any

import pytest

from gt.client import session as session_module
from gt.client import tensor as tensor_module
from gt.client import uploads
from gt.client.session import Session
from gt.client.tensor import call, upload
from gt.dispatcher import core as dispatcher_core
from gt.errors import ConnectionLost, NoWorkers, RemoteError, WorkerLost
from gt.ops import OPS
from gt.testing import Cluster
from gt.types import DTYPES, TensorType
from gt import testing
from gt.wire import parts
from tests.invariants import always, settled
from tests.programs import Program

pytestmark = pytest.mark.filterwarnings("ignore")  # torch warns of what the samples do on purpose


def seeds(usual: int) -> Any:
    return pytest.mark.parametrize("seed", range(int(os.environ.get("GT_SEEDS", usual))))


class Play:
    """Several programs on one cluster, their steps interleaved at random."""

    def __init__(self, seed: int, clients: int | None = None, workers: int | None = None) -> None:
        self.rng = random.Random(seed)
        self.backend = "numpy" if seed % 4 == 3 else "torch"
        self.cluster = Cluster(workers or self.rng.randint(1, 4), seed, self.backend)
        self.cluster.after_step = always
        self.programs = [self.join() for _ in range(clients or self.rng.randint(1, 4))]

    def join(self) -> Program:
        return Program(self.cluster.add_client(), random.Random(self.rng.random()), self.backend)

    def act(self) -> None:
        program = self.rng.choice(self.programs)
        what = self.rng.random()
        if what < 0.05:
            for _ in range(self.rng.randint(1, 8)):
                self.cluster.step()
        elif what < 0.08:
            program.session.flush_by_itself()
        elif what < 0.10:
            program.session.ask()
        elif what < 0.12:
            self.cluster.tick()
        elif what < 0.18:
            program.send_large(self.rng.randint(70_000, 300_000))
        else:
            program.act()

    def end(self) -> None:
        """What is there is right; then all go, and nothing of them stays."""
        for program in self.programs:
            program.read_all()
        self.settle()
        for program in self.programs:
            program.slots.clear()
            program.session.close()
        self.cluster.settle()
        settled(self.cluster)
        assert not self.cluster.dispatcher.clients
        assert all(not worker.spaces for worker in self.cluster.workers.values())

    def settle(self) -> None:
        for program in self.programs:
            program.session.flush_by_itself()
        self.cluster.settle()
        settled(self.cluster)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Limits so small that every program runs into them."""

    def shrink(seed: int) -> None:
        rng = random.Random(seed)
        monkeypatch.setattr(parts, "PART", rng.choice((1 << 12, 1 << 15)))
        monkeypatch.setattr(parts, "PARTS_AHEAD", 1 << 16)
        monkeypatch.setattr(parts, "SHARED_PART", rng.choice((1 << 13, 40_000)))
        monkeypatch.setattr(parts, "LANE", rng.choice((1 << 16, 100_000)))
        monkeypatch.setattr(tensor_module, "BATCH", rng.choice((10, 60, 640)))
        for module in (session_module, dispatcher_core):
            monkeypatch.setattr(module, "WINDOW", rng.choice((256, 1 << 16)))
        monkeypatch.setattr(session_module, "SIGNATURES", rng.choice((20, 20_000)))
        monkeypatch.setattr(session_module, "FREED", rng.choice((1, 4096)))
        monkeypatch.setattr(dispatcher_core, "AHEAD", rng.choice((30.0, 6000.0)))
        monkeypatch.setattr(dispatcher_core, "TURN", rng.choice((9.0, 2000.0)))
        if rng.random() < 0.5:  # frames instead of shared memory
            monkeypatch.setattr(testing, "host_identity", lambda: "")
            monkeypatch.setattr(uploads, "host_identity", lambda: "")

    return shrink


@seeds(120)
def test_values_are_right_whatever_the_order(seed: int, small: Any) -> None:
    small(seed)
    play = Play(seed)
    for _ in range(60):
        play.act()
    play.end()


@seeds(80)
def test_workers_die(seed: int, small: Any) -> None:
    small(seed)
    play = Play(seed)
    deaths = Deaths(play)
    for _ in range(60):
        deaths.act()
    deaths.stop()
    while play.cluster.workers:
        deaths.kill_worker()
    play.cluster.settle()
    deaths.revive()
    for program in play.programs:  # after all that, new tensors work
        program.slots.clear()
        for _ in range(8):
            program.compute()
    play.end()


@seeds(80)
def test_clients_die(seed: int, small: Any) -> None:
    small(seed)
    play = Play(seed, clients=3)
    deaths = Deaths(play)
    for _ in range(60):
        deaths.act(workers=False)
    deaths.stop()
    play.end()


@seeds(40)
def test_all_die_and_come_back(seed: int, small: Any) -> None:
    small(seed)
    play = Play(seed)
    deaths = Deaths(play)
    for _ in range(80):
        deaths.act(clients=True)
    deaths.stop()
    play.end()


class Deaths:
    """Kills in the middle of things: after any message, whoever waits for whatever."""

    def __init__(self, play: Play) -> None:
        self.play, self.cluster, self.rng = play, play.cluster, play.rng
        #: workers that are dead, and the programs that were hit since the last act
        self.dead: set[int] = set()
        self.hit: set[Program] = set()

    def act(self, workers: bool = True, clients: bool | None = None) -> None:
        clients = not workers if clients is None else clients
        kinds = [self.kill_worker] * workers + [self.kill_client] * clients
        if self.rng.random() < 0.08:
            self._after(self.rng.randint(0, 12), self.rng.choice(kinds))
        if not self.cluster.workers and self.rng.random() < 0.7:
            self.revive()
        try:
            self.play.act()
        except NoWorkers:
            assert self.dead
            if not self.cluster.workers:
                self.revive()
        except ConnectionLost:  # it was the one that died
            assert any(p.session.ended for p in self.play.programs)
        self._mourn()
        self.play.programs = [p for p in self.play.programs if p.session.ended is None]
        while len(self.play.programs) < 2:
            self.play.programs.append(self.play.join())

    def stop(self) -> None:
        self.cluster.after_step = always
        if not self.cluster.workers:
            self.revive()
        self.cluster.settle()
        self._mourn()
        self.play.programs = [p for p in self.play.programs if p.session.ended is None]

    def _after(self, steps: int, kill: Any) -> None:
        left = [steps]

        def count(cluster: Cluster) -> None:
            always(cluster)
            left[0] -= 1
            if left[0] < 0:
                cluster.after_step = always
                kill()

        self.cluster.after_step = count

    def kill_worker(self) -> None:
        if self.cluster.workers:
            name = self.rng.choice(list(self.cluster.workers))
            self.dead.add(self.cluster.workers[name].id)
            self._mourn()
            self.cluster.kill_worker(name)

    def _mourn(self) -> None:
        """Whose worker is dead, or is going to be one that is dead and not missed yet, may have lost what it had."""
        unnoticed = self.dead & set(self.cluster.dispatcher.workers)
        for program in self.play.programs:
            known = self.cluster.dispatcher.clients.get(program.session.id)
            if known is not None and unnoticed and (known.home is None or known.home in unnoticed):
                self.hit.add(program)
        for program in self.hit:
            program.lose()
        if not unnoticed:
            self.hit.clear()

    def kill_client(self) -> None:
        alive = [p for p in self.play.programs if p.session.ended is None]
        if alive:
            self.cluster.kill_client(self.rng.choice(alive).session)

    def revive(self) -> None:
        for _ in range(self.rng.randint(1, 2)):
            self.cluster.add_worker()
