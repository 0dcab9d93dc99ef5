"""Sections for whose instructions the device waits become graphs by themselves, as long as there is memory for them."""

from __future__ import annotations

import pytest
import torch

from gt.types import TensorType, float32
from gt.worker.hot.compiler import Compiler
from gt.worker.hot.level_switch import HOT_RUNS
from gt.worker.hot.levels import Levels
from gt.worker.hot.program import interpret
from gt.worker.hot.section import Section
from gt.worker.hot.starved import MAX_SECTION_SHARE, MAX_SHARE, MIN_CALLS, MIN_KEPT_UP, WINDOW, StarvedSections
from gt.worker.shell import _levels_mode
from tests.test_hot_graphs import Graphs
from tests.test_hot_levels import ENGINE, section

SIDE = 8
TOTAL = 1 << 20


class Device:
    def __init__(self) -> None:
        self.keeps_up, self.free = True, TOTAL
        self.starved = StarvedSections(lambda: self.keeps_up, lambda: (self.free, TOTAL))


def chain(calls: int = MIN_CALLS, side: int = SIDE) -> Section:
    """x + x, and so on."""
    t = TensorType((side, side), float32)
    rows = [("add", (t, t), (k, k), (k + 1,), False, {}) for k in range(calls)]
    return section(*rows, inputs=1, results=(calls,))


def asked(device: Device, which: Section, runs: int) -> list[bool]:
    return [device.starved.starves(which) for _ in range(runs)]


def test_a_device_that_waits() -> None:
    device, which = Device(), chain()
    assert device.starved.fits(which)
    assert asked(device, which, MIN_KEPT_UP + 1) == [False] * (MIN_KEPT_UP - 1) + [True, True]


def test_a_device_that_is_busy() -> None:
    device, which = Device(), chain()
    device.keeps_up = False
    assert not any(asked(device, which, 3 * WINDOW))
    device.keeps_up = True  # later it is not
    assert asked(device, which, MIN_KEPT_UP)[-1]


def test_a_device_that_is_busy_now_and_then() -> None:
    device, which, answers = Device(), chain(), []
    for k in range(5 * WINDOW):
        device.keeps_up = k % 2 == 0
        answers.append(device.starved.starves(which))
    assert not any(answers)


@pytest.mark.parametrize(
    ("calls", "side", "fits"), [(MIN_CALLS - 1, SIDE, False), (MIN_CALLS, 64, False), (40, 4, True)]
)
def test_which_sections_fit(calls, side, fits) -> None:
    which = chain(calls, side)
    assert Device().starved.fits(which) is fits
    assert fits or calls < MIN_CALLS or which.created_bytes() > MAX_SECTION_SHARE * TOTAL


def test_the_memory_of_all_graphs_is_limited() -> None:
    device, nbytes = Device(), chain().created_bytes()
    allowed = int(MAX_SHARE * TOTAL / nbytes)
    sections = [chain() for _ in range(allowed + 1)]
    last = [asked(device, which, WINDOW)[-1] for which in sections]
    assert last == [True] * allowed + [False]
    device.starved.forget(sections[0])
    assert any(asked(device, sections[-1], WINDOW))


def test_a_device_without_free_memory() -> None:
    device, which = Device(), chain()
    device.free = TOTAL // 4
    assert not any(asked(device, which, 3 * WINDOW))
    device.free = TOTAL
    assert any(asked(device, which, WINDOW))


@pytest.fixture
def levels(monkeypatch) -> tuple[Levels, Device, Graphs]:
    device, graphs = Device(), Graphs()
    monkeypatch.setattr("gt.worker.hot.levels.on_engine", lambda _: device.starved)
    levels = Levels(ENGINE, "starved")
    levels._compiler = Compiler(ENGINE, graphs)
    return levels, device, graphs


def run(levels: Levels, which: Section, runs: int) -> list[bool]:
    """Which of the runs were not interpreted; all have the interpreter's values."""
    x, fast = torch.rand(SIDE, SIDE), []
    with torch.no_grad():
        for _ in range(runs):
            results = levels.run(which, [x], [], {})
            fast.append(results is not None)
            assert results is None or torch.equal(results[0], interpret(which, [x], [])[0])
            del results  # otherwise the graph must not overwrite it
    return fast


def test_a_section_becomes_a_graph_and_is_never_compiled(levels) -> None:
    levels, _, graphs = levels
    fast = run(levels, chain(), MIN_KEPT_UP + HOT_RUNS + 5)
    assert fast.index(True) == MIN_KEPT_UP + HOT_RUNS - 1
    assert all(fast[fast.index(True) :])
    assert graphs.captures == 1
    assert [entry["level"] for entry in levels.stats()] == ["graph"]
    assert levels._compiler._thread is None


def test_a_busy_device_has_no_graphs(levels) -> None:
    levels, device, graphs = levels
    device.keeps_up = False
    assert not any(run(levels, chain(), 40))
    assert not graphs.captures


def test_moves_end_the_graphs(levels) -> None:
    """What a graph overwrites in its next run may still be on its way to another worker."""
    levels, _, _ = levels
    which = chain()
    assert run(levels, which, 30)[-1]
    levels.begin_moves()
    assert not any(run(levels, which, 40))
    assert levels.stats() == []
    levels.begin_moves()


@pytest.mark.parametrize(
    ("own_gpu", "setting", "mode"),
    [
        (True, {}, "starved"),
        (False, {}, "off"),
        (True, {"GT_AUTO_COMPILE": "0"}, "off"),
        (True, {"GT_AUTO_COMPILE": "1"}, "auto"),
        (True, {"GT_AUTO_COMPILE": "graphs"}, "graphs"),
        (True, {"GT_COMPILE": "1", "GT_AUTO_COMPILE": "0"}, "all"),
    ],
)
def test_the_mode_of_a_worker(own_gpu, setting, mode, monkeypatch) -> None:
    for name in ("GT_COMPILE", "GT_AUTO_COMPILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in setting.items():
        monkeypatch.setenv(name, value)
    assert _levels_mode(own_gpu) == mode
