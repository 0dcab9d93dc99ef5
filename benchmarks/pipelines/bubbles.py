"""The bubble of schedules on timed workers, and what a pipelined step costs the client and the dispatcher.

Each part of the model is one matrix product: one op for F, one for I, one for W, all of the same set time.
"""

from __future__ import annotations

import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import gt
from benchmarks.core.rows import Row
from benchmarks.pipelines.sizes import Sizes
from benchmarks.pipelines.timed import Span, spans, timed_system
from gt.pipeline import Pipeline, bubble_formula
from gt.pipeline.schedules import chunks_of

STAGES = 4
#: (schedule, microbatches, the largest bubble allowed as a function of the formula of 1f1b and the schedule's own)
CASES: tuple[tuple[str, int, Callable[[float, float], float]], ...] = (
    ("gpipe", 8, lambda base, own: own * 1.1),
    ("1f1b", 8, lambda base, own: own * 1.1),
    ("1f1b", 16, lambda base, own: own * 1.1),
    ("1f1b", 32, lambda base, own: own * 1.1),
    ("interleaved_1f1b", 8, lambda base, own: own * 1.1),
    ("zb_h1", 16, lambda base, own: base / 2),
    ("zbv", 16, lambda base, own: 0.05),
)


class Products:
    """A model of matrix products on a timed system, one for each part."""

    def __init__(self, schedule: str, microbatches: int) -> None:
        count = STAGES * chunks_of(schedule)
        self.weights = [gt.ones(8, 8, requires_grad=True) for _ in range(count)]
        self.pipeline = Pipeline([_product(w) for w in self.weights], schedule, microbatches)
        # the first part has a gradient of its input too, so that its I takes as long as the others'
        self.batch, self.targets = gt.ones(2 * microbatches, 8, requires_grad=True), gt.ones(2 * microbatches, 8)

    def step(self) -> Any:
        for w in (*self.weights, self.batch):
            w.grad = None
        return self.pipeline.step(self.batch, self.targets, lambda out, target: (out - target).mean())

    def wait(self) -> None:
        for w in self.weights:
            w.grad.sum().item()


def _product(w: Any) -> Callable[[Any], Any]:
    return lambda x: x @ w


def measured_bubble(rows: list[list[Span]]) -> float:
    """The idle share between the first begin and the last end, over all workers."""
    length = max(row[-1].end for row in rows) - min(row[0].begin for row in rows)
    return 1 - sum(span.end - span.begin for row in rows for span in row) / (length * len(rows))


def run_steps(schedule: str, microbatches: int, seconds: float, steps: int) -> list[list[list[Span]]]:
    """For each measured step the spans of each worker."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        with timed_system(STAGES, seconds, folder):
            model = Products(schedule, microbatches)
            before, measured = [0] * STAGES, []
            for _ in range(steps + 1):  # the first one defines signatures
                model.step()
                model.wait()
                rows = spans(folder)
                measured.append([row[n:] for row, n in zip(rows, before, strict=True)])
                before = [len(row) for row in rows]
            gt.load_config(None)
    return measured[1:]


def bubble(sizes: Sizes, folder: pathlib.Path) -> Iterator[Row]:
    for schedule, microbatches, allowed in CASES:
        steps = run_steps(schedule, microbatches, sizes.op_seconds, sizes.steps)
        formula = bubble_formula(schedule, STAGES, microbatches, chunks_of(schedule))
        base = bubble_formula("1f1b", STAGES, microbatches)
        assert formula is not None, "the cases have formulas"
        assert base is not None
        name = f"bubble of {schedule}, {STAGES} stages, {microbatches} microbatches"
        bubbles = [*map(measured_bubble, steps)]
        yield Row(name, bubbles, "of a step", "<=", allowed(base, formula), formula=formula)


def client(sizes: Sizes, folder: pathlib.Path) -> Iterator[Row]:
    """A step of 1f1b with 8 microbatches whose ops take no time: emitting it, and until its loss is known."""
    with tempfile.TemporaryDirectory() as name, timed_system(STAGES, 0.0, pathlib.Path(name)):
        model = Products("1f1b", 8)
        for _ in range(5):
            model.step().item()
        emitted, done = [], []
        for _ in range(10 * sizes.rounds):
            started = time.perf_counter()
            loss = model.step()
            emitted.append((time.perf_counter() - started) * 1e6)
            loss.item()
            done.append((time.perf_counter() - started) * 1e6)
        gt.load_config(None)
    actions = 2 * STAGES * 8
    yield Row("client, a repeated step", [t / actions for t in emitted], "us an action")
    yield Row("a repeated step of 64 actions without work", done, "us")
