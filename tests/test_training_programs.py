"""Random training loops give torch's results, in every mode of GT.

``GT_SEEDS=5000 pytest tests/test_training_programs.py`` tries that many seeds of each test instead of the usual few. A
failing program is shrunk and printed as a script.
"""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import gt.testing
from gt.dispatcher.plan import signals
from gt.worker.core import Worker
from tests.support import training_programs as programs
from tests.support.training_programs import MODES, PLAIN, SHARDED, WITHOUT_TEMPLATES, Program

pytestmark = pytest.mark.filterwarnings("ignore")  # torch warns about what programs do on purpose


def seeds(usual: int, first: int = 0) -> Any:
    count = int(os.environ.get("GT_SEEDS", usual))
    return pytest.mark.parametrize("seed", range(first, first + count))


@pytest.fixture(autouse=True)
def small_heap(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sharding by itself cuts small tensors too. A recording searches all live objects for tensors; torch's million
    objects are left out."""
    monkeypatch.setattr(signals, "MIN_SHARDED_BYTES", 0)
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def check(program: Program, problem: Callable[[Program], str]) -> None:
    """Fail with a small program that has a problem too."""
    if problem(program):
        small = programs.shrunk(program, problem)
        pytest.fail(f"{problem(small)}\n\n{programs.source(small)}", pytrace=False)


@seeds(40)
def test_values_and_gradients_are_torchs(seed: int, tmp_path: Any) -> None:
    mode = MODES[seed % len(MODES)]
    check(programs.generate(seed), functools.partial(programs.difference, mode=mode, folder=str(tmp_path)))


@seeds(8)
def test_autocast(seed: int, tmp_path: Any) -> None:
    mode = (PLAIN, SHARDED)[seed % 2]  # numpy has no bfloat16
    check(programs.generate(seed, True), functools.partial(programs.difference, mode=mode, folder=str(tmp_path)))


@seeds(8)
@pytest.mark.parametrize("autocast", [False, True])
def test_the_same_bits_with_templates_and_without(seed: int, autocast: bool, tmp_path: Any) -> None:
    def problem(program: Program) -> str:
        return programs.bits_differ(program, PLAIN, WITHOUT_TEMPLATES, str(tmp_path))

    check(programs.generate(seed, autocast), problem)


# -- long tests ----------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.timeout(600)
@seeds(100, first=10_000)
def test_every_mode(seed: int, tmp_path: Any) -> None:
    program = programs.generate(seed)
    for mode in MODES:
        check(program, functools.partial(programs.difference, mode=mode, folder=str(tmp_path)))


@pytest.mark.long
@pytest.mark.timeout(600)
@seeds(60, first=10_000)
def test_autocast_at_length(seed: int, tmp_path: Any) -> None:
    test_autocast(seed, tmp_path)
    test_the_same_bits_with_templates_and_without(seed, True, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("levels", ["all", "auto"])
@seeds(6, first=10_000)
def test_workers_that_compile(seed: int, levels: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As with ``GT_COMPILE=1`` and ``GT_AUTO_COMPILE=1``. The second time, with the code that the first has kept."""
    monkeypatch.setenv("GT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(gt.testing, "Worker", functools.partial(Worker, levels=levels))
    for _ in range(2):
        check(programs.generate(seed), functools.partial(programs.difference, mode=PLAIN, folder=str(tmp_path)))
