"""Results that are written into the memory of freed inputs: compiled code, and graphs."""

from __future__ import annotations

import os
import tempfile

import pytest
import torch

import gt
from gt.testing import Cluster
from gt.worker.hot.compiler import Compiler
from gt.worker.hot.graph import CapturedGraph
from gt.worker.hot.level_switch import HOT_RUNS
from gt.worker.hot.runner import CompiledRunner
from tests.support.shadow import Shadow, client, wait_for_compiler
from tests.test_hot_graphs import Graphs


@pytest.fixture(autouse=True)
def folder(monkeypatch):
    monkeypatch.setenv("GT_CACHE_DIR", os.path.join(tempfile.gettempdir(), f"gt-tests-{os.getuid()}"))
    monkeypatch.setenv("GT_TEMPLATES", "0")
    with torch.no_grad():
        yield


@pytest.fixture(params=["compiled", "graph"])
def shadow(request):
    """Compiled code alone, and in a graph, which a stand-in for CUDA graphs captures."""
    result = Shadow(Cluster(), "all")
    if request.param == "graph":
        result.levels._compiler = Compiler(result.engine, Graphs())
    return result


def _step(shadow: Shadow) -> bool:
    quick = shadow.cut()
    wait_for_compiler(shadow.levels)
    return quick


def _at(shadow: Shadow, x) -> int:
    return shadow.store[x._cell.id].data_ptr()


def _active(shadow: Shadow):
    (switch,) = [t for t in shadow.levels._switches.values() if t.active is not None]
    return switch.active


def test_a_replaced_tensor_keeps_its_address(shadow) -> None:
    with client(shadow.cluster):
        w, g = gt.randn(6, 4), gt.randn(6, 4)
        shadow.begin()
        places, quick = [], []
        for k in range(14):
            w = w - 0.1 / (k + 1) * g.tanh()
            quick.append(_step(shadow))
            places.append(_at(shadow, w))
    assert all(quick[-5:]), shadow.levels.stats()
    assert len(set(places[-5:])) == 1
    active = _active(shadow)
    assert isinstance(active, CapturedGraph | CompiledRunner)
    program = active.program if isinstance(active, CapturedGraph) else active._compiled.program
    assert set(program.donated.values()) == program.mutated
    assert len(program.donated) == 1
    if isinstance(active, CapturedGraph):
        assert not active._copied


def test_two_tensors_that_swap(shadow) -> None:
    """Every result is complete before an input is overwritten."""
    with client(shadow.cluster):
        a, b = gt.randn(5), gt.randn(5)
        shadow.begin()
        for _ in range(8):
            a, b = b * 2, a + b
            _step(shadow)
            a, b = a / 3, b / 3
            _step(shadow)
    assert shadow.quick > 8


def test_an_input_in_use_is_not_overwritten(shadow) -> None:
    with client(shadow.cluster):
        x, y = gt.randn(6), gt.randn(6)
        kept = []
        shadow.begin()
        for k in range(10):
            if k > 5:
                kept.append(x)
            x = x * 0.5 + y
            _step(shadow)
    assert len({id(x) for x in kept}) == 4


def test_a_view_of_an_input_in_use(shadow) -> None:
    """A view shares the memory. Each run checks that, and the program is built again without the donation."""
    with client(shadow.cluster):
        x, y = gt.randn(6, 2), gt.randn(6, 2)
        kept = []
        shadow.begin()
        quick = []
        for k in range(16):
            if k == 6:  # of the worker's memory: compiled code may make a view in the program a separate tensor
                view = shadow.store[x._cell.id].view(12)
                kept.append((view, view.clone()))
            x = x * 0.5 + y
            quick.append(_step(shadow))
    assert all(quick[-4:]), shadow.levels.stats()
    assert all(torch.equal(view, values) for view, values in kept)
    assert any(not switch.donates for switch in shadow.levels._switches.values())


def test_in_the_background(monkeypatch) -> None:
    monkeypatch.setattr("gt.worker.hot.trial.MAX_TIME_RATIO", 1e9)
    shadow = Shadow(Cluster(), "auto")
    with client(shadow.cluster):
        x = gt.randn(300)
        shadow.begin()
        for _ in range(HOT_RUNS + 6):
            x = (x.sin() + x.cos() * x).tanh()
            quick = _step(shadow)
    assert quick, shadow.levels.stats()
