"""Random programs with gradients give torch's results, in every setting of GT.

``GT_SEEDS=5000 pytest tests/test_gradient_programs.py`` tries that many seeds of each test instead of the usual few.
A failing program is shrunk and printed as a script; its lines belong into `tests.support.gradient_rows`.
"""

from __future__ import annotations

import functools
import gc
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import gt.testing
from gt.worker.core import Worker
from tests.support import gradient_programs as programs
from tests.support.gradient_programs import (
    COMPILABLE,
    MIXED,
    REPEATED,
    SETTINGS,
    WITHOUT_TEMPLATES,
    Program,
    Setting,
    Step,
)
from tests.support.gradient_rows import ROWS

pytestmark = pytest.mark.filterwarnings("ignore")  # torch warns about what programs do on purpose


def seeds(usual: int, first: int = 0) -> Any:
    count = int(os.environ.get("GT_SEEDS", usual))
    return pytest.mark.parametrize("seed", range(first, first + count))


@pytest.fixture
def small_heap() -> Iterator[None]:
    """A recording searches all live objects for tensors; torch's million objects are left out."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def check(program: Program, problem: Callable[[Program], str]) -> None:
    """Fail with a small program that has the same problem."""
    if problem(program):
        small = programs.shrunk(program, problem)
        pytest.fail(f"{problem(small)}\n\n{programs.source(small)}", pytrace=False)


@seeds(220)
def test_values_and_gradients_are_torchs(seed: int, tmp_path: Any) -> None:
    setting = SETTINGS[seed % len(SETTINGS)]
    check(programs.generate(seed), lambda program: programs.difference(program, setting, str(tmp_path)))


@seeds(25)
def test_the_same_bits_with_templates_and_without(seed: int, tmp_path: Any) -> None:
    def problem(program: Program) -> str:
        return programs.bits_differ(program, SETTINGS[0], WITHOUT_TEMPLATES, str(tmp_path))

    check(programs.generate(seed, REPEATED), problem)


@seeds(15)
def test_compiled_functions(seed: int, tmp_path: Any, small_heap: None) -> None:
    """With numpy, where a function is recorded and replayed; `test_workers_that_compile` compiles it."""
    problem = functools.partial(programs.compiled_difference, setting=SETTINGS[1], folder=str(tmp_path))
    check(programs.generate(seed, COMPILABLE), problem)


@seeds(20)
def test_autocast(seed: int, tmp_path: Any) -> None:
    check(programs.generate(seed, MIXED), lambda program: programs.difference(program, SETTINGS[0], str(tmp_path)))


@pytest.mark.parametrize("name", ROWS)
def test_programs_that_failed_once(name: str, tmp_path: Any) -> None:
    program = Program((), tuple(Step("row", line) for line in ROWS[name].strip().splitlines()), ())
    theirs = programs.oracle(program)
    assert not any(theirs.raised)
    for setting in SETTINGS:
        assert not programs.difference(program, setting, str(tmp_path), theirs)


# -- long tests ----------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.timeout(600)
@seeds(240, first=10_000)
def test_every_setting(seed: int, tmp_path: Any) -> None:
    program = programs.generate(seed)
    for setting in SETTINGS:
        check(program, lambda program, setting=setting: programs.difference(program, setting, str(tmp_path)))


@pytest.mark.long
@pytest.mark.timeout(600)
@seeds(100, first=10_000)
def test_templates_at_length(seed: int, tmp_path: Any) -> None:
    test_the_same_bits_with_templates_and_without(seed, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(600)
@seeds(100, first=10_000)
def test_compiled_functions_at_length(seed: int, tmp_path: Any, small_heap: None) -> None:
    test_compiled_functions(seed, tmp_path, small_heap)


@pytest.mark.long
@pytest.mark.timeout(600)
@seeds(100, first=10_000)
def test_autocast_at_length(seed: int, tmp_path: Any) -> None:
    test_autocast(seed, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["all", "auto"])
@seeds(12, first=10_000)
def test_workers_that_compile(
    seed: int, mode: str, tmp_path: Any, small_heap: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with ``GT_COMPILE=1`` and ``GT_AUTO_COMPILE=1``."""
    monkeypatch.setenv("GT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(gt.testing, "Worker", functools.partial(Worker, levels=mode))
    setting = Setting("a worker that compiles")
    plain = functools.partial(programs.difference, setting=setting, folder=str(tmp_path))
    check(programs.generate(seed, REPEATED), plain)
    compiled = functools.partial(programs.compiled_difference, setting=setting, folder=str(tmp_path))
    check(programs.generate(seed, COMPILABLE), compiled)
