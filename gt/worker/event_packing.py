"""Packs recorded events: stretches of marks become the bytes of a `Recorded` message, many stretches at once.

A stretch with few marks knows only when it began and ended. Its time is divided between its events as it was divided in
the stretches with all marks: `weights` has the nanoseconds that one event of each name took there.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from gt.wire.event_messages import EVENT_FIELDS, STRETCH_COLUMNS, TRANSFER
from gt.wire.structures import EventName

COUNT = STRETCH_COLUMNS.index("count")
STARTED = STRETCH_COLUMNS.index("started")
ENDED = STRETCH_COLUMNS.index("ended")
#: An event takes this long as long as no event of its name was measured.
UNMEASURED_NS = 1000.0
#: Source lines with larger numbers are not reported.
MAX_SITE = (1 << 16) - 1


class Stretch(NamedTuple):
    """Consecutive events: each ends where the next one begins."""

    #: before each event, and after the last; or only the first and the last of these
    marks: list[Any]
    #: indices of names
    whats: array[int]
    sites: array[int]
    execute: int
    queued: int
    fragment: int
    level: int


class PackedEvents(NamedTuple):
    stretches: bytes
    rows: bytes
    shares: list[tuple[str, int, int, int]]
    sites: set[int]


def source_lines(words: Sequence[Any]) -> array[int]:
    """The numbers of source lines. A client may send any word there; what is no number of a line becomes 0."""
    return array("i", [word if type(word) is int and 0 <= word <= MAX_SITE else 0 for word in words])


class StreamPattern:
    """The instructions in a stretch of words. A program repeats them with other tensors, and comparing the words with
    those of the last time is several times faster than finding the instructions one by one."""

    __slots__ = ("_frees_of", "_words", "_words_of", "first_sites", "whats")

    def __init__(self, stream: list[Any], i: int, end: int, name: Callable[[int], tuple[int, int]]) -> None:
        """``name``: code -> (index of its name, how many words it has)."""
        whats, at, frees = array("i"), [], []
        while i < end:
            if stream[i] < 0:
                frees.append(i)
                i += 1
                continue
            what, width = name(stream[i])
            whats.append(what)
            at.append(i)
            i += width
        self.whats = whats
        #: the codes, then the source lines
        self._words_of, self._frees_of = _words([*at, *(k + 1 for k in at)]), _words(frees)
        self._words = self._words_of(stream)
        self.first_sites = source_lines(self._words[len(at) :])

    def sites(self, stream: list[Any]) -> array[int] | None:
        """The source lines in a stretch of the same length; None if it has other codes, or not only frees between."""
        words, count = self._words_of(stream), len(self.whats)
        same = words == self._words
        if not same and words[:count] != self._words[:count]:
            return None
        try:
            if max(self._frees_of(stream), default=-1) >= 0:
                return None
        except TypeError:  # there is something else where the frees were
            return None
        return self.first_sites if same else source_lines(words[count:])


def _words(positions: list[int]) -> Callable[[list[Any]], Sequence[Any]]:
    """A function that returns the words at these positions."""
    if len(positions) > 1:
        return itemgetter(*positions)
    return lambda stream: [stream[k] for k in positions]


def pack(stretches: list[tuple[Stretch, list[int]]], names: list[EventName], weights: Any) -> PackedEvents:
    """Pack stretches with the times of their marks. Updates ``weights``, which has an entry for each name."""
    whats, sites, heads = array("i"), array("i"), array("q")
    measured: list[tuple[int, list[int]]] = []
    for stretch, times in stretches:
        count = len(stretch.whats)
        if len(times) == count + 1:
            measured.append((len(whats), times))
        whats.extend(stretch.whats)
        sites.extend(stretch.sites)
        heads.extend((stretch.execute, stretch.queued, stretch.fragment, stretch.level, times[0], times[-1], count))
    what = np.frombuffer(whats, dtype=np.int32)
    head = np.frombuffer(heads, dtype=np.int64).reshape(-1, len(STRETCH_COLUMNS))
    ended, spent = _divide(head, what, weights, measured)
    rows = np.empty(len(what), dtype=EVENT_FIELDS)
    site = np.frombuffer(sites, dtype=np.int32)
    rows["what"], rows["site"], rows["ended"] = what, site, ended
    lines = set(np.flatnonzero(np.bincount(site)).tolist()) - {0}
    return PackedEvents(heads.tobytes(), rows.tobytes(), _shares(names, what, spent), lines)


def _divide(head: Any, what: Any, weights: Any, measured: list[tuple[int, list[int]]]) -> tuple[Any, Any]:
    """(when each event ended, in nanoseconds after its stretch began; how long it took)."""
    exact = [(slice(first, first + len(times) - 1), np.diff(times)) for first, times in measured]
    for part, took in exact:
        old = weights[what[part]]
        # the mean with the value before, so that one interruption does not count for long
        weights[what[part]] = np.maximum(np.where(old > 0, (old + took) / 2, took), 1)
    spent = weights[what]
    spent[spent == 0] = UNMEASURED_NS
    for part, took in exact:
        spent[part] = took
    if not len(head):
        return spent.astype(np.int64), spent
    counts = head[:, COUNT]
    first = np.cumsum(counts) - counts
    scale = (head[:, ENDED] - head[:, STARTED]) / np.maximum(np.add.reduceat(spent, first), 1)
    spent *= np.repeat(scale, counts)
    passed = np.cumsum(spent)
    passed -= np.repeat(passed[first] - spent[first], counts)
    return np.rint(passed).astype(np.int64), spent


def _shares(names: list[EventName], what: Any, spent: Any) -> list[tuple[str, int, int, int]]:
    """(family, events, nanoseconds, bytes). Moves run beside the instructions: their family is `TRANSFER`."""
    totals: dict[str, list[int]] = {}
    counts = np.bincount(what, minlength=len(names))
    times = np.bincount(what, weights=spent, minlength=len(names))
    for index in np.flatnonzero(counts).tolist():
        name, count = names[index], int(counts[index])
        total = totals.setdefault(TRANSFER if name.kind == "move" else name.family, [0, 0, 0])
        total[0] += count
        total[1] += int(times[index])
        total[2] += count * name.nbytes
    return [(name, total[0], total[1], total[2]) for name, total in totals.items()]
