"""The benchmark of pipelines, with small sizes: its figures follow from what the workers recorded."""

from __future__ import annotations

import json
import pathlib

import pytest

from benchmarks import pipeline
from benchmarks.core import results
from benchmarks.pipelines import bubbles, moves, replay, training
from benchmarks.pipelines.timed import Span
from gt.pipeline.schedules import SCHEDULES


def test_a_bubble_from_spans() -> None:
    assert bubbles.measured_bubble([[Span(0, 1), Span(1, 2)], [Span(1, 2), Span(3, 4)]]) == pytest.approx(0.5)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_repeated_steps_travel_in_templates(schedule: str) -> None:
    with replay.repeating(schedule) as system:
        counts = replay.share_in_templates(*system)
    assert counts.in_templates > 1000
    assert counts.share > 0.95, counts


def test_the_costs_of_a_replay(tmp_path: pathlib.Path) -> None:
    assert pipeline.main(["--quick", "--only", "replay", "--output-dir", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("pipeline_*.json")
    figures = json.loads(path.read_text())["results"]["replay"].values()
    assert [f["unit"] for f in figures] == ["of the instructions", *["us an instruction"] * 2] * 2
    assert all(f["value"] > 0 for f in figures)


@pytest.mark.long
def test_the_client_and_scaling(tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pipeline.main(["--quick", "--only", "client", "scaling", "--output-dir", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("pipeline_*.json")
    record = json.loads(path.read_text())
    assert results.problems(record) in (None, [])
    limit, figure = record["results"]["scaling"]["0"], record["results"]["scaling"]["1"]
    assert figure["details"]["losses_differ"] < 1e-5
    assert figure["details"]["machine"] == pytest.approx(limit["value"])
    assert 0 < figure["details"]["of_both"] < 10
    assert "2 stages, 8 microbatches, 2 CPU workers" in capsys.readouterr().out


def test_the_limit_of_the_schedule() -> None:
    """88 products on one worker; on two, stage 1 has 6 for each of 8 microbatches, after 2 and before 3 of stage 0."""
    assert training.schedule_limit() == pytest.approx(88 / 53)


@pytest.mark.long
def test_both_ways_of_moving() -> None:
    """Without a GPU both are through the host; the script itself is what is tested."""
    figures = list(moves.both_ways(pipeline.QUICK))
    assert len(figures) == 2 * 2 * len(moves.COUNTS) + 1
    assert figures[-1].reached


@pytest.mark.long
def test_a_measured_bubble_is_near_its_formula() -> None:
    """With generous bounds, because the machine may be busy: stages in turn would be idle for three quarters."""
    steps = bubbles.run_steps("1f1b", 8, 0.03, 1)
    assert [len(row) for row in steps[0]] == [24] * 4  # F, I and W of each microbatch
    assert 0.2 < bubbles.measured_bubble(steps[0]) < 0.6
