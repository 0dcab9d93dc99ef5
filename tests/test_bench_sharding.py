"""The auto-shard benchmarks on two real CPU workers: the printed figures follow from the measured times."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import types

import msgspec
import numpy as np
import pytest

import gt
from benchmarks import sharding, simulate
from benchmarks.autoshard import cases, measuring, report, suite, watching
from benchmarks.autoshard.system import System
from benchmarks.core import audit, derived, results, sampler
from benchmarks.core.formulas import geometric_mean
from benchmarks.simulation import calibrate
from benchmarks.simulation.machine import read
from benchmarks.simulation.workloads import Workload, mlp, mlp_step
from gt.client.tensor import random_state
from gt.wire.shared import host_identity
from gt.wire.structures import WorkerInfo
from tests.support.processes import ROOT, free_port
from tests.support.processes import System as Processes
from tests.support.processes import environment as clean

near = pytest.approx


@pytest.fixture(autouse=True)
def own_seed():
    """Seeding here must not change the random numbers of other tests."""
    with random_state.restored(None):
        yield


TINY = ("--quick", "--scale", "0.02", "--iters", "2")


def run(script, *words, **environment):
    """(exit code, output, errors) of a script, as a user starts it."""
    command = [sys.executable, str(ROOT / "benchmarks" / script), *map(str, words)]
    process = subprocess.run(command, capture_output=True, text=True, env=clean(**environment))
    return process.returncode, process.stdout, process.stderr


# -- the scripts ---------------------------------------------------------------------------

FIGURE = re.compile(r"([\d.]+)s \(([\d.]+) TF\)")
ROW = re.compile(r"^(\S.*?)\s*\| +([\d.]+s.*)$")


def tables(text):
    """(case, [(seconds, TFLOPS)…], [speedup…]) of every row of the comparisons, in order."""
    rows = []
    for line in text[text.index("PERFORMANCE COMPARISON") :].splitlines():
        if (row := ROW.match(line)) and FIGURE.search(line):
            rows.append((row[1], [tuple(map(float, pair)) for pair in FIGURE.findall(row[2])], []))
        elif line.startswith("Speedup:"):
            rows[-1][2].extend(float(x) for x in re.findall(r"([\d.]+)x", line))
    return rows


def check_output(text, folder):
    """TFLOPS are 2mkn over the time shown, speedups the ratio of the times shown, the summary the means of those."""
    expected = {case.name: case.flops for case in cases.chosen(True, 0.02)}
    rows = tables(text)
    assert [name for name, _, _ in rows] == [*expected, *expected], "together, then compute alone"
    for name, figures, gained in rows:
        assert len(figures) == 2
        for seconds, tflops in figures:
            assert tflops == near(expected[name] / seconds / 1e12, rel=0.05, abs=6e-5)
        (first, _), (second, _) = figures
        assert gained == [near(first / second, rel=0.02, abs=0.011)]
    for number, at in ((0, 0), (1, len(expected))):
        means = re.findall(r"Average speedup: ([\d.]+)x \(geometric mean; arithmetic ([\d.]+)x\)", text)[number]
        gains = [gained[0] for _, _, gained in rows[at : at + len(expected)]]
        assert float(means[0]) == near(geometric_mean(gains), rel=0.02, abs=0.011)
        assert float(means[1]) == near(sum(gains) / len(gains), rel=0.02, abs=0.011)
    (path,) = folder.glob("*.json")
    check_record(json.loads(path.read_text()), expected)


def check_record(record, expected):
    assert not results.problems(record)
    assert record["status"] == "complete"
    assert not audit.problems(record)
    assert record["config"]["workers"] == [1, 2]
    measured = [m for group in cases.GROUPS for m in record["results"][group].items()]
    assert [name for name, _ in measured] == list(expected)
    for name, figures in measured:
        for n in ("1", "2"):
            assert figures[n]["wrong_elements"] == 0
            own_server = record["suite"] == "quick_benchmark"
            assert ("cpu_load" in figures[n]["verdict"]["unchecked"]) is not own_server
            assert (figures[n]["processor"] is None) is not own_server
            assert figures[n]["flops"] == expected[name]
            assert figures[n]["tflops"] == near(expected[name] / figures[n]["together"]["timing"]["p50_s"] / 1e12)
            for part in (*measuring.PARTS, "together", "barrier"):
                assert len(figures[n][part]["timing"]["samples_s"]) == 2


@pytest.mark.long
def test_quick_benchmark_starts_and_stops_everything(tmp_path):
    port = free_port()
    words = ("--gpus", 2, 1, *TINY, "--port", port, "--output-dir", tmp_path)
    code, out, errors = run("quick_benchmark.py", *words, CUDA_VISIBLE_DEVICES="")
    assert code == 0, errors
    assert "BENCHMARK 1: Square Matrix Multiplications" in out
    assert "2 CPUs vs 1 CPU:" in out
    check_output(out, tmp_path)
    code, _, errors = run("auto_shard_benchmark.py", "--port", port)
    assert (code, errors[:18]) == (1, "Connection refused"), "nothing is left running"


@pytest.fixture(scope="module")
def running():
    """A system of two workers that this process is connected to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CUDA_VISIBLE_DEVICES", "")
        with System(2, free_port()) as system:
            yield system


@pytest.mark.long
def test_auto_shard_benchmark_uses_the_first_workers(running, tmp_path):
    server = {"GT_SERVER": f"localhost:{running.port}", "GT_TOKEN": os.environ["GT_TOKEN"]}
    code, out, errors = run("auto_shard_benchmark.py", "--gpus", 1, 2, *TINY, "--output-dir", tmp_path, **server)
    assert code == 0, errors
    check_output(out, tmp_path)
    options = suite.parse(
        suite.parser("auto_shard_benchmark.py", ""), ["--gpus", "3", "--output-dir", str(tmp_path)], 1
    )
    with pytest.raises(suite.BadInput, match=r"--gpus 3: the system has 2 worker\(s\)"):
        suite.Run(options, "auto_shard_benchmark")


def test_one_side_after_the_other_gives_the_same_values(running):
    sizes = sharding.Sizes(2, (96, 64, 64), (64, 16, 32, 8), (32, 16, 2), 2, running.port)
    for setup, step in sharding._programs(sizes).values():
        sides = sharding.Sides(setup, step, {"none": None, "one": 1, "two": 2})
        first = {name: sides.values[name] for name in ("none", "one", "two")}
        assert first["one"] == near(first["none"], rel=1e-3)
        assert first["two"] == near(first["none"], rel=1e-3)
        taken = sides.in_turns(2, 2)
        assert all(len(samples) == 2 and min(samples) > 0 for samples in taken.values())


def test_calibration_gives_a_machine(running, monkeypatch):
    monkeypatch.setattr(calibrate, "ELEMENTS", 1 << 16)
    monkeypatch.setattr(calibrate, "LARGE", 1 << 14)
    monkeypatch.setattr(calibrate, "WIDTH", 128)
    tiny = Workload("tiny", mlp((16, 32, 8)), mlp_step, 32)
    machine, real = calibrate.in_turns(read("2cpu"), {"tiny": (tiny, 64)}, rounds=2)
    assert machine.workers == 2
    assert machine.name.endswith("(calibrated)")
    assert min(machine.flops["float32"], machine.memory_bandwidth, machine.link.bandwidth, machine.launch_us) > 0
    assert len(real["tiny"]) == 2
    assert min(real["tiny"]) > 0


@pytest.mark.parametrize("group", cases.GROUPS)
def test_results_of_any_size_are_checked_in_sampled_rows_and_columns(running, group):
    gt.auto_shard(workers=[0, 1])
    case = cases.Case(group, {"mlp": (96, 40, 24, 48)}.get(group, (96, 40, 48)))
    operands = case.create()
    result = case.compute(operands).numpy()
    assert measuring.wrong_elements(case, operands, result) == 0
    gt.auto_shard(False)
    for damage in (lambda r: r[::-1], lambda r: np.roll(r, 1, axis=1), lambda r: np.vstack([r[:48], r[:48]])):
        assert measuring.wrong_elements(case, operands, damage(result)) > 100
    last = result.copy()
    last[-1, -1] = np.nan
    assert measuring.wrong_elements(case, operands, last) == 1
    assert cases.CASES[2].nbytes > 2**31, "the largest case is checked as the others are"
    rows, columns = cases.CASES[2].sampled(measuring.SAMPLED)
    assert (rows[0], rows[-1], len(rows), len(columns)) == (0, 16383, 16, 16)


def test_a_wrong_result_of_a_large_case_makes_its_row_invalid():
    """Whatever the size: the result is that of a fake, so that nothing is computed."""
    case = types.SimpleNamespace(
        name="16384", dims=(16384,) * 3, flops=1.0, nbytes=2**33, create=tuple,
        compute=lambda operands: types.SimpleNamespace(numpy=lambda: np.zeros((4, 4))),
        sampled=lambda count: (np.arange(2), np.arange(2)), expected=lambda *words: np.ones((2, 2)),
    )  # fmt: skip
    bench = object.__new__(measuring.Bench)
    bench.workers, bench.barrier = 1, lambda: None
    row = bench.measure(case, 3)
    assert row["wrong_elements"] == 4
    assert "wrong_elements" in {reason["code"] for reason in row["verdict"]["reasons"]}


WORKERS = [WorkerInfo(n, "torch", "cpu", host_identity(), -2 - n) for n in range(2)]


def test_no_process_of_a_run_is_another_program():
    watch = watching.Watch(WORKERS, 1, True)
    assert (watch._pids, watch.world.device.type) == ([os.getpid(), -2, -3], "cpu")
    watch = watching.Watch([msgspec.structs.replace(worker, gpu=f"{worker.id}") for worker in WORKERS], 1, True)
    assert (watch._sampler.uuids, watch.world.device.type) == (["GPU-0"], "cuda")


@pytest.mark.parametrize(("own_server", "codes"), [(True, ["cpu_load", "cpu_steal"]), (False, [])])
def test_the_load_of_other_programs_counts_into_a_row(own_server, codes, monkeypatch):
    """Unknown where the server is a process of somebody else."""
    monkeypatch.setattr(sampler.processor, "shares", lambda *_: {"others": 0.5, "steal": 0.5, "seconds": 2.0})
    with watching.Watch(WORKERS, 1, own_server) as watch:
        row = result(cases.CASES[0], 1, 0.5)
    judged = watch.judged(row, "here")
    assert [reason["code"] for reason in judged["verdict"]["reasons"]] == codes
    record = {"suite": "quick_benchmark", "world_size": 1, "config": {"device_type": "CPU"}}
    assert not list(audit.contradicted(judged, derived.Place("here", record)))
    judged["verdict"] = row["verdict"]
    assert bool(codes) == bool(list(audit.contradicted(judged, derived.Place("here", record))))


@pytest.mark.parametrize("part", measuring.JUDGED)
def test_no_time_behind_a_rate_may_vary(part):
    samples = {name: [1.0, 2.0 if name == part else 1.0] for name in (*measuring.PARTS, "together")}
    row = measuring.result(cases.CASES[0], 1, samples, samples.pop("together"), [1.0, 2.0], 0)
    (reason,) = row["verdict"]["reasons"]
    assert (reason["code"], reason["where"]) == ("cv", f"4096x4096 on 1: {part}")
    older = derived.case_timings(row)
    assert (older, len(derived.case_timings(row | {"processor": None}))) == ([row["together"]["timing"]], 2)


# -- failures --------------------------------------------------------------------------------

WRONG = [
    (("--gpus", "0"), "--gpus 0: at least 1"),
    (("--gpus", "two"), "invalid int value: 'two'"),
    (("--iters", "0"), "--iters 0: at least 1"),
    (("--scale", "-1"), "--scale -1: more than 0, at most 16"),
    (("--port", "70000"), "--port 70000: at most 65535"),
    (("--output-dir", "/proc/nowhere"), "cannot write to /proc/nowhere"),
    (("--what",), "unrecognized arguments: --what"),
]


@pytest.mark.parametrize(("words", "message"), WRONG, ids=[" ".join(words) for words, _ in WRONG])
def test_wrong_arguments(words, message, capsys):
    with pytest.raises(SystemExit) as ended:
        suite.parse(suite.parser("quick_benchmark.py", ""), words, 1)
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_no_workers(stack, tmp_path):
    server = Processes(stack)
    words = ("--port", server.port, "--output-dir", tmp_path)
    code, _, errors = run("auto_shard_benchmark.py", *words)
    assert code == 1
    assert errors.startswith("No workers available: start one with: python -m gt.worker")
    assert str(server.port) in errors
    with pytest.raises(suite.BadInput, match=rf"--port {server.port} cannot be used \(Address already in use\)"):
        System(1, server.port)


def test_messages_of_a_failed_run(capsys):
    for error, code, message in (
        (gt.OutOfMemory("matmul(float32[9,9], float32[9,9]): no room\nmore"), 1, "Out of memory: matmul"),
        (gt.ConnectionLost("the server is gone"), 1, "Connection refused: the server is gone"),
        (gt.WorkerLost("worker 1 is gone"), 1, "failed: worker 1 is gone"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ):

        def act(error=error):
            raise error

        assert suite.run(act) == code
        assert capsys.readouterr().err.startswith(message)


def test_more_gpus_than_there_are(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(suite.BadInput, match=r"--gpus 8: there are 2 GPU\(s\) here"):
        System(8, 9000)


def test_the_launcher_is_the_quick_benchmark():
    process = subprocess.run(
        ["bash", str(ROOT / "benchmarks" / "launch_8gpu_benchmark.sh"), "--quick"],
        capture_output=True,
        text=True,
        env={"PATH": "/usr/bin:/bin", "PYTHON": "echo"},
    )
    assert process.stdout == "benchmarks/quick_benchmark.py --gpus 1 8 --port 9000 --quick\n", process.stderr


# -- cases and texts -------------------------------------------------------------------------


def test_the_cases_are_the_documented_ones():
    assert [case.name for case in cases.CASES[:6]] == [
        *("4096x4096", "8192x8192", "16384x16384"),
        *("(8192,4096)@(4096,4096)", "(16384,4096)@(4096,4096)", "(32768,2048)@(2048,2048)"),
    ]
    assert [case.dims[0] for case in cases.CASES[6:]] == [4096, 8192, 16384]
    assert all(len(case.dims) == 5 for case in cases.CASES[6:]), "3 layers each"
    assert [case.group for case in cases.QUICK] == ["square", "batch", "mlp"]
    assert cases.CASES[2].flops == 2 * 16384**3
    assert cases.Case("mlp", (10, 2, 3, 4)).flops == 2 * 10 * (2 * 3 + 3 * 4)


def test_sizes_scale_down_automatically():
    assert cases.Case("batch", (8192, 4096, 4096)).scaled(0.125).dims == (1024, 512, 512)
    assert cases.Case("batch", (100, 30, 1)).scaled(0.5).dims == (48, 16, 16)
    assert suite.scale_for("CPU", False, None)[0] == 0.125
    assert suite.scale_for("GPU", False, 80 << 30) == (1.0, "")
    scale, notice = suite.scale_for("GPU", False, 4 << 30)
    assert scale == 0.5
    assert notice.startswith("a GPU of 4 GiB: sizes are scaled by 0.5")


def result(case, workers, seconds):
    samples = {part: [seconds / 4] for part in measuring.PARTS}
    return measuring.result(case, workers, samples, [seconds], [0.001], 0)


def test_the_summary_says_which_mean():
    """The times of the documented example: its speedups and their arithmetic mean follow from them."""
    times = [(0.234, 0.089), (1.567, 0.234), (11.23, 1.498), (0.789, 0.156), (1.534, 0.198), (1.123, 0.145)]
    rows = [(c, {1: result(c, 1, a), 8: result(c, 8, b)}) for c, (a, b) in zip(cases.CASES, times, strict=False)]
    summed = report.summary(rows)["together"]["8"]
    assert summed["arithmetic_mean"] == near(6.23, abs=0.01)
    assert summed["geometric_mean"] == near(geometric_mean([a / b for a, b in times]))
    assert (summed["min"], summed["max"]) == (near(0.234 / 0.089), near(1.534 / 0.198))
    summary = report.summary_text(report.summary(rows), [1, 8], "GPU")
    assert "8 GPUs vs 1 GPU:" in summary
    assert "Average speedup: 5.85x (geometric mean; arithmetic 6.23x)" in summary
    text = report.comparison(rows, "GPU")
    assert re.search(r"16384x16384 +\| +11\.230s \(0\.7833 TF\) \| +1\.498s \(5\.8719 TF\)", text)


def test_documented_bands_stand_beside_the_measured_speedups():
    rows = [
        (case, {1: result(case, 1, 8.0), 8: result(case, 8, 1.6)})
        for case in (*cases.QUICK, cases.QUICK[0].scaled(0.1))
    ]
    lines = report.expected(rows, "GPU")
    assert [line[1:3] for line in lines] == [
        ["4 – 6x", "5.00x"],
        ["7 – 8x", "5.00x"],
        ["7 – 8x", "5.00x"],
        ["1 – 2x", "5.00x"],
    ]
    assert [line[3] for line in lines] == [1.0, near(5 / 7.5), near(5 / 7.5), near(5 / 1.5)]
    assert report.expected(rows, "CPU") == []


def test_one_number_of_workers_has_no_speedup():
    case = cases.CASES[0]
    rows = [(case, {8: result(case, 8, 1.0)})]
    assert "Speedup" not in report.comparison(rows, "GPU")
    assert "no speedup" in report.summary_text(report.summary(rows), [8], "GPU")


# -- the figures -----------------------------------------------------------------------------


def test_figures_of_the_dispatcher(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sharding, "CHAIN", 100)
    assert sharding.main(["--quick", "--only", "plan", "workers", "--output-dir", str(tmp_path)]) == 0
    assert "dispatcher for 64 workers" in capsys.readouterr().out
    (path,) = tmp_path.glob("*.json")
    record = json.loads(path.read_text())
    assert not results.problems(record)
    for row in (*record["results"]["plan"].values(), *record["results"]["workers"].values()):
        assert row["value"] > 0
        assert row["reached"] is None or row["reached"] == (row["value"] <= row["bound"])


@pytest.mark.long
def test_figures_of_waiting_for_collectives(tmp_path, capsys):
    words = ["--quick", "--only", "exposed", "--port", str(free_port()), "--output-dir", str(tmp_path)]
    assert sharding.main(words) == 0
    assert "fully sharded, with prefetching" in capsys.readouterr().out
    (path,) = tmp_path.glob("*.json")
    without, with_it, ratio = json.loads(path.read_text())["results"]["exposed"].values()
    assert len(without["samples"]) == len(with_it["samples"]) == sharding.QUICK.rounds
    assert ratio["value"] == near(with_it["value"] / without["value"])
    assert "GT_NO_PREFETCH" not in os.environ


def test_simulate_refuses(tmp_path, capsys):
    for words, message in (
        (["--machine", "abacus"], "--machine abacus: no such machine; there are 2cpu"),
        (["--machine", "8xh100", "--workers", "9"], "has 1 to 8"),
        (["--machine", "8xh100", "--check"], "use them with --machine 2cpu"),
        (["--batch", "0"], "--batch 0: at least 1"),
    ):
        assert simulate.main([*words, "--output-dir", str(tmp_path)]) == 2
        assert message in capsys.readouterr().err
