"""The batches of one process.

The batches of all ranks together go through the data once, in order. The rest at the end is one shorter batch, the same
on every rank; it is trained on and counted, but not timed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from benchmarks.core.loader import Loader
from benchmarks.transformer.dataset import Spec
from benchmarks.transformer.model import BEGIN


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


class Batches(Loader):
    """The batches of an epoch; a pass with more of them starts again. ``stage`` is the engine's."""

    def __init__(self, source: Source, spans: list[Span], stage: Callable[[tuple[np.ndarray, ...]], Any]) -> None:
        super().__init__(lambda number: stage(self.read(spans[number % len(spans)])))
        self.source, self.spans = source, spans

    def read(self, span: Span) -> tuple[np.ndarray, ...]:
        return tensors(self.source.read(span.start, span.stop))
