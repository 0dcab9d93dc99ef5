"""From a machine and a workload to a prediction: a few steps in virtual time, after everything is planned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gt
from benchmarks.simulation.cluster import Cluster
from benchmarks.simulation.machine import Machine
from benchmarks.simulation.workloads import Workload

WARMUP, STEPS = 3, 3


@dataclass(frozen=True)
class Prediction:
    workers: int
    batch: int
    #: predicted seconds of a step
    step_s: float
    #: of the slowest worker in each: computing, waiting for collectives, and pending collectives, waited for or not
    compute_s: float
    exposed_s: float
    communication_s: float
    collectives: float
    #: seconds of the dispatcher's code in this process, per step: measured, not part of the prediction
    dispatcher_s: float
    instructions: float
    messages: float

    @property
    def exposed_share(self) -> float:
        return self.exposed_s / self.step_s

    @property
    def communication_share(self) -> float:
        return self.communication_s / self.step_s

    @property
    def dispatcher_rate(self) -> float:
        """Instructions per second of the client's program."""
        return self.instructions / self.dispatcher_s

    def record(self) -> dict[str, Any]:
        shares = {name: getattr(self, name) for name in ("exposed_share", "communication_share")}
        predicted = {
            k: getattr(self, k) for k in ("step_s", "compute_s", "exposed_s", "communication_s", "collectives")
        }
        measured = {k: getattr(self, k) for k in ("dispatcher_s", "dispatcher_rate", "instructions", "messages")}
        return {
            "workers": self.workers,
            "batch": self.batch,
            "predicted": predicted | shares,
            "measured_here": measured,
        }


def predict(machine: Machine, workload: Workload, workers: int, batch: int) -> Prediction:
    """One step of the workload, data parallel on this many workers of the machine."""
    cluster = Cluster(machine, workers)
    gt.auto_shard()
    try:
        with cluster.client():
            state = workload.setup(batch)
            _steps(workload, state, WARMUP)
            before = _counters(cluster)
            _steps(workload, state, STEPS)
            per_step = [(b - a) / STEPS for a, b in zip(before, _counters(cluster), strict=True)]
            del state
    finally:
        gt.auto_shard(False)
    return Prediction(workers, batch, *per_step)


def _steps(workload: Workload, state: Any, count: int) -> None:
    for _ in range(count):
        loss = workload.step(state)
    loss.item()


def _counters(cluster: Cluster) -> list[float]:
    load, board = cluster.load, cluster.board
    return [
        cluster.client_clock,
        max(w.busy for w in cluster.workers),
        max(w.waited for w in cluster.workers),
        max(board.taken.values(), default=0.0),
        board.collectives,
        load.seconds,
        load.instructions,
        load.messages,
    ]
