from __future__ import annotations

import contextlib
import os
import pathlib
import signal
from collections import Counter
from collections.abc import Iterator
from itertools import groupby
from typing import Any

import pytest

# Several test processes share the cores, so each computes with one thread. It must be set before torch is loaded.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")

from gt.client.stream import configuration
from tests.support.processes import System

#: fixtures that start processes
STARTING = {"stack", "system"}
#: parametrised cases of one test that `--quick` keeps
QUICK_CASES = 2
#: files that `--quick` leaves out: most of their tests start processes, compile, or import what takes seconds
NOT_QUICK = (
    *("test_bench_*", "test_hot_*", "test_compile*", "test_examples_*", "test_docs*", "test_opinfo*", "test_safety*"),
    *("test_*_real*", "test_*_gpu*", "test_system*", "test_failures*", "test_plane*", "test_trace*", "test_threads*"),
    *(
        "test_buckets*",
        "test_recipes*",
        "test_torch_device*",
        "test_training*",
        "test_layers*",
        "test_monitoring*",
        "test_programs*",
    ),
)

# A shell without job control starts a background job with SIGINT ignored. Child processes inherit that, and Ctrl-C
# would never reach those that the tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _no_configuration_is_left() -> Iterator[None]:
    """A configuration, or auto-sharding, would hold for the tests that follow in this process."""
    before = configuration.current
    yield
    if configuration.current is not before:
        configuration.replace((), None)


@pytest.fixture
def stack() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


@pytest.fixture
def system(stack: contextlib.ExitStack) -> System:
    """A server with one numpy worker, which starts faster than a torch worker."""
    system = System(stack)
    system.worker("--backend", "numpy")
    return system


# -- selecting tests -----------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="a few cases of each test that starts no process")
    parser.addoption("--programs", type=pathlib.Path, help="a folder with checkouts, for tests/test_programs.py")


def pytest_ignore_collect(collection_path: pathlib.Path, config: pytest.Config) -> bool | None:
    skipped = config.getoption("--quick") and any(map(collection_path.match, NOT_QUICK))
    return True if skipped else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    if config.getoption("--quick"):
        kept = [item for _, cases in groupby(items, _test) for item in _few(list(cases)) if _starts_nothing(item)]
        chosen = set(kept)
        config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
        items[:] = kept


def _test(item: Any) -> tuple[Any, str]:
    return item.path, getattr(item, "originalname", item.name)


def _few(cases: list[Any]) -> list[Any]:
    return cases[:: -(-len(cases) // QUICK_CASES)]


def _starts_nothing(item: Any) -> bool:
    return STARTING.isdisjoint(item.fixturenames) and item.get_closest_marker("processes") is None


# -- the slowest files ---------------------------------------------------------------------


def pytest_terminal_summary(terminalreporter: Any) -> None:
    seconds: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                seconds[report.nodeid.split("::")[0]] += report.duration
    terminalreporter.section("the ten slowest files, in seconds of one core")
    for name, total in seconds.most_common(10):
        terminalreporter.line(f"{total:8.1f}  {name}")
