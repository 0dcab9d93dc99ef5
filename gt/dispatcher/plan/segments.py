"""What the workers get of a piece of a client's program: runs of words, each the same for a set of workers.

Sets that share a worker must not overtake each other there; sets that share none may. So words go to the open run of
their workers, and a run is closed as soon as another begins that shares a worker with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gt.dispatcher.ledger import News
from gt.wire.codec import encode
from gt.wire.messages import SUBMIT_MARGIN_BYTES, Definition

Workers = tuple[int, ...]


@dataclass(slots=True)
class Segment:
    workers: Workers
    words: list[Any] = field(default_factory=list)
    #: estimated microseconds on each of its workers
    cost: float = 0.0


class Forwarded:
    def __init__(self) -> None:
        #: where in the stream the loop stopped
        self.stop = 0
        self.segments: list[Segment] = []
        self.news: dict[int, News] = {}
        #: requests for values that are lost, with the reason
        self.unreadable: list[tuple[int, str]] = []
        #: messages for the client
        self.said: list[Any] = []
        #: tensors that are lost for the client while workers still have them
        self.orphans: list[tuple[Workers, int]] = []
        #: were numbers asked whether they are zero?
        self.asked = False
        self._open: dict[Workers, Segment] = {}

    def segment(self, workers: Workers) -> Segment:
        found = self._open.get(workers)
        if found is None:
            for other in [o for o in self._open if not set(o).isdisjoint(workers)]:
                del self._open[other]
            found = self._open[workers] = Segment(workers)
            self.segments.append(found)
        return found

    def tell(self, worker: int) -> News:
        news = self.news.get(worker)
        if news is None:
            news = self.news[worker] = News()
        return news

    def add(self, workers: Workers, words: list[Any], cost: float) -> None:
        """Words for who holds their operands; what needs a lost tensor goes nowhere."""
        if words and workers:
            segment = self.segment(workers)
            segment.words += words
            segment.cost += cost
        if self.orphans:
            orphans, self.orphans = self.orphans, []
            for workers, id in orphans:
                self.segment(workers).words.append(-id)


def batches(definitions: list[Definition]) -> list[list[Definition]]:
    """The definitions, so that each batch fits into a frame; the last fits together with a stream."""
    made: list[list[Definition]] = [[]]
    nbytes = 0
    for definition in definitions:
        size = len(encode(definition))
        if nbytes + size > SUBMIT_MARGIN_BYTES // 2:
            made.append([])
            nbytes = 0
        made[-1].append(definition)
        nbytes += size
    return made
