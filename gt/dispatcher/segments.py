"""What the workers get of a client's stream: segments of words, each for one set of workers.

Two sets that share a worker must keep their order on that worker; disjoint sets may overtake each other. So words are
appended to the open segment of their workers. An open segment is closed as soon as a segment begins for another set
that shares a worker with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from gt.dispatcher.ledger import Announcements
from gt.wire.codec import encode
from gt.wire.structures import Definition
from gt.wire.words import SUBMIT_MARGIN_BYTES

Workers = tuple[int, ...]


@dataclass(slots=True)
class Segment:
    workers: Workers
    words: list[Any] = field(default_factory=list)
    #: estimated microseconds on each of its workers
    cost: float = 0.0


class ForwardOutput:
    """What forwarding a stretch of a stream produces."""

    def __init__(self) -> None:
        #: the position in the stream where the loop stopped
        self.stop = 0
        self.segments: list[Segment] = []
        #: worker -> the definitions that it must get before the segments
        self.announcements: dict[int, Announcements] = {}
        #: (request, reason) of reads of lost values
        self.unreadable: list[tuple[int, str]] = []
        self.messages_to_client: list[Any] = []
        #: (workers, id) of old values that were replaced or lost and that these workers must free; `add` empties it
        self.orphans: list[tuple[Workers, int]] = []
        #: a plan was chosen by the values of numbers
        self.depends_on_numbers = False
        self._open: dict[Workers, Segment] = {}

    def segment(self, workers: Workers) -> Segment:
        """The open segment of these workers, or a new one."""
        segment = self._open.get(workers)
        if segment is None:
            for other in [o for o in self._open if not set(o).isdisjoint(workers)]:
                del self._open[other]
            segment = self._open[workers] = Segment(workers)
            self.segments.append(segment)
        return segment

    def announce(self, worker: int) -> Announcements:
        """The worker's announcements, to add to."""
        announcements = self.announcements.get(worker)
        if announcements is None:
            announcements = self.announcements[worker] = Announcements()
        return announcements

    def add(self, workers: Workers, words: list[Any], cost: float) -> None:
        """Add words for the workers that hold their operands. Words on lost tensors have no workers and are dropped."""
        if words and workers:
            segment = self.segment(workers)
            segment.words += words
            segment.cost += cost
        if self.orphans:
            orphans, self.orphans = self.orphans, []
            for workers, id in orphans:
                self.segment(workers).words.append(-id)


def batches(definitions: list[Definition]) -> list[list[Definition]]:
    """The definitions in batches that each fit into a frame; the last one fits together with a stream."""
    result: list[list[Definition]] = [[]]
    nbytes = 0
    for definition in definitions:
        size = len(encode(definition))
        if nbytes + size > SUBMIT_MARGIN_BYTES // 2:
            result.append([])
            nbytes = 0
        result[-1].append(definition)
        nbytes += size
    return result
