"""The client's own time for plain training steps of whole models, on a system that computes nothing.

The numbers of layers are the real ones. The shapes are small, because only the client is measured.
"""

from __future__ import annotations

import itertools
import statistics
import time
import unittest.mock
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import gt
from benchmarks.core.rows import Row
from benchmarks.hot import models, null
from benchmarks.training import gpt
from gt.client.grad import repeated_pass
from gt.client.stream.session import Session

#: steps until passes and stretches are learned, and steps in a round
LEARNING, STEPS = 12, 8
VOCABULARY, CLASSES = 500, 10


class Work(NamedTuple):
    model: Callable[[], Any]
    batch: Callable[[], tuple[Any, Any]]
    autocast: bool = True
    sgd: bool = False


def _images() -> tuple[Any, Any]:
    return gt.randn(4, 3, 64, 64), gt.randint(0, CLASSES, (4,))


def _tokens() -> tuple[Any, Any]:
    return gt.randint(0, VOCABULARY, (4, 32)), gt.randint(0, VOCABULARY, (4, 32))


WORK = {
    "bert": Work(lambda: models.bert(gt, 12, 128, VOCABULARY, 32), _tokens),
    "vit": Work(lambda: models.vit(gt, 12, 128, 64, 16, CLASSES), _images),
    "resnet18": Work(lambda: models.resnet18(gt, CLASSES), _images, sgd=True),
    "mini-gpt": Work(lambda: gpt(gt, 8, 128, 2, VOCABULARY, 32), _tokens),
    "lstm": Work(lambda: models.lstm(gt, 64, VOCABULARY), _tokens, autocast=False),
}
#: the phases of a step
PHASES = ("forward", "backward", "optimizer", "zero_grad")


def stepper(work: Work) -> Callable[[], list[float]]:
    """A function that trains for one step, and returns the seconds of processor time of each phase in this thread."""
    model, (x, y) = work.model(), work.batch()
    parameters, optim = model.parameters(), gt.optim
    optimizer: Any = optim.SGD(parameters, 0.01, momentum=0.9) if work.sgd else optim.AdamW(parameters)

    def step() -> list[float]:
        times = [time.thread_time()]
        with gt.autocast(dtype=gt.bfloat16, enabled=work.autocast):
            out = model(x)
            loss = gt.nn.functional.cross_entropy(out.reshape(-1, out.shape[-1]), y.reshape(-1))
        times.append(time.thread_time())
        for act in (loss.backward, optimizer.step, optimizer.zero_grad):
            act()
            times.append(time.thread_time())
        return [after - before for before, after in itertools.pairwise(times)]

    return step


def instructions(session: Session, step: Callable[[], Any]) -> int:
    """How many instructions a step emits. Its backward pass runs the rules, so that each is emitted alone."""
    counted, extend = [0], session.outbox.extend

    def count_and_extend(words: Any) -> None:
        counted[0] += 1
        extend(words)

    with (
        unittest.mock.patch.object(repeated_pass, "run", lambda session, edge, g, run_pass: run_pass(None)),
        unittest.mock.patch.object(session.outbox, "extend", count_and_extend),
    ):
        step()
    return counted[0]


def rows(rounds: int) -> Iterator[Row]:
    for name, work in WORK.items():
        with null.system() as session:
            step = stepper(work)
            for _ in range(LEARNING):
                step()
            count = instructions(session, step)
            step()
            samples: list[list[float]] = []
            totals = []
            for _ in range(rounds):
                started = time.thread_time()
                samples += [step() for _ in range(STEPS)]
                totals.append((time.thread_time() - started) / STEPS)  # with the time to free the tape
            session.outbox.flush()
        phases = dict(zip(PHASES, zip(*samples, strict=True), strict=True))
        details = {f"{phase}_ms": statistics.median(seconds) * 1e3 for phase, seconds in phases.items()}
        total = statistics.median(totals)
        details |= {"step_ms": total * 1e3, "instructions": count}
        yield Row(f"client, plain step of {name}", total / count * 1e6, "us an instruction", details=details)
