"""Batches of one process, read ahead in a thread, and how long the loop waited for them.

The batches of all ranks together go through the data once, in order. The rest at the end is one shorter batch, the same
on every rank; it is trained on and counted, but not timed.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from benchmarks.transformer.dataset import Spec
from benchmarks.transformer.model import BEGIN

#: batches made ahead of their use
AHEAD = 3


class Source(Protocol):
    spec: Spec

    def read(self, start: int, stop: int) -> np.ndarray: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Span:
    """The samples of one batch."""

    start: int
    stop: int
    #: has the full batch size: only these step times count
    full: bool

    @property
    def samples(self) -> int:
        return self.stop - self.start


def plan(samples: int, batch: int, rank: int, ranks: int, tail: bool = True, ranks_led: int = 1) -> list[Span]:
    """This rank's batches of an epoch; fewer samples than ranks at the end are left out.

    A process that leads ``ranks_led`` ranks, from this one on, reads their batches as one, in their order.
    """
    whole, rest = divmod(samples, batch * ranks)
    starts = [(k * ranks + rank) * batch for k in range(whole)]
    spans = [Span(start, start + ranks_led * batch, True) for start in starts]
    short = rest // ranks
    if tail and short:
        start = whole * batch * ranks + rank * short
        spans.append(Span(start, start + ranks_led * short, False))
    return spans


def tensors(tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Source, the decoder's input, and its target: the target sequence shifted by one."""
    source, target = tokens[:, 0].astype(np.int64), tokens[:, 1].astype(np.int64)
    decoder_input = np.full_like(target, BEGIN)
    decoder_input[:, 1:] = target[:, :-1]
    return source, decoder_input, target


@dataclass
class Loader:
    source: Source
    spans: list[Span]
    #: what the engine does with a batch in the loader's thread: pin it
    stage: Callable[[tuple[np.ndarray, ...]], Any]
    #: seconds waited for each batch of the last pass
    waited: list[float] = field(default_factory=list)

    def __iter__(self) -> Iterator[tuple[Span, Any]]:
        return self.first(len(self.spans))

    def first(self, count: int) -> Iterator[tuple[Span, Any]]:
        """This many batches, starting again where an epoch has fewer."""
        self.waited = []
        pending: deque[tuple[Span, Future[Any]]] = deque()
        with ThreadPoolExecutor(1, "loader") as thread:
            try:
                for number in range(count + AHEAD):
                    if number < count:
                        span = self.spans[number % len(self.spans)]
                        pending.append((span, thread.submit(self.make, span)))
                    if number >= AHEAD and pending:
                        yield self._next(*pending.popleft())
            finally:
                for _, future in pending:
                    future.cancel()

    def make(self, span: Span) -> Any:
        return self.stage(tensors(self.source.read(span.start, span.stop)))

    def _next(self, span: Span, future: Future[Any]) -> tuple[Span, Any]:
        started = time.perf_counter()
        batch = future.result()
        self.waited.append(time.perf_counter() - started)
        return span, batch
