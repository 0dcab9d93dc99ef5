"""``gt bench machine``: a real quick run without a GPU, and its parts alone."""

from __future__ import annotations

import json
import pathlib
import signal
import types

import pytest
import torch

from benchmarks import machine
from benchmarks.core import achievable, audit, environment, results, timing
from benchmarks.core.curves import curves
from benchmarks.core.ranks import BAD_INPUT, DONE, FAILED, INTERRUPTED, World
from benchmarks.node import figures, host_link, products, suite
from tests.support.launches import ONE_THREAD
from tests.support.processes import LONG, Process, alive, wait_until

near = pytest.approx
MEMBERS = [{"host": "here", "gpu": None, "pid": 1}]
ALONE = World(0, 1, 0, torch.device("cpu"), "gloo", members=MEMBERS)


@pytest.mark.long
def test_a_quick_run_without_a_gpu(stack, tmp_path):
    words = ["bench", "machine", "--quick", "--ranks", "1", "--output-dir", str(tmp_path)]
    process = Process("-m", "gt", *words, **ONE_THREAD)
    stack.callback(process.close)
    assert process.end() == DONE, process.output
    (folder,) = tmp_path.iterdir()
    records = {path: json.loads(path.read_text()) for path in folder.glob("*.json")}
    for path, data in records.items():
        assert results.problems(data) == []
        assert audit.problems(data) == []
        assert data["status"] == "complete"
        assert str(path) in process.output
    parts = {name: part for data in records.values() for name, part in data["results"].items()}
    assert set(parts) == {*suite.PARTS, "communication", "training"}
    for dtype in ("fp32", "bf16"):
        rows = parts["products"][dtype]["rows"]
        assert [row["shape"] for row in rows] == [list(shape) for shape in products.QUICK]
        assert parts["products"][dtype]["best"]["tflop_per_s"] == max(row["value"] for row in rows) > 0
    assert all(parts["memory"][name]["value"] > 0 for name in ("write", "copy", "add"))
    assert "needs a GPU" in parts["host_link"]["skipped"]
    (curve,) = parts["sustained"]["curves"]
    assert len(curve["seconds"]) == len(curve["tflop_per_s"]) > 1
    assert "read from a GPU" in parts["sustained"]["gpu_curves"]["skipped"]
    assert all(row["wrong_elements"] == 0 for row in parts["communication"]["allreduce"]["rows"])


def test_a_skipped_part_has_no_verdict_about_the_machine(monkeypatch):
    monkeypatch.setattr(suite.Watch, "facts", lambda watch: {"cpu_others": 1.313})
    parts = {}
    record = types.SimpleNamespace(put=lambda name, key, value: parts.update({key: value}))
    suite.measure(ALONE, "host_link", True, record)
    assert "needs a GPU" in parts["skipped"]
    assert parts["verdict"] == {"valid": True, "reasons": [], "unchecked": []}


# -- the command ---------------------------------------------------------------------------


@pytest.fixture
def commands(monkeypatch, tmp_path):
    """The steps that would run; each writes a file like a record."""
    ran: list[machine.Step] = []

    def run(step, ranks):
        ran.append(step)
        (pathlib.Path(step.words[-1]) / f"{len(ran)}.json").write_text("{}")
        return 0

    monkeypatch.setattr(machine, "run", run)
    monkeypatch.setattr(machine, "REPORT", tmp_path / "report.py")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    return ran


def test_a_failed_step_does_not_end_the_run(commands, monkeypatch, tmp_path, capsys):
    ran = machine.run
    monkeypatch.setattr(machine, "run", lambda step, ranks: ran(step, ranks) or int("pairs" in step.name))
    assert machine.main(["--output-dir", str(tmp_path)]) == FAILED
    names = ["products, memory, host link, sustained", "collectives and pairs", "training tiny", "training small"]
    assert [step.name for step in commands] == names
    output = capsys.readouterr()
    assert "failed: collectives and pairs: exit code 1" in output.err
    assert output.out.count(".json") == 4


def test_an_interrupted_run_reports_what_there_is(commands, monkeypatch, tmp_path, capsys):
    ran = machine.run

    def run(step, ranks):
        ran(step, ranks)
        if "pairs" in step.name:
            raise KeyboardInterrupt
        return 0

    monkeypatch.setattr(machine, "run", run)
    machine.REPORT.write_text("import sys; print(len(sys.argv))")
    assert machine.main(["--output-dir", str(tmp_path)]) == INTERRUPTED
    assert capsys.readouterr().out.count(".json") == 2


ONE_STEP = """
import pathlib, sys
from benchmarks import machine
work = "import os, time; print('step:', os.getpid(), flush=True); time.sleep(300)"
machine.steps = lambda *words: [machine.Step("a step", ["-c", work])]
machine.GRACE_S = 0.2
sys.exit(machine.main(["--ranks", "1", "--output-dir", sys.argv[1]]))
"""


@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM", "SIGKILL"])
def test_no_step_outlives_its_run(stack, tmp_path, how):
    """Only the first process gets the signal, as from a batch system or an impatient user."""
    process = Process("-c", ONE_STEP, str(tmp_path))
    stack.callback(process.close)
    step = int(process.expect("step: ").split()[-1])
    process.kill(signal.Signals[how])
    code = process.end(LONG)
    assert code == (-signal.SIGKILL if how == "SIGKILL" else INTERRUPTED)
    wait_until(lambda: not alive(step), what="the end of the step")


@pytest.mark.usefixtures("commands")
def test_the_report_gets_the_records(tmp_path, capfd):
    machine.REPORT.write_text("import sys; print('report of', len(sys.argv) - 3, sys.argv[-2])")
    assert machine.main(["--quick", "--output-dir", str(tmp_path)]) == DONE
    assert "report of 3 --output-dir" in capfd.readouterr().out


@pytest.mark.usefixtures("commands")
def test_bad_input(tmp_path, capsys):
    assert machine.main(["--ranks", "0"]) == BAD_INPUT
    (tmp_path / "file").write_text("")
    assert machine.main(["--output-dir", str(tmp_path / "file")]) == BAD_INPUT
    assert "--ranks 0: at least 1" in (errors := capsys.readouterr().err)
    assert "cannot write to" in errors


def test_models_that_a_gpu_cannot_hold_are_skipped(monkeypatch):
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda index: types.SimpleNamespace(total_memory=8 * 2**30)
    )
    chosen, skipped = machine.models(quick=False, gpus=8)
    assert list(chosen) == ["tiny", "small", "gpt2", "gpt2-medium"]
    assert chosen["tiny"] == machine.GPU_BATCHES["tiny"]
    assert chosen["small"] == 256
    assert chosen["gpt2"] == 3
    assert chosen["gpt2-medium"] == 1  # the states alone fit
    (line,) = skipped
    assert line.startswith("training gpt2-xl: skipped: parameters, gradients and moments need 24.")


# -- the parts -----------------------------------------------------------------------------


def test_a_slow_device_is_named(monkeypatch):
    members = [{"host": "here", "gpu": f"GPU-{rank}", "pid": rank} for rank in range(4)]
    world = World(0, 4, 0, torch.device("cpu"), "gloo", members=members)
    monkeypatch.setattr(world, "gather", lambda own: [own, own, [2 * second for second in own], own])
    row = figures.figure(world, "copy", 10.0, "GB/s", [1.0, 1.01, 1.02])
    assert (row["rank"], row["value"], row["unit"]) == (2, near(10 / 2.02), "GB/s")
    assert [each["value"] for each in row["by_rank"]] == near([10 / 1.01, 10 / 1.01, 10 / 2.02, 10 / 1.01])
    assert "GPU-2" in row["verdict"]["reasons"][0]["message"]


def test_a_record_with_the_cards_of_its_ranks_is_valid(monkeypatch, tmp_path):
    world = World(0, 1, 0, torch.device("cpu"), "gloo", members=[{"host": "here", "gpu": "GPU-0", "pid": 1}])
    monkeypatch.setattr(world, "gather", lambda own: [own])
    config, machine_facts = {"device": "cuda"}, environment.record({"gt": 0})
    record = results.Record(
        tmp_path, suite="node", name="host_link", world_size=1, config=config, environment=machine_facts
    )
    record.put("host_link", "copy", value=figures.figure(world, "copy", 10.0, "GB/s", [1.0, 1.01, 1.02]))
    record.finish()
    assert results.problems(json.loads(record.path.read_text())) == []


def test_the_rate_at_the_end_over_that_at_the_beginning():
    assert timing.end_over_beginning([1.0] * 10 + [1.25] * 10) == near(0.8)
    assert timing.end_over_beginning([1.0]) == 1.0


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16", "tf32"])
def test_a_product_is_that_of_its_shape(dtype):
    assert achievable.product(torch.device("cpu"), dtype, (4, 6, 8))().shape == (4, 6)


def test_a_cpu_has_no_link_to_the_host():
    part = {}
    host_link.run(ALONE, part.__setitem__, quick=True)
    assert list(part) == ["skipped"]


def test_curves_of_clock_power_and_temperature():
    sample = lambda at, **more: json.dumps({"uuid": "GPU-1", "time": 100 + at, "sm_mhz": 1980 - at, **more})
    lines = [
        json.dumps({"error": "something"}),
        *(sample(at / 10, energy_mj=1000 * 50 * at, temperature_c=40 + at) for at in range(25)),
        json.dumps({"uuid": "GPU-1", "health": {}}),
        '{"uuid": "GPU-1", "ti',
    ]
    (curve,) = curves(lines)
    assert curve["uuid"] == "GPU-1"
    assert curve["seconds"] == near([1, 2])
    assert curve["power_w"] == near([500, 500])
    assert (curve["sm_mhz"], curve["temperature_c"]) == (near([1979, 1978]), [50, 60])
    assert curve["memory_mhz"] == [None, None]
    assert curves([sample(0), sample(1)])[0]["power_w"] == [None]
    assert curves([]) == []
