"""Packs recorded events: stretches of marks become the bytes of a `Recorded` message, many stretches at once.

A stretch with few marks knows only when it began and ended. Its time is divided between its events as it was divided in
the stretches with all marks: `weights` has the nanoseconds that one event of each name took there.

A program repeats itself. So stretches with the same events share their rows, and a row says only which part of the
time of its stretch an event took. Only stretches with all marks have rows of their own.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from gt.wire.event_messages import DEVICE_TRANSFER, EVENT_FIELDS, TRANSFER
from gt.wire.structures import EventName

#: An event takes this long as long as no event of its name was measured.
UNMEASURED_NS = 1000.0
#: The largest number of a source line: a row has 32 bits for it.
MAX_SITE = (1 << 31) - 1
#: The most lengths of stretches that are remembered for a client, and the most patterns of one length: frees come at
#: other places when the client's garbage collector has run.
MAX_LENGTHS, MAX_PATTERNS = 64, 4
#: Fewer words at equal distances are faster one by one.
SHORTEST_SLICE = 5


class Stretch(Struct, frozen=True, gc=False):
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
    #: the longest instruction that was measured: nanoseconds, and the call
    longest: tuple[int, str]


def source_lines(words: Sequence[Any]) -> array[int]:
    """The numbers of source lines. A client may send any word there; what is no number of a line becomes 0."""
    return array("i", [word if type(word) is int and 0 <= word <= MAX_SITE else 0 for word in words])


class StreamPattern:
    """The instructions in a stretch of words. A program repeats them with other tensors, and comparing the words with
    those of the last time is several times faster than finding the instructions one by one."""

    __slots__ = ("_at", "_codes", "_codes_at", "_frees", "_lines", "_lines_at", "first_sites", "whats")

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
        self.whats, self._at, self._frees = whats, at, frees
        places = _places(at)
        self._codes_at, self._lines_at = _words(places, 0), _words(places, 1)
        self._codes, self._lines = self._codes_at(stream), self._lines_at(stream)
        self.first_sites = source_lines([stream[k + 1] for k in at])

    def sites(self, stream: list[Any], count: int) -> array[int] | None:
        """The source lines in a stretch of the same length, in which ``count`` instructions ran; None if it has other
        codes, or not only frees between."""
        if self._codes_at(stream) != self._codes:
            return None
        same = self._lines_at(stream) == self._lines
        if same and count == len(self.whats):
            # something else between the codes would be an instruction more, or take the words of one of these
            return self.first_sites
        try:
            if max((stream[k] for k in self._frees), default=-1) >= 0:
                return None
        except TypeError:  # there is something else where the frees were
            return None
        return self.first_sites if same else source_lines([stream[k + 1] for k in self._at])


class StreamPatterns:
    """The patterns of the stretches that a client repeats."""

    def __init__(self) -> None:
        #: (first word, last word) -> what ran there before, the newest first
        self._known: dict[tuple[int, int], list[StreamPattern]] = {}

    def find(self, stream: list[Any], i: int, end: int, count: int) -> tuple[array[int], array[int]] | None:
        """(indices of names, source lines) of the ``count`` instructions in these words; None if they are new."""
        for pattern in self._known.get((i, end), ()):
            sites = pattern.sites(stream, count)
            if sites is not None:
                return pattern.whats, sites
        return None

    def add(
        self, stream: list[Any], i: int, end: int, name: Callable[[int], tuple[int, int]]
    ) -> tuple[array[int], array[int]]:
        """Remember these words. Returns the same as `find`."""
        if len(self._known) >= MAX_LENGTHS:
            self._known.clear()
        pattern = StreamPattern(stream, i, end, name)
        self._known[i, end] = [pattern, *self._known.get((i, end), [])[: MAX_PATTERNS - 1]]
        return pattern.whats, pattern.first_sites


def _places(positions: list[int]) -> list[range]:
    """The positions as ranges. A loop of one op makes positions at equal distances."""
    places, last = [], len(positions) - 1
    k = 0
    while k < last:
        end, step = k + 1, positions[k + 1] - positions[k]
        while end < last and positions[end + 1] - positions[end] == step:
            end += 1
        places.append(range(positions[k], positions[end] + 1, step))
        k = end + 1
    return places if k > last else [*places, range(positions[k], positions[k] + 1)]


def _words(places: list[range], offset: int) -> Callable[[list[Any]], Any]:
    """A function that returns the words at these places. Slices take a tenth of the time of single words."""
    keys: list[Any] = []
    for place in places:
        if len(place) < SHORTEST_SLICE:
            keys += [k + offset for k in place]
        else:
            keys.append(slice(place.start + offset, place.stop + offset, place.step))
    return itemgetter(*keys) if keys else lambda stream: None


def pack(stretches: list[tuple[Stretch, list[int]]], names: list[EventName], weights: Any) -> PackedEvents:
    """Pack stretches with the times of their marks. Updates ``weights``, which has an entry for each name."""
    whats, sites, heads = array("i"), array("i"), array("q")
    groups: list[_Rows] = []
    known: dict[tuple[int, int], _Rows] = {}
    for stretch, times in stretches:
        count = len(stretch.whats)
        key = (stretch.whats[0], stretch.sites[0]) if count == 1 else (id(stretch.whats), id(stretch.sites))
        detailed = len(times) == count + 1 > 2
        group = None if detailed else known.get(key)
        if group is None:
            group = _Rows(len(whats), count, times if detailed else None)
            groups.append(group)
            whats.extend(stretch.whats)
            sites.extend(stretch.sites)
            if not detailed:
                known[key] = group
        began, ended = times[0], times[-1]
        group.uses += 1
        group.spent += ended - began
        heads.extend((stretch.execute, stretch.queued, stretch.fragment, stretch.level, began, ended, *group.place))
    what, site = (np.frombuffer(numbers, dtype=np.int32) for numbers in (whats, sites))
    rows = np.empty(len(what), dtype=EVENT_FIELDS)
    rows["what"], rows["site"] = what, site
    rows["ended"], parts = _divide(groups, what, weights)
    lines = set(np.unique(site).tolist()) - {0}
    return PackedEvents(
        heads.tobytes(), rows.tobytes(), _shares(names, what, groups, parts), lines, _longest(names, what, groups)
    )


class _Rows:
    """The rows of stretches that are alike, which are sent once."""

    __slots__ = ("place", "spent", "times", "uses")

    def __init__(self, first: int, count: int, times: list[int] | None) -> None:
        #: the first row, and how many there are
        self.place = first, count
        #: when each began, and the last one ended, if that was measured
        self.times = times
        #: how many stretches have these rows, and their nanoseconds
        self.uses = self.spent = 0

    def measured(self) -> Any:
        """How long each event took; None if that was not measured."""
        if self.times is not None:
            return np.diff(self.times)
        return np.array([self.spent // self.uses]) if self.place[1] == 1 else None


def _divide(groups: list[_Rows], what: Any, weights: Any) -> tuple[Any, Any]:
    """Of each row: (when it ended, how long it took), as parts of the time of its stretch."""
    exact = [
        (slice(first, first + count), took)
        for first, count, took in ((*group.place, group.measured()) for group in groups)
        if took is not None
    ]
    for rows, took in exact:
        old = weights[what[rows]]
        # the mean with the value before, so that one interruption does not count for long
        weights[what[rows]] = np.maximum(np.where(old > 0, (old + took) / 2, took), 1)
    spent = weights[what]
    spent[spent == 0] = UNMEASURED_NS
    for rows, took in exact:
        spent[rows] = took
    if not groups:
        return spent, spent
    first, counts = np.array([group.place for group in groups]).T
    spent /= np.repeat(np.maximum(np.add.reduceat(spent, first), 1), counts)
    passed = np.cumsum(spent)
    passed -= np.repeat(passed[first] - spent[first], counts)
    return passed, spent


def _longest(names: list[EventName], what: Any, groups: list[_Rows]) -> tuple[int, str]:
    """(nanoseconds, call) of the longest instruction or section; (0, "") if none was measured."""
    longest = 0, ""
    for group in groups:
        took = group.measured()
        at = 0 if took is None else int(took.argmax())
        name = names[what[group.place[0] + at]]
        if took is not None and took[at] > longest[0] and name.kind in ("op", "section"):
            longest = int(took[at]), name.text
    return longest


def _shares(names: list[EventName], what: Any, groups: list[_Rows], parts: Any) -> list[tuple[str, int, int, int]]:
    """(family, events, nanoseconds, bytes). Moves run beside the instructions: their family is one of `TRANSFERS`."""
    totals: dict[str, list[int]] = {}
    counts = [group.place[1] for group in groups]
    uses = np.repeat(np.array([group.uses for group in groups], dtype=np.int64), counts)
    spent = np.repeat(np.array([group.spent for group in groups], dtype=np.int64), counts) * parts
    events = np.bincount(what, weights=uses, minlength=len(names))
    times = np.bincount(what, weights=spent, minlength=len(names))
    for index in np.flatnonzero(events).tolist():
        name, count = names[index], int(events[index])
        moved = DEVICE_TRANSFER if name.ends_on_device else TRANSFER
        total = totals.setdefault(moved if name.kind == "move" else name.family, [0, 0, 0])
        total[0] += count
        total[1] += int(times[index])
        total[2] += count * name.nbytes
    return [(name, total[0], total[1], total[2]) for name, total in totals.items()]
