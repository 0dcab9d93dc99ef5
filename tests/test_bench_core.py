"""The core of the benchmark suites: every formula against a table, every reason of the verdict, tables and plots."""

from __future__ import annotations

import builtins
import math
import random
import sys

import numpy as np
import pytest
import torch

from benchmarks.core import (
    achievable,
    batch_fit,
    formulas,
    outliers,
    peaks,
    plots,
    progress,
    sides,
    tables,
    timing,
    verdict,
)
from benchmarks.core.ranks import BadInput, World, choose_backend, powers_of_two

near = pytest.approx
CPU = torch.device("cpu")
ALONE = World(0, 1, 0, CPU, "gloo")

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
    assert fit.predict(1e9) == near(0.00252)
    # at the half-bandwidth size, latency and transfer take the same time
    assert fit.half_bandwidth_bytes / fit.predict(fit.half_bandwidth_bytes) == near(200e9)


def test_no_fit_of_few_sizes_or_falling_times():
    line = lambda sizes: [20e-6 + size / 400e9 for size in sizes]
    assert formulas.alpha_beta([2**k for k in range(20, 24)], line([2**k for k in range(20, 24)])) is None
    assert formulas.alpha_beta([1, 2, 3, 4, 5], [5.0, 4.0, 3.0, 2.0, 1.0]) is None


def test_no_figure_of_a_fit_outside_the_measured_range():
    """20 us and 400 GB/s: half of the bandwidth at 8 MB."""
    line = lambda sizes: formulas.alpha_beta(sizes, [20e-6 + size / 400e9 for size in sizes])
    small, large = line([2**k for k in range(10, 18)]), line([2**k for k in range(26, 31)])
    assert (small.alpha_s, small.beta_bytes_per_s, small.half_bandwidth_bytes) == (near(20e-6), None, None)
    assert (large.alpha_s, large.beta_bytes_per_s, large.half_bandwidth_bytes) == (None, near(400e9), None)
    assert small.predict(2**10 - 1) is None
    assert small.predict(2**17 + 1) is None
    assert small.predict(2**17) == near(20e-6 + 2**17 / 400e9)


@pytest.mark.parametrize("noise", [0.0, 0.03])
def test_a_fit_has_pieces_where_the_protocol_switches(noise):
    """A low-latency protocol of half the bandwidth up to 64 KiB, then one with a longer start."""
    true = lambda size: 6e-6 + size / 20e9 if size <= 2**16 else 24e-6 + size / 400e9
    sizes = [2**k for k in range(10, 31, 2)]
    draw = random.Random(0)
    fit = formulas.alpha_beta(sizes, [true(size) * (1 + draw.uniform(-noise, noise)) for size in sizes])
    assert len(fit.pieces) == 2
    assert fit.alpha_s == near(6e-6, rel=0.05)
    assert fit.beta_bytes_per_s == near(400e9, rel=0.05)
    for size in [3 * 2**k for k in range(9, 29)]:
        if not 2**16 < size < 2**18:  # between the two measured sizes around the switch, nobody can know
            assert fit.predict(size) == near(true(size), rel=0.15)


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
    ("NVIDIA A10G", "bf16", 70e12),
    ("NVIDIA H20", "bf16", 148e12),
    ("NVIDIA H20", "fp8", 296e12),
    ("NVIDIA B200", "fp8", 4500e12),
    ("NVIDIA GB200", "bf16", 2500e12),
    ("NVIDIA B300 SXM6 AC", "bf16", 2250e12),
    ("NVIDIA GH200 480GB", "bf16", 989.4e12),
    ("NVIDIA H800", "bf16", 989.4e12),
    ("NVIDIA H200", "fp8", 1978.9e12),
    ("NVIDIA A30", "bf16", 165e12),
    ("NVIDIA L40", "bf16", 181.05e12),
    ("NVIDIA GeForce RTX 5090", "bf16", 209.5e12),
    ("AMD Instinct MI300X", "bf16", 1307.4e12),
    ("AMD Instinct MI325X", "fp8", 2614.9e12),
    ("NVIDIA A100-SXM4-80GB", "fp8", None),
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


def test_an_unknown_gpu_measures_its_own_peak(monkeypatch):
    gpu = torch.device("cuda", 0)
    monkeypatch.setattr(achievable, "peak", lambda device, dtype: (1e12, f"measured here: {device} {dtype}"))
    used = peaks.mfu(1e12, 2.0, "NVIDIA Abacus", "bf16", 2, gpu)
    assert (used["mfu"], used["source"]) == (near(0.25), "measured here: cuda:0 bf16")
    assert "data sheet" in peaks.mfu(1e12, 2.0, "NVIDIA H200", "bf16", 1, gpu)["source"]


def test_the_achievable_peak_is_that_of_the_fastest_product(monkeypatch):
    cpu = torch.device("cpu")
    seconds = iter(
        [[2.0], [2.0], [4.0], [4.0]]
    )  # of each size: one product, to see how many a sample has, and the samples
    monkeypatch.setattr(achievable.timing, "measure", lambda *_, **__: next(seconds))
    rate, source = achievable.peak.__wrapped__(cpu, "fp32", (16, 32))
    assert (rate, "32 x 32, the fastest of 2" in source) == (2 * 32**3 / 4, True)
    monkeypatch.undo()
    assert achievable.peak.__wrapped__(cpu, "fp32", (64,))[0] > 0
    assert achievable.peak.__wrapped__(cpu, "fp8", (64,)) is None


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


def series_of(count, correlation, draw):
    """A series around 1 in which each value depends on the one before it: AR(1)."""
    noise = draw.standard_normal(count + 100) * math.sqrt(1 - correlation**2)
    value, values = 0.0, []
    for each in noise:
        value = correlation * value + each
        values.append(1 + 0.05 * value)
    return values[100:]


@pytest.mark.parametrize("interval", [timing.mean_interval, timing.median_interval])
@pytest.mark.parametrize(
    ("correlation", "count", "share"),
    # a short series that depends on itself says little: its interval holds less often
    [(0.0, 10, 0.90), (0.0, 100, 0.90), (0.9, 10, 0.70), (0.9, 20, 0.80), (0.9, 50, 0.85), (0.9, 100, 0.90)],
)
def test_intervals_hold_also_where_samples_depend_on_each_other(correlation, count, share, interval):
    draw = np.random.default_rng(7)
    series = [series_of(count, correlation, draw) for _ in range(100)]
    held = [low <= 1 <= high for low, high in map(interval, series)]
    assert sum(held) / len(held) >= share


def test_an_interval_contains_its_own_figure_and_no_time_in_it_is_negative():
    draw = np.random.default_rng(3)
    for count in (3, 4, 10, 50):
        samples = [*draw.exponential(size=count)]
        for interval, figure in ((timing.median_interval, np.median), (timing.mean_interval, np.mean)):
            low, high = interval(samples)
            assert min(samples) / 2 <= low <= figure(samples) <= high <= 1.5 * max(samples) - 0.5 * min(samples)
            assert interval([2.0] * count) == (2.0, 2.0)
    low, high = timing.median_interval([10.0, 10.1, 2.0])
    assert low <= 2.0 < 10.1 <= high, "one of three samples is not ignored"
    samples = [-1.0, 0.5, 1.0, -0.5]
    assert timing.mean_interval(samples)[0] < -1, "a difference of times may be negative"


def test_repeated_runs_give_the_variation_between_runs():
    assert timing.runs_interval([100.0, 101.0]) is None
    low, high = timing.runs_interval([100.0, 101.0, 99.0])
    assert (low, high) == near((100 - 2.484, 100 + 2.484), abs=0.1)  # Student's t of 2 degrees is 4.30
    assert timing.student(30) == near(2.042, abs=1e-3)


def test_the_interval_of_the_mean_knows_of_slow_samples():
    samples = ([1.0] * 9 + [2.0]) * 10
    low, high = timing.mean_interval(samples)
    assert low < 1.1 < high
    assert timing.median_interval(samples) == (1.0, 1.0)


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


# -- two sides in turns --------------------------------------------------------------------


def side(*seconds):
    """A side that takes these seconds, one after the other; the first ones warm up."""
    turns = iter([9.0] * sides.WARM + [*seconds])
    return lambda: next(turns)


def test_twice_the_batch_is_launch_bound_only_beyond_noise():
    clear = sides.doubled(ALONE, side(*[1.0, 1.01] * 5), side(*[1.02, 1.03] * 5), 10)
    assert clear["ratio"] == near(1.02, rel=0.01)
    assert not verdict.judge({"doubling": sides.doubling_fact(clear)}, ["launch_bound"])["valid"]
    # the median of the ratios is 1.05, and samples vary by 20 %: nobody can tell
    noisy = [0.85, 1.25, 0.88, 1.22, 1.05, 1.05, 0.9, 1.2, 0.95, 1.15]
    noise = sides.doubled(ALONE, side(*[1.0] * 10), side(*noisy), 10)
    assert noise["ratio"] < verdict.DOUBLING_MIN < sides.doubling_fact(noise)
    assert verdict.judge({"doubling": sides.doubling_fact(noise)}, ["launch_bound"])["valid"]


def test_the_slowest_rank_of_each_turn_counts():
    class TwoRanks(World):
        def gather(self, value):
            return [value, [(2 * a, b) for a, b in value]]

    both = sides.doubled(TwoRanks(0, 2, 0, CPU, "gloo"), side(*[1.0] * 5), side(*[4.0] * 5), 5)
    assert both["ratio"] == near(2.0)


def test_twice_the_batch_that_does_not_fit_is_not_known():
    def full():
        raise torch.OutOfMemoryError("CUDA out of memory")

    assert sides.doubled(ALONE, side(*[1.0] * 5), full, 5) is None
    assert sides.doubling_fact(None) is None
    with pytest.raises(ZeroDivisionError):
        sides.doubled(ALONE, side(*[1.0] * 5), lambda: 1 / 0, 5)


def test_one_rank_exchanges_nothing():
    assert sides.exposed(ALONE, None, None, 5) is None


# -- memory --------------------------------------------------------------------------------


class Held:
    """An engine whose tensors and their gaps take this much, or that runs out of memory."""

    def __init__(self, held, reserved):
        self.held, self.reserved, self.recovered = held, reserved, False

    def begin(self): ...
    def finish(self): ...
    def reset_memory(self): ...

    def step(self, batch, sync):
        if self.held is None:
            raise torch.OutOfMemoryError("CUDA out of memory")

    def memory(self):
        return [{"peak_bytes": self.held, "reserved_bytes": self.reserved}]

    def recover(self):
        self.recovered = True


def test_needed_and_held_bytes_have_one_baseline():
    """By the kept record of an H200, 24.64 GB were needed for 25.98 GB: they had two baselines."""
    peak = batch_fit.steady_peak(ALONE, Held(30, 32), 8, None, alone=True, base=5)
    assert (peak.batch, peak.peak_bytes, peak.needed_bytes) == (8, 25, 27)
    full = Held(None, None)
    assert batch_fit.steady_peak(ALONE, full, 8, None, alone=True) == batch_fit.Peak(8)
    assert full.recovered
    with pytest.raises(torch.OutOfMemoryError):  # other ranks wait in an exchange
        batch_fit.steady_peak(ALONE, Held(None, None), 8, None, alone=False)


# -- outliers ------------------------------------------------------------------------------

MEMBERS = [{"host": f"node{rank // 2}", "gpu": f"GPU-{rank}", "pid": rank} for rank in range(4)]


def samples_of(*medians):
    return [[median * (1 + 0.02 * k) for k in (-2, -1, 0, 1, 2)] for median in medians]


def test_a_slow_rank_is_named_with_its_figure():
    assert outliers.slow_ranks(samples_of(0.02, 0.021, 0.022, 0.02), MEMBERS) == []
    (slow,) = outliers.slow_ranks(samples_of(0.02, 0.02, 0.02, 0.08), MEMBERS)
    assert (slow["rank"], slow["host"], slow["gpu"], slow["ratio"]) == (3, "node1", "GPU-3", near(4))
    assert not slow["node"]
    (words,) = outliers.rank_words([slow])
    assert words == "rank 3 (GPU-3 on node1) takes 80 ms, 4.00 times the others' 20 ms"
    (slow,) = outliers.slow_ranks(samples_of(0.02, 0.08), MEMBERS)
    assert slow["rank"] == 1  # also of two


def test_noise_makes_no_rank_slow():
    wide = [0.01, 0.015, 0.03, 0.04, 0.05]
    assert outliers.slow_ranks([wide, [value / 1.4 for value in wide], wide], MEMBERS) == []


def at_times(share, count=30, ranks=4, others=0.0):
    """Each rank takes 20 ms; the last one is slow in a share of its samples, the others in another share."""
    series = lambda share: [0.08 if k < share * count else 0.02 + k * 1e-5 for k in range(count)]
    return [series(others)] * (ranks - 1) + [series(share)]


def test_a_rank_that_is_slow_at_times_is_named():
    (slow,) = outliers.slow_ranks(at_times(0.3), MEMBERS)
    assert (slow["rank"], slow["share"], slow["ratio"]) == (3, near(0.3), near(4, rel=0.02))
    assert outliers.rank_words([slow])[0].startswith("rank 3 (GPU-3 on node1) takes 80 ms, 3.9")
    assert outliers.rank_words([slow])[0].endswith("in 30% of its samples")
    assert outliers.slow_ranks(at_times(0.1), MEMBERS) == []  # three of thirty: that happens
    assert outliers.slow_ranks(at_times(0.3, others=0.2), MEMBERS) == []  # so are the others
    (slow,) = outliers.slow_ranks(at_times(0.1, count=100), MEMBERS)
    assert slow["rank"] == 3  # ten of a hundred: that does not


def test_equal_ranks_are_not_slow_at_times_by_chance():
    """Each sample is late with the same probability on every rank."""
    draw = np.random.default_rng(0)
    named = sum(
        bool(outliers.slow_ranks(np.where(draw.random((4, 25)) < 0.1, 0.08, 0.02).tolist(), MEMBERS))
        for _ in range(300)
    )
    assert named <= 6


def test_a_slow_node_is_all_ranks_of_a_host():
    members = [{"host": f"node{rank // 2}", "gpu": None} for rank in range(6)]
    slow = outliers.slow_ranks(samples_of(0.02, 0.02, 0.02, 0.02, 0.05, 0.05), members)
    assert [(row["rank"], row["node"]) for row in slow] == [(4, True), (5, True)]


def pairs_of(ranks, slow, usual=100.0, value=20.0):
    return [[None if a == b else value if slow(a, b) else usual for b in range(ranks)] for a in range(ranks)]


def test_slow_pairs_name_the_link_or_the_rank():
    one_host = [{"host": "a", "gpu": f"GPU-{rank}"} for rank in range(4)]
    link = outliers.slow_pairs(pairs_of(4, lambda a, b: (a, b) == (1, 2)), one_host)
    assert ([(p["from"], p["to"], p["ratio"]) for p in link["pairs"]], link["ranks"]) == ([(1, 2, near(5))], [])
    assert outliers.pair_words(link) == ["the link from rank 1 to 2 with 20 GB/s, usual 100"]
    rank = outliers.slow_pairs(pairs_of(4, lambda a, b: 3 in (a, b)), one_host)
    assert [row["rank"] for row in rank["ranks"]] == [3]
    assert outliers.pair_words(rank) == ["most links of rank 3 (GPU-3 on a)"]
    # between nodes is another kind of link, not a slow one
    assert outliers.slow_pairs(pairs_of(4, lambda a, b: a // 2 != b // 2), MEMBERS)["pairs"] == []


# -- verdict -------------------------------------------------------------------------------

REASONS = {
    # code -> a fact that passes, one that fails, and a word of the message
    "throttled": ({"throttle_reasons": {"sw_power_cap": 1.0}}, {"throttle_reasons": ["hw_slowdown"]}, "hw_slowdown"),
    "neighbour": ({"neighbours": 0}, {"neighbours": 1}, "1 other"),
    "health": ({"health": []}, {"health": ["GPU-1: PCIe with 8 of 16 lanes"]}, "8 of 16 lanes"),
    "cpu_load": ({"cpu_others": 0.1}, {"cpu_others": 0.11}, "11.0%"),
    "cpu_steal": ({"cpu_steal": 0.02}, {"cpu_steal": 0.03}, "3.0%"),
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
    "slow": ({"slow": []}, {"slow": ["rank 3 takes 9 ms"]}, "rank 3 takes 9 ms"),
    "loss_difference": ({"loss_difference": 1.0}, {"loss_difference": 1.5}, "1.5 times"),
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


@pytest.mark.parametrize(
    "code", [code for code, (fine, _, _) in REASONS.items() if isinstance(next(iter(fine.values())), float)]
)
def test_no_rule_accepts_what_is_no_number(code):
    ((fact, _),) = REASONS[code][0].items()
    assert [reason["code"] for reason in verdict.judge({fact: math.nan}, [code])["reasons"]] == [code]


def test_the_largest_difference_hides_no_nan():
    assert formulas.largest_difference([1.0, 2.0], [1.5, 2.0]) == 0.5
    assert math.isnan(formulas.largest_difference([1.0, math.nan, 3.0], [1.5, 2.0, 3.0]))


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_every_measurement_is_judged_by_the_state_of_the_machine(kind):
    assert {"throttled", "neighbour", "health"} <= set(verdict.MACHINE[kind])
    assert {"cpu_load", "cpu_steal"} <= set(verdict.MACHINE["cpu"])


def test_a_run_from_changed_files_is_not_valid():
    clean, dirty = ({"commit": "a" * 40, "dirty": dirty} for dirty in (False, True))
    assert verdict.ended("complete", None, clean)["valid"]
    assert verdict.ended("complete", None, None)["valid"]
    assert [r["code"] for r in verdict.ended("complete", None, dirty)["reasons"]] == ["dirty_tree"]


def test_without_a_checkout_nobody_knows_what_ran():
    assert verdict.ended("complete", None)["unchecked"] == ["dirty_tree"]
    assert verdict.ended("complete", None, {"commit": "a" * 40, "dirty": False})["unchecked"] == []
    assert verdict.ended("running", None)["unchecked"] == []  # it is written when the run ends


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
