"""The core of the benchmark suites: every formula against a table, every reason of the verdict, tables and plots."""

from __future__ import annotations

import builtins
import math
import sys

import pytest
import torch

from benchmarks.core import formulas, peaks, plots, progress, tables, timing, verdict
from benchmarks.core.ranks import BadInput, choose_backend, powers_of_two

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
    # description, value, expected value
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


def test_alpha_beta_recovers_the_line_of_its_samples():
    sizes = [2**k for k in range(10, 31, 2)]
    fit = formulas.alpha_beta(sizes, [20e-6 + size / 400e9 for size in sizes])
    assert fit.alpha_s == near(20e-6)
    assert fit.beta_bytes_per_s == near(400e9)
    assert fit.half_bandwidth_bytes == near(8e6)
    assert fit.r2 == near(1.0)
    assert fit.predict(4e9) == near(0.01002)
    # at the half-bandwidth size, latency and transfer take the same time
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
    result = peaks.peak(name, dtype)
    assert (result and result[0]) == wanted
    assert result is None or result[1]


def test_mfu_shows_what_it_divides():
    used = peaks.mfu(989.4e12, 2.0, "NVIDIA H200", "bf16")
    assert used["mfu"] == near(0.5)
    assert used["numerator_flops_per_s"] == near(494.7e12)
    assert used["denominator_flops_per_s"] == near(989.4e12)
    assert "data sheet" in used["source"]
    assert peaks.mfu(1e12, 1.0, "abacus", "fp32")["mfu"] is None


# -- timing --------------------------------------------------------------------------------


def test_summary_of_known_samples():
    summary = timing.summary([1.0, 2.0, 3.0, 4.0, 5.0])
    assert (summary["count"], summary["mean_s"], summary["min_s"], summary["max_s"]) == (5, 3.0, 1.0, 5.0)
    assert (summary["p50_s"], summary["p95_s"], summary["p99_s"]) == (3.0, near(4.8), None)
    assert summary["cv"] == near(math.sqrt(2.5) / 3)
    assert summary["samples_s"] == [1.0, 2.0, 3.0, 4.0, 5.0]


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


def test_the_interval_of_the_mean_knows_of_slow_samples():
    samples = ([1.0] * 9 + [2.0]) * 10
    low, high = timing.mean_interval(samples)
    assert low < 1.1 < high
    assert timing.median_interval(samples) == (1.0, 1.0)


def test_laps_follow_each_other_without_a_wait(monkeypatch):
    now = iter([1.0, 1.5, 3.5, 4.0])
    monkeypatch.setattr(timing, "_mark", lambda device: next(now))
    did = []
    assert timing.laps(lambda: did.append(0), iters=3, device=torch.device("cpu")) == [0.5, 2.0, 0.5]
    assert len(did) == 3


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
    # code -> a fact that passes, one that fails, and a word of the message
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
    judgement = verdict.judge(broken, [code], "here")
    assert not judgement["valid"]
    assert [(r["code"], r["where"]) for r in judgement["reasons"]] == [(code, "here")]
    assert word in judgement["reasons"][0]["message"]
    assert verdict.judge({}, [code])["unchecked"] == [code]


def test_verdicts_together():
    good, bad = verdict.judge({"cv": 0.0}, ["cv", "mfu"]), verdict.judge({"cv": 1.0}, ["cv"])
    assert verdict.together([good, good])["valid"]
    both = verdict.together([good, bad, bad])
    assert (both["valid"], len(both["reasons"]), both["unchecked"]) == (False, 2, ["mfu"])
    assert [line.split(":")[0].strip() for line in tables.verdict_lines(both)][1:2] == ["cv"]
    assert "(and 1 more)" in "\n".join(tables.verdict_lines(both))


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


def test_progress_is_printed_on_the_first_rank_only(monkeypatch, capsys):
    monkeypatch.setattr(progress, "EVERY", -1.0)
    for rank in (0, 1):
        with progress.Progress("training", 2, rank=rank) as bar:
            bar.step("ddp")
    assert capsys.readouterr().err == "training ddp: 1 of 2\n"


def test_backends():
    assert [choose_backend("auto", cuda) for cuda in (True, False)] == ["nccl", "gloo"]
    with pytest.raises(BadInput, match="--backend gloo"):
        choose_backend("nccl", False)
