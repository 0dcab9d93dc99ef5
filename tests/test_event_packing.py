"""Packed events: what a listener unpacks is what the worker recorded, also where stretches share their rows."""

from __future__ import annotations

import itertools
from array import array
from typing import Any

import numpy as np
import pytest

from gt.events.table import COLUMNS, batch_rows
from gt.wire.event_messages import EVENT_FIELDS, STRETCH_COLUMNS, EventBatch
from gt.wire.structures import EventName
from gt.worker.engines.numpy import NumpyEngine
from gt.worker.event_packing import PackedEvents, StreamPattern, Stretch, pack
from gt.worker.recording import EventRecorder
from gt.worker.space import ClientSpace

NAMES = [EventName("op", family, family, family, "", 8) for family in ("matmul", "elementwise", "reduction")]


def unpacked(packed: PackedEvents) -> list[dict[str, int]]:
    batch = EventBatch(0, 1, 0, 0, 0, 0, 0, NAMES, [], packed.stretches, packed.rows, packed.shares, 0, {}, 0)
    return [dict(zip(COLUMNS, row, strict=True)) for row in batch_rows(batch).tolist()]


def lengths(packed: PackedEvents) -> tuple[int, int]:
    """How many stretches and rows there are."""
    rows = len(packed.rows) // np.dtype(EVENT_FIELDS).itemsize
    return len(packed.stretches) // 8 // len(STRETCH_COLUMNS), rows


def test_random_stretches() -> None:
    """Every event is there, in the order and the time of its stretch; those of detailed stretches are exact."""
    rng = np.random.default_rng(0)
    for _ in range(30):
        programs = [
            tuple(array("i", rng.integers(0, 3, count).tolist()) for _ in range(2)) for count in rng.integers(1, 9, 4)
        ]
        weights, entries, now = np.zeros(len(NAMES)), [], 1_000
        for number in range(1, int(rng.integers(2, 40))):
            whats, sites = programs[rng.integers(4)]
            marks = now + np.cumsum(rng.integers(0, 10**9, len(whats) + 1))
            times = marks.tolist() if rng.integers(4) == 0 else [int(marks[0]), int(marks[-1])]
            entries.append((Stretch(times, whats, sites, number, now, number % 2, 1), times))
            now = int(marks[-1]) + 5
        packed = pack(entries, NAMES, weights)
        rows = unpacked(packed)
        assert lengths(packed)[0] == len(entries)
        for stretch, times in entries:
            own, rows = rows[: len(stretch.whats)], rows[len(stretch.whats) :]
            assert [row["what"] for row in own] == list(stretch.whats)
            assert [row["site"] for row in own] == list(stretch.sites)
            assert {(row["execute"], row["fragment"], row["level"]) for row in own} == {
                (stretch.execute, stretch.fragment, 1)
            }
            edges = [own[0]["started"], *(row["ended"] for row in own)]
            assert [row["started"] for row in own] == edges[:-1]
            assert edges == sorted(edges)
            assert edges == times if len(times) == len(edges) else (edges[0], edges[-1]) == (times[0], times[-1])
        assert not rows
        spent = sum(times[-1] - times[0] for _, times in entries)
        assert abs(sum(share[2] for share in packed.shares) - spent) <= len(packed.shares)
        assert sum(share[1] for share in packed.shares) == sum(len(stretch.whats) for stretch, _ in entries)
        assert packed.sites == {site for stretch, _ in entries for site in stretch.sites} - {0}


def test_stretches_that_are_alike_share_their_rows() -> None:
    whats, sites = array("i", [0, 1, 2]), array("i", [4, 4, 5])
    alike = [(Stretch([k, k + 9], whats, sites, k, k, 0, 0), [k, k + 9]) for k in range(100)]
    detailed = (Stretch([0, 1, 2, 9], whats, sites, 0, 0, 0, 0), [0, 1, 2, 9])
    single = [(Stretch([k, k + 2], array("i", [1]), array("i", [4]), 0, 0, 0, 0), [k, k + 2]) for k in range(50)]
    packed = pack([*alike, detailed, *single], NAMES, np.zeros(3))
    assert lengths(packed) == (151, 3 + 3 + 1)
    assert packed.shares[1][:2] == ("elementwise", 151)


def test_nothing_recorded() -> None:
    packed = pack([], NAMES, np.zeros(3))
    assert packed == (b"", b"", [], set(), (0, ""))


def pattern_of(stream: list[Any]) -> StreamPattern:
    return StreamPattern(stream, 0, len(stream), lambda code: (code - 16, 4))


def test_a_pattern_recognises_its_stretch() -> None:
    pattern = pattern_of([16, 3, 7, 1, -5, -6, 17, 4, 8, 7])
    assert pattern.sites([16, 3, 9, 1, -7, -8, 17, 4, 10, 9], 2) is pattern.first_sites
    assert list(pattern.sites([16, 5, 9, 1, -7, -8, 17, 6, 10, 9], 2)) == [5, 6]  # other source lines
    assert pattern.sites([16, 3, 9, 1, -7, -8, 18, 4, 10, 9], 2) is None  # another code
    assert pattern.sites([16, 3, 9, 1, -7, -8, 17, 4, 10, 9], 1) is pattern.first_sites  # one depended on a failure


def test_an_instruction_where_frees_were() -> None:
    pattern = pattern_of([16, 3, 7, 1, -5, -6, -7, -8, 17, 4, 8, 7])
    assert list(pattern.whats) == [0, 1]
    assert pattern.sites([16, 3, 7, 1, 18, 3, 9, 7, 17, 4, 8, 7], 3) is None
    assert pattern.sites([16, 3, 7, 1, 18, 3, b"", 7, 17, 4, 8, 7], 3) is None


def test_a_pattern_of_a_loop() -> None:
    """Positions at equal distances are compared as slices, others one by one."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        stream: list[Any] = []
        for _ in range(int(rng.integers(0, 6))):
            frees = [-1] * int(rng.integers(0, 3))
            stream += ([int(rng.integers(16, 19)), int(rng.integers(1, 4)), 7, 1, *frees]) * int(rng.integers(1, 12))
        pattern = pattern_of(stream)
        at = [k for k in range(len(stream)) if stream[k] >= 16]
        assert [stream[k] - 16 for k in at] == list(pattern.whats)
        assert pattern.sites(list(stream), len(at)) is pattern.first_sites
        for k in at:
            assert pattern.sites([*stream[:k], 19, *stream[k + 1 :]], len(at)) is None
            other_line = pattern.sites([*stream[: k + 1], 9, *stream[k + 2 :]], len(at))
            assert other_line is not None
            assert list(other_line) == [9 if j == k else stream[j + 1] for j in at]


def test_frees_at_other_places_are_recognised_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stretches of one length whose frees are at different places: each pattern is made once, and shares its rows."""
    made: list[int] = []
    make = StreamPattern.__init__
    monkeypatch.setattr(StreamPattern, "__init__", lambda *args: made.append(1) or make(*args))
    ticks = itertools.count()
    recorder = EventRecorder(NumpyEngine(), lambda: next(ticks), {})
    events = recorder._events
    events.names, events.codes = [*NAMES], {16: (0, 4), 17: (1, 4)}
    events.new = False
    streams = [[16, 3, 7, 1, -5, 17, 4, 8, 7], [-5, 16, 3, 7, 1, 17, 4, 8, 7], [16, 3, 7, 1, 17, 4, 8, 7, -5]]
    for stream in streams * 5:
        recorder.codes(ClientSpace(shares_memory=False))
        recorder.interpreted(ClientSpace(shares_memory=False), stream, 0, len(stream), 2)
    assert len(made) == len(streams)
    assert len({id(stretch.whats) for stretch in events.stretches}) == len(streams)
    assert all(list(stretch.whats) == [0, 1] and list(stretch.sites) == [3, 4] for stretch in events.stretches)
