"""The record of a benchmark run: the file at every moment, its schema, the environment and the sampler in it."""

from __future__ import annotations

import errno
import json
import math
import os
import re

import pytest
import torch

from benchmarks.core import environment, results, sampler, timing, verdict
from tests.support.processes import ROOT

near = pytest.approx

# -- the record ----------------------------------------------------------------------------


def record(folder, **more):
    return results.Record(
        folder,
        suite="test",
        name="a run/of 2 GPUs",
        world_size=2,
        config={"device": "abacus"},
        environment=environment.record({"seed": 0}, ["/some/where/x.py", "--flag"]),
        **more,
    )


def test_a_record_is_valid_at_every_step(tmp_path):
    run = record(tmp_path)
    states = [json.loads(run.path.read_text())]
    run.put("training", "ddp", value={"timing": timing.summary([1.0, 2.0]), "loss": math.nan})
    states.append(json.loads(run.path.read_text()))
    run.put("training", "verdict", value=verdict.judge({"cv": 0.5}, ["cv"]))
    run.finish()
    states.append(json.loads(run.path.read_text()))
    assert [state["status"] for state in states] == ["running", "running", "complete"]
    assert [results.problems(state) for state in states] == [[], [], []]
    assert states[1]["results"]["training"]["ddp"]["loss"] is None
    assert [reason["code"] for reason in states[2]["verdict"]["reasons"]] == ["cv"]
    assert states[2]["environment"]["argv"] == ["x.py", "--flag"]
    assert [path.name for path in tmp_path.iterdir()] == [run.path.name]
    assert re.fullmatch(r"a-run-of-2-GPUs_\d{8}T\d{6}Z\.json", run.path.name)
    assert results.load(run.path) == states[2]


def test_a_file_beside_a_record_that_cannot_be_written_is_reported(tmp_path, capsys):
    def half(path):
        path.write_text("half of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    assert results.beside(tmp_path / "a.png", half) is None
    assert "not written: " in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_record_never_writes_over_another(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "utc_now", lambda: "2026-01-01T00:00:00Z")
    first, second = record(tmp_path), record(tmp_path)
    first.put("a", "b", value=1)
    assert first.path != second.path
    assert json.loads(second.path.read_text())["results"] == {}
    with pytest.raises(AssertionError, match="only grows"):
        first.put("a", "b", value=2)


def test_only_the_first_end_counts(tmp_path):
    run = record(tmp_path)
    run.finish("interrupted", "SIGINT")
    run.finish("complete")
    data = results.load(run.path)
    assert (data["status"], data["error"], data["verdict"]["valid"]) == ("interrupted", "SIGINT", False)


@pytest.mark.parametrize("act", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_last_state(act, tmp_path, monkeypatch):
    run = record(tmp_path)
    run.put("a", "b", value=1)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(results.os, act, full)
    with pytest.raises(results.Unwritable, match=r"No space left .* holds what was measured before"):
        run.put("a", "c", value=2)
    assert json.loads(run.path.read_text())["results"] == {"a": {"b": 1}}
    assert [path.name for path in tmp_path.iterdir()] == [run.path.name]


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(results.Unwritable, match=r"cannot write to .*file.*--output-dir"):
        record(tmp_path / "file")


FOREIGN = {
    "not JSON": ("{", "not JSON"),
    "another program's": ('{"results": []}', "no schema_version"),
    "a list": ("[1]", "no schema_version"),
    "a later version": ('{"schema_version": "9.0"}', "9.0; this reads 1.0"),
    "half a record": ('{"schema_version": "1.0"}', "required property"),
}


@pytest.mark.parametrize(("text", "message"), FOREIGN.values(), ids=FOREIGN)
def test_a_foreign_file(tmp_path, text, message):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        results.load(path)


BROKEN = {
    "an unknown status": lambda d: d.update(status="perhaps"),
    "no verdict": lambda d: d.pop("verdict"),
    "invalid without a reason": lambda d: d["verdict"].update(valid=False, reasons=[]),
    "a timing without samples": lambda d: d["results"].update(a={"b": [{"timing": {"p50_s": 1.0}}]}),
    "a verdict deep within": lambda d: d["results"].update(a={"b": {"c": {"verdict": "fine"}}}),
    "a row without wrong_elements": lambda d: d["results"].update(communication={"allreduce": {"rows": [{}]}}),
    "local time": lambda d: d.update(timestamp="2026-01-01 00:00"),
    "an unknown field": lambda d: d.update(extra=1),
}


@pytest.mark.parametrize("change", BROKEN.values(), ids=BROKEN)
def test_the_schema_refuses(tmp_path, change):
    run = record(tmp_path)
    run.finish()
    assert results.problems(run.data) == []
    change(run.data)
    assert results.problems(run.data)


def test_the_environment_holds_allowed_variables_only(monkeypatch):
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    record = environment.record({"seed": 1}, ["x.py"])
    assert record["variables"]["NCCL_ALGO"] == "Ring"
    assert "hidden" not in json.dumps(record)
    assert record["torch"] == str(torch.__version__)
    assert record["seeds"] == {"seed": 1}


def test_git_of_this_and_of_no_checkout(tmp_path):
    assert environment.git(tmp_path) is None
    checkout = environment.git(ROOT)
    assert checkout is None or re.fullmatch("[0-9a-f]{40}", checkout["commit"])


# -- the sampler ---------------------------------------------------------------------------


def sample(**more):
    fixed = {"uuid": "GPU-1", "time": 0.0, "energy_mj": 1000, "kernel_resident": 0, "reasons": 0, "card_memory": 10}
    return json.dumps({**fixed, **more})


def test_a_summary_of_samples():
    lines = [
        sample(processes={"7": 5, "8": None}),
        sample(time=2.0, kernel_resident=100, energy_mj=1_401_000, reasons=0x4, card_memory=30, processes={"7": 20}),
        sample(time=4.0, energy_mj=2_801_000, reasons=0x24, sm_mhz=1980),
        '{"uuid": "GPU-1", "ti',
    ]
    (card,), why = sampler.read(lines, [7])
    assert why is None
    assert (card["samples"], card["kernel_resident_percent"]) == (3, near(100 / 3))  # zeros count
    assert (card["energy_j"], card["mean_power_w"]) == (2800.0, 700.0)
    assert card["throttle_reasons"] == {"sw_power_cap": near(2 / 3), "sw_thermal_slowdown": near(1 / 3)}
    assert (card["process_memory_peak_bytes"], card["card_memory_peak_bytes"]) == (20, 30)
    assert (card["neighbours"], card["temperature_c"]) == (1, None)
    assert not verdict.judge(card, ["throttled"])["valid"]


def test_pids_of_another_namespace_are_counted():
    assert sampler.strangers({"1": 0, "2": 0}, {7, 8}) == 0
    assert sampler.strangers({"1": 0, "2": 0, "3": 0}, {7, 8}) == 1


def test_the_sampler_without_nvml_says_why(tmp_path):
    with sampler.Sampler(["GPU-none"], [os.getpid()]) as nvml:
        pass
    assert nvml.cards is None
    assert "Error" in nvml.why


def test_the_sampler_without_a_gpu_starts_nothing():
    with sampler.Sampler([], []) as nvml:
        pass
    assert (nvml.cards, nvml.why) == (None, "no GPU")


FAKE = """
import types, time
NVML_CLOCK_SM = NVML_CLOCK_MEM = NVML_TEMPERATURE_GPU = 0
made = types.SimpleNamespace
def nvmlInit(): pass
def nvmlDeviceGetHandleByUUID(uuid): return uuid
def nvmlDeviceGetUtilizationRates(h): return made(gpu=50)
def nvmlDeviceGetTotalEnergyConsumption(h): return int(time.time() * 1000)
def nvmlDeviceGetClockInfo(h, which): return 1980
def nvmlDeviceGetTemperature(h, which): return 40
def nvmlDeviceGetEnforcedPowerLimit(h): return 700_000
def nvmlDeviceGetCurrentClocksEventReasons(h): return 0
def nvmlDeviceGetMemoryInfo(h): return made(used=123)
def nvmlDeviceGetComputeRunningProcesses(h): raise OSError("not permitted")
"""


def test_the_sampler_process_with_a_fake_nvml(tmp_path, monkeypatch):
    (tmp_path / "pynvml.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with sampler.Sampler(["GPU-1", "GPU-2"], [1], period=0.01) as nvml:
        process = nvml._process
        assert process.poll() is None
    assert process.returncode == 0
    assert [card["uuid"] for card in nvml.cards] == ["GPU-1", "GPU-2"]
    card = nvml.cards[0]
    assert (card["kernel_resident_percent"], card["power_limit_w"], card["neighbours"]) == (50, 700, None)
    assert card["samples"] >= 2
    assert card["energy_j"] >= 0
