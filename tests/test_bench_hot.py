"""The benchmarks of repeated steps: their processes run for real, and the figures follow from the measured times."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from typing import ClassVar

import pytest

import gt
from benchmarks.core import results
from benchmarks.hot import figures, null, programs, replay, rounds
from benchmarks.hot.rows import GOALS, ROWS, WORKS
from benchmarks.simulation import load
from gt.testing import Cluster
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
def test_rows_of_several_programs_are_warmed_up_together(tmp_path):
    code, output, errors = run(
        *("compilation_benchmark.py", "--quick", "--together", "--only", "adds", "mlp-sgd", "--rows", "template"),
        *("--output-dir", tmp_path, "--json", tmp_path / "copy"),
    )
    assert code == 0, errors
    data = results.load(tmp_path / "copy")
    assert data["config"]["together"] is True
    for name in ("adds", "mlp-sgd"):
        assert len(data["results"][name]["template"]["timing"]["samples_s"]) == rounds.QUICK.rounds
        assert data["results"][name]["template"]["ratio"]["torch"] > 0
    assert output.index(WORKS["adds"].about) < output.index(WORKS["mlp-sgd"].about)


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


def test_a_cold_start_is_measured_alone(tmp_path):
    code, _, errors = run("compilation_benchmark.py", "--cold", "--together", "--output-dir", tmp_path)
    assert code == 2
    assert "--together does at the same time" in errors
    assert not list(tmp_path.iterdir())


def test_nothing_to_measure_is_refused(tmp_path):
    code, output, errors = run("compilation_benchmark.py", "--only", "mini-gpt", "--output-dir", tmp_path)
    assert code == 2
    assert "--only mini-gpt: nothing to measure, since this needs a GPU" in errors
    assert "VALID" not in output.upper()
    assert not list(tmp_path.iterdir())


def taken(**samples):
    return {name: rounds.Taken(ROWS[name.replace("_", "-")], samples=values) for name, values in samples.items()}


def held(device, work, rows):
    return {(goal.row, goal.figure): value for goal, value in figures.goals(device, work, rows)}


def test_a_goal_is_held_to_the_median_of_the_rounds():
    rows = taken(torch=[1.0, 2.0, 1.0], template=[1.2, 2.4, 3.0], compiled=[0.5, 3.0, 1.5])
    assert held("cpu", "mlp", rows) == {("template", "time"): near(1.2), ("compiled", "time"): near(1.5)}
    lines = [figures.goal_line(goal, value) for goal, value in figures.goals("cpu", "mlp", rows)]
    assert lines == [
        "mlp template, time against torch <= 1.3 reached: 1.200",
        "mlp compiled, time against torch <= 1 MISSED: 1.500",
    ]


def test_spread_memory_and_starts_have_goals_of_their_own():
    rows = taken(torch=[1.0], torch_compile=[1.0], torch_best=[1.0, 1.0, 1.0, 1.0], compiled=[0.8, 1.0, 1.0, 1.2])
    rows = {name.replace("_", "-"): row for name, row in rows.items()}
    best, compiled = rows["torch-best"], rows["compiled"]
    best.peaks = [{"allocated": 6, "reserved": 8}, {"allocated": 5, "reserved": 8}]
    compiled.peaks = [{"allocated": 9, "reserved": 10}, {"allocated": 4, "reserved": 10}]
    rows["torch-compile"].warm, compiled.warm = {"first_step_s": 20.0}, {"warmup_s": 30.0}
    assert held("cuda", "mini-gpt", rows)["compiled", "cold start"] is None  # the caches were not empty
    rows["torch-compile"].cached, compiled.cached = {"first_step_s": 5.0}, {"warmup_s": 10.0}
    values = held("cuda", "mini-gpt", rows)
    assert values["compiled", "more spread"] == near(0.1)  # quartiles 0.95 and 1.05 of a median of 1
    assert values["compiled", "peak memory"] == near(1.5)
    assert values["compiled", "cold start"] == near(1.5)
    assert values["compiled", "cached start"] == near(2.0)
    assert figures.peak(compiled, "allocated", steady=True) == 4
    data = figures.record("mini-gpt", compiled, rows, 3)
    assert data["peak_bytes"] == {"allocated": 9, "reserved": 10}
    assert data["steady_peak_bytes"] == {"allocated": 4, "reserved": 10}


def test_latencies_and_the_cost_of_reads():
    rows = taken(torch=[1.0], torch_best=[1.0], compiled=[1.0, 1.0])
    rows["torch-best"] = rows.pop("torch_best")
    rows["torch-best"].each, rows["compiled"].each = [2.0] * 100, [1.0] * 99 + [5.0]
    rows["compiled"].read_samples = [1.4, 1.6]
    values = held("cuda", "bert-forward", rows)
    assert values["compiled", "p50"] == near(0.5)
    assert values["compiled", "p99"] == near(0.52)
    assert held("cuda", "decode", rows)["compiled", "cost of reads"] == near(1.5)
    columns, lines = figures.shown(rows)
    assert "p99 us" in columns
    assert "GiB" not in columns  # no line has it
    assert all(len(line) == len(columns) for line in lines)


@pytest.mark.parametrize(("loss", "valid"), [(2.01, True), (2.2, False), (math.nan, False)])
def test_rows_whose_losses_differ_are_not_valid(loss, valid):
    rows = taken(torch=[1.0], template=[1.0])
    rows["torch"].check = {"values": [2.0, 1.0], "tolerance": 0.05}
    rows["template"].check = {"values": [1.99, loss - 1], "tolerance": 0.05}
    judged = figures.record("mlp", rows["template"], rows, 3)["verdict"]
    assert judged["valid"] is valid
    times = "nan" if math.isnan(loss) else "2.0"
    assert valid or f"differ from torch's by {times} times the tolerance" in judged["reasons"][0]["message"]


def test_a_row_that_fails_is_left_out():
    rows = taken(torch=[1.0], template=[])
    rows["template"].error = "out of memory"
    assert figures.record("mlp", rows["template"], rows, 3)["error"] == "out of memory"
    assert figures.shown(rows)[1][1][-1] == "out of memory"
    assert ["not measured" in figures.goal_line(*pair) for pair in figures.goals("cpu", "mlp", rows)] == [True]


class FakeProcess:
    """A process of a row: its step time is that of its mode."""

    started: ClassVar[list[tuple[str, str, str]]] = []
    step_s: ClassVar[dict[str, float]] = {"": 1.0, "default": 0.5, "reduce-overhead": 0.4}

    def __init__(self, work, row, mode, caches=""):
        self.mode = mode
        self.started.append((row.name, mode, caches))

    def hear(self):
        return {"ready": True}

    def ask(self, act, number=0):
        if self.step_s[self.mode] == 0:
            raise rounds.Ended("no such mode")
        warm = {"first_step_s": 1.0, "warmup_s": 2.0}
        answers = {"warm": warm, "check": {"values": [1.0], "tolerance": 0.1}, "memory": {}}
        return answers.get(act, {"step_s": self.step_s[self.mode]})

    def end(self): ...

    def close(self): ...


@pytest.mark.parametrize("broken", ["", "reduce-overhead"])
def test_torch_at_its_best_is_its_fastest_mode(monkeypatch, broken):
    monkeypatch.setattr(rounds, "Process", FakeProcess)
    monkeypatch.setattr(FakeProcess, "started", [])
    monkeypatch.setattr(FakeProcess, "step_s", {**FakeProcess.step_s, **({broken: 0.0} if broken else {})})
    said = []
    rows = [ROWS["torch"], ROWS["torch-best"]]
    measuring = rounds.Measuring(WORKS["mlp"], rows, rounds.QUICK, True, "caches", said.append)
    measuring.run()
    best = measuring.figures["torch-best"]
    mode = "default" if broken else "reduce-overhead"
    assert (best.mode, best.error) == (mode, "")
    assert best.samples == [FakeProcess.step_s[mode]] * rounds.QUICK.rounds
    assert ("torch-best reduce-overhead is left out: no such mode" in " ".join(said)) == bool(broken)
    assert FakeProcess.started[3:] == [("torch-best", mode, "caches")]  # the second start; torch eager has no caches
    assert figures.record("mlp", best, measuring.figures, 1)["mode"]["chosen"] == mode


def test_modes_are_the_same_without_a_gpu(monkeypatch):
    monkeypatch.setattr(rounds, "Process", FakeProcess)
    monkeypatch.setattr(FakeProcess, "started", [])
    rounds.Measuring(WORKS["mlp"], [ROWS["torch-best"]], rounds.QUICK, False, "", print).run()
    assert FakeProcess.started == [("torch-best", "default", "")]


def test_goals_name_rows_and_programs_there_are():
    for goal in GOALS:
        assert {goal.row, goal.against} <= set(ROWS)
        assert goal.work in WORKS
        assert goal.figure in figures.FIGURES
    made = {*programs.TASKS, "adds", "decode", "decode-16", "resnet18-forward", "bert-forward"}
    assert set(WORKS) == made


@pytest.mark.parametrize("work", ["mlp-sgd", "convnet", "lstm", "bert", "vit", "resnet18", "decode-16", "bert-forward"])
def test_programs_of_torch_and_gt_compute_the_same(work):
    checks = {}
    with Cluster(workers=1, seed=0, backend="torch").client():
        for row in ("torch", "template"):
            program = programs.make(work, ROWS[row], "")
            assert program.run(2)["step_s"] > 0
            checks[row], tolerance = program.check()
    assert checks["template"] == near(checks["torch"], abs=tolerance * max(1, abs(checks["torch"][0])))


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
