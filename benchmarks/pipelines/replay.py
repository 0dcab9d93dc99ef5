"""What a repeated pipelined step costs the client and the dispatcher, and how much of it travels in templates.

The whole system runs in one thread (`gt.testing.Cluster`), so that each moment belongs to one role. Times are processor
time, so that other processes matter little. The dispatcher's time includes decoding and encoding. Workers compute tiny
numpy arrays, and their time is left out.
"""

from __future__ import annotations

import pathlib
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import gt
from benchmarks.core.rows import Row
from benchmarks.pipelines.sizes import Sizes
from gt import nn
from gt.client.stream.session import Session
from gt.pipeline import Pipeline
from gt.pipeline.schedules import chunks_of
from gt.testing import Cluster
from gt.wire.fragments import ParsedFragment
from gt.wire.words import RUN

STAGES, MICROBATCHES, WIDTH = 4, 8, 8
#: steps before anything is counted: by then every action is a fragment, and every fragment has its replay plan
KNOWN = 6


class TimedCluster(Cluster):
    """A cluster that adds up the processor time of its dispatcher, in seconds."""

    dispatcher_seconds = 0.0

    def _to_dispatcher(self, source: bytes, frames: list[Any]) -> None:
        started = time.thread_time()
        super()._to_dispatcher(source, frames)
        self.dispatcher_seconds += time.thread_time() - started


class Counts(NamedTuple):
    """The instructions that a client sent."""

    in_templates: int
    individually: int

    @property
    def share(self) -> float:
        return self.in_templates / (self.in_templates + self.individually)


class Training:
    """A training step in stages: parts of two layers and a norm, and AdamW."""

    def __init__(self, schedule: str, microbatches: int = MICROBATCHES) -> None:
        parts = [
            nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
            for _ in range(STAGES * chunks_of(schedule))
        ]
        self.pipeline = Pipeline(parts, schedule, microbatches)
        self.optimizer = gt.optim.AdamW(self.pipeline.parameters(), lr=1e-3)
        self.x = gt.ones(2 * microbatches, WIDTH)

    def step(self) -> Any:
        self.optimizer.zero_grad()
        loss = self.pipeline.step(self.x, self.x, nn.functional.mse_loss)
        self.optimizer.step()
        return loss


def counted(session: Session) -> Counts:
    """The instructions in the submissions that the session remembers, without those that only free tensors."""
    in_templates = individually = 0
    for stream, signatures, fragments in session.outbox.recent:
        by_code = {code: signature for code, (signature, _) in signatures.items()}
        i = 0
        while i < len(stream):
            code = stream[i]
            if code == RUN:
                fragment = ParsedFragment(fragments[stream[i + 1]], by_code)
                in_templates += len(fragment.instructions)
                i += fragment.width
            elif code < 0:
                i += 1
            else:
                individually += 1
                i += by_code[code].width
    return Counts(in_templates, individually)


def one_step(cluster: TimedCluster, session: Session, training: Training) -> tuple[float, float]:
    """Seconds of the client and of the dispatcher."""
    cluster.dispatcher_seconds = 0.0
    started = time.thread_time()
    training.step()
    session.outbox.flush()
    client = time.thread_time() - started
    cluster.settle()
    return client, cluster.dispatcher_seconds


@contextmanager
def repeating(schedule: str) -> Iterator[tuple[TimedCluster, Session, Training]]:
    """A system and its training after `KNOWN` steps."""
    cluster = TimedCluster(STAGES, backend="numpy")
    with cluster.client() as session:
        training = Training(schedule)
        for _ in range(KNOWN):
            one_step(cluster, session, training)
        yield cluster, session, training
        gt.load_config(None)


def share_in_templates(cluster: TimedCluster, session: Session, training: Training) -> Counts:
    """Of one more step."""
    session.outbox.recent = deque()  # without a limit
    one_step(cluster, session, training)
    return counted(session)


def replay(sizes: Sizes, folder: pathlib.Path) -> Iterator[Row]:
    for schedule in ("1f1b", "zb_h1"):
        with repeating(schedule) as system:
            times = [one_step(*system) for _ in range(3 * sizes.rounds)]
            counts = share_in_templates(*system)
        total = counts.in_templates + counts.individually
        name = f"{schedule}, {STAGES} stages, {MICROBATCHES} microbatches"
        details = {"instructions": float(total), "individually": float(counts.individually)}
        yield Row(f"in templates: {name}", [counts.share], "of the instructions", ">=", 0.95, details)
        for role, seconds in (("client", [t[0] for t in times]), ("dispatcher", [t[1] for t in times])):
            each = [s / total * 1e6 for s in seconds]
            yield Row(f"{role}: {name}", each, "us an instruction", details={"step_ms": 1e3 * min(seconds)})
