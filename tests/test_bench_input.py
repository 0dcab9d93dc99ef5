"""The benchmark of the input pipeline: its figures, and one short run with processes that load."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks import input_pipeline
from benchmarks.core import results
from tests.support.processes import ROOT
from tests.support.processes import environment as clean

near = pytest.approx


def test_the_ratio_is_that_of_neighbouring_samples():
    row = input_pipeline.summary(
        "gt", {"resident_s": [1.0, 2.0, 4.0], "loaded_s": [1.0, 2.2, 4.0], "waited_s": [0.0] * 3}
    )
    assert row["ratio"] == near(1.0)
    assert row["goal"] == {"bound": input_pipeline.GOAL, "reached": True}
    assert not row["verdict"]["valid"]  # the samples vary
    assert input_pipeline.line("gt", row) == ["gt", near(2000), near(2200), near(1.0), True, 0.0, ""]


def test_a_row_is_warm_when_no_step_gets_faster():
    measured = [0.0998, 0.0567, 0.0312, 0.0212, 0.0220, 0.0219]
    assert [input_pipeline.settled(measured[:n]) for n in range(7)] == [False] * 6 + [True]
    assert input_pipeline.settled([1.0] * 4)


def test_what_runs_is_compiled_or_has_a_reason():
    section = {"runs": 9, "length": 40, "level": "graph", "reasons": []}
    assert input_pipeline.still_compiling(section, 8)
    assert not input_pipeline.still_compiling(section, 9)  # it does not run any more
    for change in ({"length": 1}, {"level": "compiled"}, {"reasons": ["not faster"]}):
        assert not input_pipeline.still_compiling(section | change, 8)


def test_a_row_that_fails_is_left_out():
    row = input_pipeline.summary("gt", {"error": "ended with 1"})
    assert input_pipeline.line("gt", row)[-1] == "ended with 1"
    assert len(input_pipeline.line("gt", row)) == len(input_pipeline.COLUMNS)


@pytest.mark.long
def test_a_short_run(tmp_path):
    words = (
        "--rows",
        "torch",
        "template",
        "--batch",
        "2",
        "--side",
        "32",
        "--steps",
        "1",
        "--rounds",
        "2",
        "--patience",
        "20",
    )
    command = [sys.executable, str(ROOT / "benchmarks" / "input_pipeline.py"), *words, "--processes", "1"]
    traced = tmp_path / "trace.json"
    process = subprocess.run(
        [*command, "--output-dir", str(tmp_path), "--trace", str(traced)],
        capture_output=True,
        text=True,
        env=clean(CUDA_VISIBLE_DEVICES=""),
    )
    assert process.returncode == 0, process.stderr
    (record,) = tmp_path.glob("input_pipeline_*.json")
    data = results.load(record)
    assert data["config"]["processes"] == 1
    for row in ("torch", "template"):
        assert len(data["results"][row]["loaded"]["samples_s"]) == 2
        assert data["results"][row]["ratio"] > 0
    assert traced.stat().st_size > 0
