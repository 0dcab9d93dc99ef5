"""The core of the benchmark suites: every formula against a table, every reason of the verdict, the record on disk."""

from __future__ import annotations

import builtins
import json
import math
import os
import re
import sys

import pytest
import torch

from benchmarks.core import environment, formulas, peaks, plots, progress, results, sampler, tables, timing, verdict
from benchmarks.core.ranks import BadInput, choose_backend, powers_of_two
from tests.processes import ROOT

near = pytest.approx

# -- formulas ------------------------------------------------------------------------------

BUS = [
    # operation, bytes, seconds, ranks, algbw, busbw
    ("allreduce", 1_000_000_000, 0.5, 4, 2.0, 3.0),
    ("allreduce", 1_000_000_000, 0.5, 2, 2.0, 2.0),
    ("allreduce", 8_000_000_000, 1.0, 8, 8.0, 14.0),
    ("allgather", 1_000_000_000, 0.5, 4, 2.0, 1.5),
    ("reducescatter", 1_000_000_000, 0.5, 4, 2.0, 1.5),
    ("alltoall", 1_000_000_000, 0.25, 8, 4.0, 3.5),
    ("broadcast", 1_000_000_000, 0.5, 4, 2.0, 2.0),
    ("reduce", 1_000_000_000, 0.5, 4, 2.0, 2.0),
    ("p2p", 1_000_000_000, 0.5, 2, 2.0, 2.0),
    ("p2p_bidirectional", 1_000_000_000, 0.5, 2, 2.0, 4.0),
]


@pytest.mark.parametrize(("operation", "size", "seconds", "ranks", "algbw", "busbw"), BUS)
def test_bandwidths(operation, size, seconds, ranks, algbw, busbw):
    assert formulas.algorithm_bandwidth(size, seconds) == near(algbw)
    assert formulas.bus_bandwidth(operation, size, seconds, ranks) == near(busbw)
    assert formulas.bus_bandwidth(operation, size, seconds, 1) is None


FORMULAS = [
    # what, its value, what it must be
    ("weak 4", formulas.weak_efficiency(360.0, 4, 100.0), 0.9),
    ("weak 1", formulas.weak_efficiency(100.0, 1, 100.0), 1.0),
    ("strong 4", formulas.strong_efficiency(8.0, 2.5, 4), 0.8),
    ("karp-flatt of no loss", formulas.karp_flatt(4.0, 4), 0.0),
    ("karp-flatt of no gain", formulas.karp_flatt(1.0, 4), 1.0),
    ("karp-flatt 3.2 of 4", formulas.karp_flatt(3.2, 4), 1 / 12),
    ("geometric mean", formulas.geometric_mean([2.0, 8.0]), 4.0),
    ("$ a million", formulas.dollars_per_million(3.6, 1000.0), 1.0),
    ("J a sample", formulas.joules_per_sample(700.0, 350), 2.0),
    ("break-even", formulas.break_even_price(3.0, 800.0, 8, 600.0, 4), 4.5),
]


@pytest.mark.parametrize(("value", "wanted"), [row[1:] for row in FORMULAS], ids=[row[0] for row in FORMULAS])
def test_formulas(value, wanted):
    assert value == near(wanted)


LABELS = [(1.06, "suspicious"), (1.05, "excellent"), (0.91, "excellent"), (0.9, "good"), (0.8, "below good")]


@pytest.mark.parametrize(("efficiency", "label"), LABELS)
def test_scaling_labels(efficiency, label):
    assert formulas.scaling_label(efficiency) == label


def test_karp_flatt_of_one_rank_is_not_defined():
    assert formulas.karp_flatt(1.0, 1) is None


def test_alpha_beta_finds_the_line_it_was_made_from():
    sizes = [2**k for k in range(10, 31, 2)]
    fit = formulas.alpha_beta(sizes, [20e-6 + size / 400e9 for size in sizes])
    assert fit.alpha_s == near(20e-6)
    assert fit.beta_bytes_per_s == near(400e9)
    assert fit.half_bandwidth_bytes == near(8e6)
    assert fit.r2 == near(1.0)
    assert fit.predict(4e9) == near(0.01002)
    # at the half-bandwidth size latency and transfer take as long
    assert fit.half_bandwidth_bytes / fit.predict(fit.half_bandwidth_bytes) == near(200e9)


def test_no_line_through_one_size_or_falling_times():
    assert formulas.alpha_beta([1024, 1024], [1.0, 1.0]) is None
    assert formulas.alpha_beta([1024, 2048], [2.0, 1.0]) is None


def test_memory_fit_and_largest_batch():
    fit = formulas.memory_fit([8, 16, 32], [1800.0, 2600.0, 4200.0])
    assert (fit.intercept, fit.slope, fit.r2) == near((1000.0, 100.0, 1.0))
    assert formulas.largest_batch(fit, 10_050) == 90
    assert formulas.largest_batch(fit, 500) == 0
    assert formulas.largest_batch(formulas.Line(1.0, 0.0, 1.0), 500) is None
    with pytest.raises(ValueError, match=r"3 different batch sizes, got \[8, 16\]"):
        formulas.memory_fit([8, 16, 16], [1.0, 2.0, 2.0])


def test_the_mean_of_ratios_wants_positive_numbers():
    with pytest.raises(ValueError, match="positive"):
        formulas.geometric_mean([1.0, 0.0])


def test_powers_of_two():
    assert [list(powers_of_two(n)) for n in (1, 2, 6, 8)] == [[1], [1, 2], [1, 2, 4, 6], [1, 2, 4, 8]]


# -- peaks ---------------------------------------------------------------------------------

NAMES = [
    ("NVIDIA H200", "bf16", 989.4e12),
    ("NVIDIA H100 80GB HBM3", "bf16", 989.4e12),
    ("NVIDIA H100 PCIe", "bf16", 756.5e12),
    ("NVIDIA H100 NVL", "fp16", 835.5e12),
    ("NVIDIA A100-SXM4-80GB", "tf32", 156e12),
    ("Tesla V100-SXM2-32GB", "fp16", 125e12),
    ("Tesla V100-SXM2-32GB", "bf16", None),
    ("NVIDIA A10G", "bf16", None),
    ("NVIDIA H20", "bf16", None),
    ("NVIDIA L40S", "bf16", 362.05e12),
    ("NVIDIA GeForce RTX 4090 Laptop GPU", "bf16", None),
    ("AMD EPYC 7763", "fp32", None),
]


@pytest.mark.parametrize(("name", "dtype", "wanted"), NAMES)
def test_peaks(name, dtype, wanted):
    found = peaks.peak(name, dtype)
    assert (found and found[0]) == wanted
    assert found is None or found[1]


def test_mfu_shows_what_it_divides():
    used = peaks.mfu(989.4e12, 2.0, "NVIDIA H200", "bf16")
    assert used["mfu"] == near(0.5)
    assert used["numerator_flops_per_s"] == near(494.7e12)
    assert used["denominator_flops_per_s"] == near(989.4e12)
    assert "data sheet" in used["source"]
    assert peaks.mfu(1e12, 1.0, "abacus", "fp32")["mfu"] is None


# -- timing --------------------------------------------------------------------------------


def test_summary_of_known_samples():
    told = timing.summary([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (told["count"], told["mean_s"], told["min_s"], told["max_s"]) == (5, 3.0, 1.0, 5.0)
    assert (told["p50_s"], told["p95_s"], told["p99_s"]) == (3.0, near(4.8), None)
    assert told["cv"] == near(math.sqrt(2.5) / 3)
    assert told["samples_s"] == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_p99_from_a_hundred_samples_on():
    assert timing.summary([1.0] * 99)["p99_s"] is None
    assert timing.summary([float(i) for i in range(101)])["p99_s"] == near(99.0)


def test_the_bootstrap_interval_holds_the_median_and_repeats():
    samples = [1.0 + 0.01 * ((7 * i) % 31) for i in range(60)]
    low, high = timing.median_interval(samples, seed=3)
    assert low <= timing.percentile(samples, 50) <= high
    assert high - low < 0.15
    assert (low, high) == timing.median_interval(samples, seed=3)
    assert timing.median_interval([1.0, 2.0]) is None


def test_measure_counts_warm_up_in_steps_and_times_only_the_act():
    calls = []
    samples = timing.measure(
        lambda: calls.append("act"),
        warmup=2,
        iters=3,
        device=torch.device("cpu"),
        before=lambda: calls.append("before"),
        after=lambda: calls.append("after"),
    )
    assert len(samples) == 3
    assert calls == ["before", "act", "after"] * 5
    assert max(samples) < 0.1


# -- verdict -------------------------------------------------------------------------------

REASONS = {
    # code -> a fact that is fine, one that is not, and the word the message must hold
    "throttled": ({"throttle_reasons": {"sw_power_cap": 1.0}}, {"throttle_reasons": ["hw_slowdown"]}, "hw_slowdown"),
    "neighbour": ({"neighbours": 0}, {"neighbours": 1}, "1 other"),
    "shared_gpu": ({"ranks_per_gpu": 1}, {"ranks_per_gpu": 2}, "two ranks on one GPU"),
    "cv": ({"cv": 0.1}, {"cv": 0.11}, "11.0%"),
    "allocation_retries": ({"allocation_retries": 0}, {"allocation_retries": 2}, "2 allocation"),
    "out_of_memory": ({"ooms": 0}, {"ooms": 1}, "1 allocation"),
    "skipped_steps": ({"skipped_steps": 0}, {"skipped_steps": 1}, "skipped the optimizer"),
    "cached_io": ({"io": "cold"}, {"io": "mixed"}, "mixed"),
    "loss": ({"loss": 2.0}, {"loss": math.nan}, "nan"),
    "mfu": ({"mfu": 1.0}, {"mfu": 1.01}, "101.0%"),
    "efficiency": ({"efficiency": 1.05}, {"efficiency": 1.06}, "106.0%"),
    "launch_bound": ({"doubling": 1.1}, {"doubling": 1.09}, "launch-bound"),
    "wrong_elements": ({"wrong_elements": 0}, {"wrong_elements": 7}, "7 element"),
}


def test_every_reason_has_a_row():
    assert list(REASONS) == verdict.CODES


@pytest.mark.parametrize("code", REASONS)
def test_a_reason(code):
    fine, broken, word = REASONS[code]
    assert verdict.judge(fine, [code]) == {"valid": True, "reasons": [], "unchecked": []}
    told = verdict.judge(broken, [code], "here")
    assert not told["valid"]
    assert [(r["code"], r["where"]) for r in told["reasons"]] == [(code, "here")]
    assert word in told["reasons"][0]["message"]
    assert verdict.judge({}, [code])["unchecked"] == [code]


def test_verdicts_together():
    good, bad = verdict.judge({"cv": 0.0}, ["cv", "mfu"]), verdict.judge({"cv": 1.0}, ["cv"])
    assert verdict.together([good, good])["valid"]
    both = verdict.together([good, bad, bad])
    assert (both["valid"], len(both["reasons"]), both["unchecked"]) == (False, 2, ["mfu"])
    assert [line.split(":")[0].strip() for line in tables.verdict_lines(both)][1:2] == ["cv"]
    assert "(and 1 more)" in "\n".join(tables.verdict_lines(both))


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


def test_a_write_that_fails_leaves_the_last_state(tmp_path, monkeypatch):
    run = record(tmp_path)
    run.put("a", "b", value=1)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(results.os, "replace", full)
    with pytest.raises(OSError, match="No space"):
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


def test_the_environment_holds_what_is_allowed_and_no_more(monkeypatch):
    monkeypatch.setenv("NCCL_ALGO", "Ring")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden")
    told = environment.record({"seed": 1}, ["x.py"])
    assert told["variables"]["NCCL_ALGO"] == "Ring"
    assert "hidden" not in json.dumps(told)
    assert told["torch"] == str(torch.__version__)
    assert told["seeds"] == {"seed": 1}


def test_git_of_this_and_of_no_checkout(tmp_path):
    assert environment.git(tmp_path) is None
    found = environment.git(ROOT)
    assert found is None or re.fullmatch("[0-9a-f]{40}", found["commit"])


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


def test_the_sampler_process_with_a_made_up_nvml(tmp_path, monkeypatch):
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


# -- tables, plots, progress ---------------------------------------------------------------


def test_a_table_with_rich_and_without(monkeypatch):
    rows = [["all-reduce", 1.23456, None], ["p2p", 123456.7, True]]
    with_rich = tables.render("Title", ["what", "GB/s", "valid"], rows)
    real = builtins.__import__
    monkeypatch.setattr(builtins, "__import__", lambda name, *a: missing(name) if "rich" in name else real(name, *a))
    for name in [name for name in sys.modules if name.split(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    without = tables.render("Title", ["what", "GB/s", "valid"], rows)
    for text in (with_rich, without):
        for word in ("Title", "all-reduce", "1.235", "–", "123,457", "yes"):
            assert word in text


def missing(name):
    raise ModuleNotFoundError(name)


def test_plots_are_written(tmp_path):
    paths = [
        plots.lines(tmp_path / "a.png", "t", "x", "y", {"s": ([1, 2, 4], [1.0, None, 2.0])}, logx=True, logy=True),
        plots.bars(tmp_path / "b.png", "t", "y", ["ddp", "fsdp"], {"a": [1.0, 2.0], "b": [1.0, 0.5]}),
        plots.matrix(tmp_path / "c.png", "t", "to", "from", [[None, 1.0], [2.0, None]]),
    ]
    for path in paths:
        assert path.read_bytes().startswith(b"\x89PNG")


def test_progress_speaks_on_the_first_rank_alone(monkeypatch, capsys):
    monkeypatch.setattr(progress, "EVERY", -1.0)
    for rank in (0, 1):
        with progress.Progress("training", 2, rank=rank) as bar:
            bar.step("ddp")
    assert capsys.readouterr().err == "training ddp: 1 of 2\n"


def test_backends():
    assert [choose_backend("auto", cuda) for cuda in (True, False)] == ["nccl", "gloo"]
    with pytest.raises(BadInput, match="--backend gloo"):
        choose_backend("nccl", False)
