"""The benchmarks of repeated steps: their processes run for real, and the figures follow from the measured times."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import gt
from benchmarks.core import results
from benchmarks.hot import null, replay, rounds
from benchmarks.hot.rows import GOALS, ROWS, WORKS
from benchmarks.simulation import load
from tests.support.processes import ROOT
from tests.support.processes import environment as clean

near = pytest.approx


def run(script, *words):
    """(exit code, output, errors) of a script, as a user starts it."""
    command = [sys.executable, str(ROOT / "benchmarks" / script), *map(str, words)]
    process = subprocess.run(command, capture_output=True, text=True, env=clean(CUDA_VISIBLE_DEVICES=""))
    return process.returncode, process.stdout, process.stderr


@pytest.mark.long
def test_rows_are_measured_in_turns(tmp_path):
    code, output, errors = run(
        *("compilation_benchmark.py", "--quick", "--only", "adds", "--rows", "template"),
        *("--output-dir", tmp_path, "--json", tmp_path / "copy"),
    )
    assert code == 0, errors
    assert "GT as it is" in output
    assert "torch eager" in output
    data = results.load(tmp_path / "copy")
    assert data["status"] == "complete"
    adds = data["results"]["adds"]
    assert list(adds) == ["torch", "template", "goals"]
    for row in ("torch", "template"):
        assert len(adds[row]["timing"]["samples_s"]) == rounds.QUICK.rounds
        assert adds[row]["warmup_s"] > 0
    assert adds["template"]["hot"] > 0.5
    pairs = zip(adds["template"]["timing"]["samples_s"], adds["torch"]["timing"]["samples_s"], strict=True)
    assert adds["template"]["ratio"]["torch"] == near(sorted(o / t for o, t in pairs)[1])


@pytest.mark.long
def test_torch_alone(tmp_path):
    words = ("--quick", "--only", "mlp", "--rows", "torch", "--rounds", 2, "--output-dir", tmp_path)
    code, output, errors = run("pytorch_baseline.py", *words)
    assert code == 0, errors
    (record,) = tmp_path.glob("pytorch_baseline_*.json")
    assert list(json.loads(record.read_text())["results"]["mlp"]) == ["torch", "goals"]
    assert "GT" not in output
    code, _, errors = run("pytorch_baseline.py", "--rows", "template")
    assert code == 2
    assert "template" in errors


def test_bad_input_is_refused(tmp_path):
    code, _, errors = run("compilation_benchmark.py", "--rounds", 0, "--output-dir", tmp_path)
    assert code == 2
    assert "--rounds 0: more than 0" in errors


def test_nothing_to_measure_is_refused(tmp_path):
    code, output, errors = run("compilation_benchmark.py", "--only", "mini-gpt", "--output-dir", tmp_path)
    assert code == 2
    assert "--only mini-gpt: nothing to measure, since this needs a GPU" in errors
    assert "VALID" not in output.upper()
    assert not list(tmp_path.iterdir())


def taken(**samples):
    return {name: rounds.Taken(ROWS[name.replace("_", "-")], samples=values) for name, values in samples.items()}


def test_a_goal_is_held_to_the_median_of_the_rounds():
    figures = taken(torch=[1.0, 2.0, 1.0], template=[1.2, 2.4, 3.0], compiled=[0.5, 3.0, 1.5])
    held = {goal.row: value for goal, value in rounds.goals("cpu", "mlp", figures)}
    assert held == {"template": near(1.2), "compiled": near(1.5)}
    lines = {line[0]: line[3] for line in rounds.shown("cpu", "mlp", figures)}
    assert lines[ROWS["template"].about] == "<= 1.3 reached"
    assert lines[ROWS["compiled"].about] == "<= 1 MISSED"


def test_a_row_that_fails_is_left_out():
    figures = taken(torch=[1.0], template=[])
    figures["template"].error = "out of memory"
    assert rounds.record("mlp", figures["template"], figures, 3)["error"] == "out of memory"
    assert rounds.shown("cpu", "mlp", figures)[1][-1] == "out of memory"
    assert "not measured" in rounds.shown("cpu", "mlp", figures)[1][3]


def test_goals_name_rows_and_programs_there_are():
    for goal in GOALS:
        assert {goal.row, goal.against} <= set(ROWS)
        assert goal.work in WORKS


def test_a_repetition_is_one_message_for_the_dispatcher_and_the_worker():
    program = replay.recorded(4)
    for workers in (1, 2):
        assert len(replay.dispatcher(program, workers)) == 4
    drive = load.Drive(2)
    for frames in (program.opening, *program.rounds):
        load_ = drive.run(frames)
    assert load_.messages <= 4
    assert len(replay.worker(program)) == 4


def test_a_system_that_computes_nothing():
    with null.system() as session:
        rate, client_us = replay.rate(replay.step, 2)()
        assert rate > 0
        assert client_us > 0
        assert gt.debug.get_worker_stats()["worker 0"]["hot_instructions"] > replay.OPS
        assert min(replay.nothing_repeats(session, 2, 1)) > 0
        assert session.outbox.templates.enabled
