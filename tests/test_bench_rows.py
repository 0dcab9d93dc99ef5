"""The rows of the benchmarks: what cannot be measured has an error instead of a value, and the rest is measured."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from benchmarks import sharding
from benchmarks.autoshard import exposed
from benchmarks.autoshard.exposed import Waits
from benchmarks.core import audit, environment, rows
from benchmarks.core.ranks import BadInput
from benchmarks.core.results import Record, problems
from benchmarks.core.rows import Row, quotient, run_all
from gt.events.breakdown import KINDS, Breakdown
from tests.test_kernel_traces import device_events, trace_of


@pytest.fixture
def record(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> Record:
    monkeypatch.setattr(environment, "git", lambda: {"commit": "a" * 40, "dirty": False})
    about = environment.record({"gt": 0})
    return Record(tmp_path, suite="test", name="rows", world_size=1, config={"device": "cpu"}, environment=about)


def written(record: Record) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(record.path.read_text())
    assert problems(data) in (None, [])
    assert audit.problems(data) == []
    return data


def good() -> Iterator[Row]:
    yield Row("good", [1.0, 1.02, 1.01], "ms", "<=", 2.0)


def bad() -> Iterator[Row]:
    yield Row("before", [3.0], "ms")
    raise ValueError("no such thing")


def test_a_row_that_raises_is_recorded_and_the_others_go_on(record: Record, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_all(record, "Rows", {"bad": bad(), "good": good()}) == 1
    data = written(record)
    assert (data["status"], data["error"]) == ("failed", "bad: ValueError: no such thing")
    before, failed = data["results"]["bad"].values()
    assert before["value"] == 3.0
    assert (failed["value"], failed["samples"], failed["error"]) == (None, [], "ValueError: no such thing")
    assert [reason["code"] for reason in failed["verdict"]["reasons"]] == ["failed"]
    assert data["results"]["good"]["0"]["reached"]
    output = capsys.readouterr()
    assert "no such thing" in output.out, "it is in the table"
    assert 'raise ValueError("no such thing")' in output.err


def test_without_an_error_the_run_is_complete(record: Record) -> None:
    assert run_all(record, "Rows", {"good": good()}) == 0
    data = written(record)
    assert (data["status"], data["error"], data["verdict"]["valid"]) == ("complete", None, True)


def test_bad_input_ends_the_run(record: Record) -> None:
    def misused() -> Iterator[Row]:
        raise BadInput("--port 1: not yours")
        yield

    with pytest.raises(BadInput, match="not yours"):
        run_all(record, "Rows", {"misused": misused(), "good": good()})
    assert (written(record)["status"], written(record)["error"]) == ("failed", "--port 1: not yours")


def test_a_quotient_of_zero_is_an_error() -> None:
    assert quotient("half", 1.0, 2.0, "x", "<=", 0.5).reached
    row = quotient("the same", 3.0, 0.0, "x without", "<=", 0.5)
    assert (row.value, row.reached, row.error) == (None, None, "3 against 0: there is no quotient")
    assert row.error in row.cells()
    assert row.error in row.line()


@pytest.mark.parametrize("measured", [[0.004, 0.002], [0.0, 0.0]])
def test_waits_of_nothing_have_no_quotient(measured: list[float], record: Record, monkeypatch: Any) -> None:
    seconds = iter(measured)
    fake: Callable[..., Waits] = lambda *_: Waits([next(seconds)] * 3, [0.1] * 3, True)
    monkeypatch.setattr(sharding, "waits", fake)
    code = rows.run_all(record, "Sharding", {"exposed": sharding.exposed(sharding.QUICK)})
    figures = list(written(record)["results"]["exposed"].values())
    assert figures[0]["name"].endswith("waiting for collectives (from kernels)")
    assert [figure["value"] for figure in figures[:2]] == [pytest.approx(1e3 * each) for each in measured]
    if measured[0]:
        assert (code, figures[2]["value"], figures[2]["reached"]) == (0, pytest.approx(0.5), True)
    else:
        assert (code, figures[2]["value"], figures[2]["error"]) == (1, None, "0 against 0: there is no quotient")


@pytest.mark.parametrize("known", [True, False])
def test_waits_come_from_kernels_only_where_events_do_not_show_them(
    known: bool, tmp_path: pathlib.Path, monkeypatch: Any
) -> None:
    breakdown = Breakdown(0, 4_000_000, dict.fromkeys(KINDS, 0.0) | {"exposed communication": 1e6}, waits_known=known)
    traced = iter([9.0, 0.002, 0.003])
    monkeypatch.setattr(exposed, "recorded_step", lambda step: breakdown)
    monkeypatch.setattr(exposed, "traced_step", lambda step, folder: next(traced))
    measured = exposed._measured(lambda: None, 2, tmp_path)
    assert measured.from_kernels is not known
    assert measured.exposed == ([0.001, 0.001] if known else [0.002, 0.003]), "the first trace is not counted"
    assert len(measured.whole) == 2


def test_the_mean_over_the_workers(tmp_path: pathlib.Path, monkeypatch: Any) -> None:
    @contextmanager
    def trace(path: pathlib.Path, kernels: bool) -> Iterator[None]:
        yield
        assert kernels
        path.write_text(json.dumps(trace_of({0: device_events(1), 1: device_events(2)[:2]})))

    monkeypatch.setattr(exposed.gt.debug, "trace", trace)
    assert exposed.traced_step(lambda: None, tmp_path) == pytest.approx((20_500 + 30_000) / 2 / 1e9)
