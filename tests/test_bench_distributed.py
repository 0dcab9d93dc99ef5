"""The distributed suite in real processes: two ranks over gloo through torchrun; and its parts alone."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import gc
import math
import os
import re
import statistics
import subprocess
import sys
import time
import weakref
from unittest import mock

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.core import batch_fit, derived, formulas, processor, results, timing, verdict
from benchmarks.core.progress import Progress
from benchmarks.core.ranks import DONE, World
from benchmarks.core.trainer import DTYPES, Steps
from benchmarks.distributed import algorithms, comm, expected, memory, models, operations, scaling, suite, training
from benchmarks.distributed.plans import Plan
from tests.support.launches import FOLDER, ONE_THREAD, SCRIPT, SMALL, TORCHRUN, launcher, only_record
from tests.support.processes import LONG, environment

near = pytest.approx
ALONE = World(0, 1, 0, torch.device("cpu"), "gloo", members=[{"host": "here", "gpu": None, "pid": 1}])


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """All four parts on two ranks, as the README starts it: from the script's folder, without a PYTHONPATH."""
    folder = tmp_path_factory.mktemp("results")
    clean = {name: value for name, value in environment(**ONE_THREAD).items() if name != "PYTHONPATH"}
    command = [sys.executable, *TORCHRUN, SCRIPT.name, *SMALL, "--output-dir", str(folder)]
    process = subprocess.run(command, cwd=FOLDER, env=clean, capture_output=True, text=True, timeout=2 * LONG)
    assert process.returncode == DONE, process.stdout + process.stderr
    path, data = only_record(folder)
    return path, data, process.stdout


# -- a whole run ---------------------------------------------------------------------------


@pytest.mark.long
def test_the_record_is_that_of_the_document_and_valid_by_the_schema(full):
    _, data, _ = full
    assert results.problems(data) == []
    assert (data["name"], data["world_size"], data["status"], data["error"]) == ("benchmark_2cpu", 2, "complete", None)
    assert (data["config"]["warmup_iters"], data["config"]["benchmark_iters"]) == (1, 4)
    assert set(data["results"]) == {"communication", "training", "memory", "scaling"}
    assert data["environment"]["argv"][0] == "distributed_benchmarks.py"


def test_tables_and_plots_stand_beside_it(full):
    path, _, output = full
    names = {other.name.removeprefix(path.stem) for other in path.parent.iterdir()}
    plots = {f"_{name}.png" for name in ("bandwidth", "latency", "pairs", "steps", "memory", "scaling")}
    assert names == {".json", ".txt", *plots}
    table = path.with_suffix(".txt").read_text()
    for text in (output, table):
        for word in ("allreduce", "p2p_bidirectional", "single us", "fsdp", "weak", "Karp-Flatt", "verdict:"):
            assert word in text


@pytest.mark.parametrize("name", [*operations.COLLECTIVES, *operations.TRANSFERS])
def test_communication(full, name):
    part = full[1]["results"]["communication"][name]
    assert [row["size_bytes"] for row in part["rows"]] == [1024, 65536]
    factor = {"allreduce": 1.0, "broadcast": 1.0, "p2p": 1.0, "p2p_bidirectional": 2.0}.get(name, 0.5)
    for row in part["rows"]:
        seconds = statistics.median(row["timing"]["samples_s"])
        assert row["wrong_elements"] == 0
        assert row["latency_us"] == near(seconds * 1e6)
        assert row["single_us"] == near(statistics.median(row["single"]["timing"]["samples_s"]) * 1e6)
        assert (len(row["single_by_rank_us"]), row["launch_us"]) == (2, None)  # a call on a CPU does the whole work
        assert row["algbw_gb_per_s"] == near(row["size_bytes"] / seconds / 1e9)
        assert row["busbw_gb_per_s"] == near(factor * row["algbw_gb_per_s"])
        assert row["algorithm"] == "unknown"


@pytest.mark.parametrize("name", operations.COLLECTIVES)
def test_both_ways_are_measured_and_checked(full, name):
    first, *others = operations.COLLECTIVES[name]
    for row in full[1]["results"]["communication"][name]["rows"]:
        assert row["buffers"] == first
        assert {"in_place", "out_of_place"} & set(row) == {way.replace(" ", "_") for way in others}
        for way in others:
            other = row[way.replace(" ", "_")]
            assert (other["size_bytes"], other["wrong_elements"]) == (row["size_bytes"], 0)
            seconds = statistics.median(other["timing"]["samples_s"])
            assert other["algbw_gb_per_s"] == near(other["size_bytes"] / seconds / 1e9)


def test_wrong_elements_of_either_way_count():
    part = {"allreduce": {"rows": [{"wrong_elements": 1, "out_of_place": {"wrong_elements": 2}}]}, "pairs": {}}
    assert suite.wrong_elements([part, None, {"ddp": {"wrong_elements": 4}, "source": "tiny"}]) == 7


def test_the_pair_matrix(full):
    matrix = full[1]["results"]["communication"]["pairs"]["gb_per_s"]
    assert [[value is None for value in row] for row in matrix] == [[True, False], [False, True]]


@pytest.mark.parametrize("engine", ["ddp", "fsdp"])
def test_training(full, engine):
    part = full[1]["results"]["training"]
    entry = part[engine]
    assert entry["timing"]["count"] == 4
    # all samples over all of the time, which is not shorter than its steps
    assert entry["samples_per_s"] == near(4 * 2 * 8 / entry["wall_s"])
    assert entry["tokens_per_s_per_rank"] == near(4 * 8 * 32 / entry["wall_s"])
    assert entry["wall_s"] >= 0.99 * sum(entry["timing"]["samples_s"]) / 2
    assert 0 <= entry["data_wait_share"] < 1
    assert entry["loss"] == near(math.log(256), rel=0.1)  # random tokens: there is nothing to learn
    synced, unsynced = (entry["exposed"][key]["timing"]["p50_s"] for key in ("synced", "unsynced"))
    assert entry["exposed"]["seconds"] == near(synced - unsynced)
    assert entry["mfu"]["mfu"] is None  # the peak of a CPU is unknown
    flops = 4 * 2 * 8 * models.SHAPES["tiny"].training_flops()
    assert entry["mfu"]["numerator_flops_per_s"] == near(flops / entry["wall_s"])


def test_a_slow_step_counts_in_the_throughput():
    """All samples over all of the time: nine steps of 1 s and one of 11 s are 10 steps in 20 s."""
    steps = Steps(wall=20.0, laps=[(1, 1.0)] * 9 + [(1, 11.0)], losses=[1.0] * 10)
    plan = Plan("tiny", models.SHAPES["tiny"], 8, "fp32", 0, 10, 0)
    used = training.figures(ALONE, plan, steps)
    assert (used["wall_s"], used["samples_per_s"], used["timing"]["p50_s"]) == (20.0, near(8 * 10 / 20), 1.0)


def test_the_gradients_all_reduce_is_predicted_and_measured(full):
    part = full[1]["results"]
    entry = part["training"]["gradient_allreduce"]
    assert entry["bytes"] == 4 * models.SHAPES["tiny"].parameters()
    assert part["communication"]["allreduce"]["fit"] is None  # of two sizes; a short sweep of its own predicts
    # on a busy machine all sizes may take the same time
    assert entry["fit"] is None or entry["predicted_s"] == near(training.predict(entry["fit"], [entry["bytes"]]))
    assert entry["measured_s"] == near(statistics.median(entry["timing"]["samples_s"]))


def test_memory(full):
    part = full[1]["results"]["memory"]
    parameters = 4 * models.SHAPES["tiny"].parameters()
    whole, half = (part[engine]["worst_rank"]["counted_bytes"] for engine in ("ddp", "fsdp"))
    assert (whole["parameters"], whole["gradients"]) == (parameters, parameters)
    assert (half["parameters"], half["gradients"]) == (parameters // 2, parameters // 2)
    assert whole["optimizer_state"] == near(2 * parameters, rel=0.01)
    assert half["optimizer_state"] == near(parameters, rel=0.01)
    assert whole["activations"] == half["activations"] > 0
    names = ("parameters", "activations", "gradients", "optimizer_state", "at_rest")
    assert part["ddp"]["rank_0"]["split_bytes"] == dict.fromkeys(names)
    assert "resident set" in part["ddp"]["source"]
    best = part["largest_batch"]
    assert best["budget_bytes"] == 32 * 2**20
    assert best.get("predicted") is None or best["tries"][0]["batch"] == best["predicted"]
    for row in best.get("rows", []):
        assert row["peak_bytes"] <= row["needed_bytes"]


#: bytes after load, engine, forward, backward, step, at rest, and the peak -> parameters, activations, gradients, state
STAGES = {
    "ddp": ([10, 20, 65, 20, 40, 40, 70], [10, 45, 10, 20]),
    "fsdp on 2 ranks": ([10, 5, 50, 10, 20, 15, 60], [5, 45, 5, 10]),
    "torch alone": ([10, 10, 55, 20, 40, 30, 70], [10, 45, 10, 20]),
}


@pytest.mark.parametrize("engine", STAGES)
def test_stages_are_split(engine):
    read, parts = STAGES[engine]
    split = memory.Stages(*read).split(exact=True)
    assert [split[name] for name in ("parameters", "activations", "gradients", "optimizer_state")] == parts
    assert set(memory.Stages(*read).split(exact=False).values()) == {None}


TINY = Plan("tiny", models.SHAPES["tiny"], 8, "fp32", 0, 1, 0)


@pytest.fixture
def without_training(monkeypatch):
    """No model is trained: its peak is simulated."""
    monkeypatch.setattr(memory, "trainer", lambda *_: mock.Mock(stage=lambda arrays: arrays))


@pytest.mark.usefixtures("without_training")
def test_the_largest_batch_has_room_for_the_gaps_too(monkeypatch):
    """A simulated GPU: a sample takes 10, the model 100, and gaps a tenth of all of it."""
    peak = lambda world, own, batch, staged, **_: batch_fit.Peak(batch, 100 + 10 * batch, 110 + 11 * batch)
    monkeypatch.setattr(memory, "steady_peak", peak)
    best = memory.largest(ALONE, TINY, 1000)
    assert [row["batch"] for row in best["rows"]] == [8, 16, 32]
    assert (best["predicted"], best["ran"], best["verified"]) == (80, 80, True)


@pytest.mark.usefixtures("without_training")
def test_nothing_fits(monkeypatch):
    monkeypatch.setattr(memory, "steady_peak", lambda world, own, batch, staged, **_: batch_fit.Peak(batch))
    assert memory.largest(ALONE, TINY, 1000)["skipped"] == "a batch of 8 does not fit; give a smaller --batch-size"


@pytest.mark.parametrize("mode", ["weak", "strong"])
def test_scaling(full, mode):
    rows = full[1]["results"]["scaling"][mode]["rows"]
    assert [row["ranks"] for row in rows] == [1, 2]
    assert [row["samples_per_step"] for row in rows] == ([8, 16] if mode == "weak" else [8, 8])
    one, two = (row["wall_s"] for row in rows)
    wanted = {"weak": one / two, "strong": one / (2 * two)}[mode]
    assert rows[1]["efficiency"] == near(wanted)
    assert rows[1]["karp_flatt"] == near((1 / (2 * wanted) - 0.5) / 0.5)
    assert (rows[0]["efficiency"], rows[0]["karp_flatt"], rows[0]["label"]) == (1.0, None, "baseline")
    assert rows[1]["label"] in ("suspicious", "excellent", "good", "below good")


def test_the_verdict_gathers_that_of_every_part(full):
    data = full[1]
    reasons = sorted(r["where"] + r["code"] for part in data["results"].values() for r in part["verdict"]["reasons"])
    known = [r["where"] + r["code"] for r in data["verdict"]["reasons"] if r["code"] != "dirty_tree"]
    assert reasons == sorted(known)
    for part in data["results"].values():  # the load of a part that is too short is not known
        unchecked = {"cpu_load", "cpu_steal"} & {*part["verdict"]["unchecked"]}
        assert bool(unchecked) == (part["processor"]["seconds"] < processor.SHORTEST_S)
    assert "throttled" in data["verdict"]["unchecked"]  # there is no NVML on a CPU, and the record says so


def test_one_rank(stack, tmp_path):
    process = launcher(stack)("--benchmark", "comm", *SMALL, "--output-dir", tmp_path, ranks=1)
    assert process.end() == DONE, process.output
    data = only_record(tmp_path)[1]
    # of the machine and the checkout that run this, nothing is known
    assert {reason["code"] for reason in data["verdict"]["reasons"]} <= {"cpu_load", "cpu_steal", "dirty_tree"}
    part = data["results"]["communication"]
    for row in part["allreduce"]["rows"]:
        assert (row["algbw_gb_per_s"], row["busbw_gb_per_s"], row["wrong_elements"]) == (None, None, 0)
    assert part["p2p"] == {"skipped": "a transfer needs two ranks"}
    assert part["allreduce"]["fit"] is None


# -- the parts alone -----------------------------------------------------------------------


def world(size=1, rank=0, gpus=()):
    members = [{"host": "a", "gpu": gpu, "pid": 1} for gpu in gpus]
    return World(rank, size, rank, torch.device("cpu"), "gloo", members=members)


@pytest.mark.parametrize("name", models.SHAPES)
def test_parameters_and_flops_are_those_counted(name):
    shape = models.SHAPES[name]
    model = models.build(shape, torch.device("meta"), seed=0)
    assert sum(p.numel() for p in model.parameters()) == shape.parameters()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(torch.zeros(1, shape.length, dtype=torch.long, device="meta"))
    assert counter.get_total_flops() == shape.forward_flops()


def test_a_model_that_is_not_its_formula_is_an_error(monkeypatch):
    monkeypatch.setattr(models.Shape, "parameters", lambda self: 1)
    with pytest.raises(AssertionError, match="134912 parameters counted, 1 by the formula"):
        models.build(models.SHAPES["tiny"], torch.device("cpu"), 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 64, 200, 512])
def test_sums_of_the_test_data_are_exact(ranks, dtype):
    tensors = [operations.values(r, 4096, world(ranks), DTYPES[dtype], 1, ranks) for r in range(ranks)]
    exact = sum(values.to(torch.int64) for values in tensors)
    total = torch.zeros(4096, dtype=DTYPES[dtype])
    for values in tensors:
        total += values
    assert torch.equal(total.to(torch.int64), exact)
    assert exact.max() <= operations.EXACT
    assert len(exact.unique()) > 1


def prepared(make, ranks, rank, repetition=0):
    """An operation of one of many ranks, whose result is the exact one."""
    operation = make(world(ranks, rank), 64 * ranks, torch.float32, repetition)
    ((result, expected),) = operation.results
    result.copy_(expected)
    return operation, result


def swap_blocks(out):
    blocks = out.view(-1, 64)
    blocks[[0, 8]] = blocks[[8, 0]].clone()


#: name -> the function, and what goes wrong with its result; each went unnoticed with values of (index + rank) mod 8
DAMAGE = {
    "all elements shuffled": (operations.allreduce, lambda out: out.copy_(out[torch.randperm(len(out))])),
    "all elements shifted by 8": (operations.allreduce, lambda out: out.copy_(out.roll(8))),
    "blocks 0 and 8 swapped": (operations.allgather, swap_blocks),
    "shifted by 8 elements": (operations.transfer((0, 1)), lambda out: out.copy_(out.roll(8))),
}


BLIND = [
    (kind, ranks)
    for kind, (make, _) in DAMAGE.items()
    for ranks in ((8, 16, 32) if make is operations.allreduce else (16, 32, 256, 512))
]


@pytest.mark.parametrize(("kind", "ranks"), BLIND)
def test_no_number_of_ranks_makes_the_check_blind(kind, ranks):
    make, damage = DAMAGE[kind]
    operation, result = prepared(make, ranks, 1)
    assert comm.wrong_elements([operation]) == 0
    damage(result)
    assert comm.wrong_elements([operation]) > 64


def test_a_result_of_another_repetition_is_wrong():
    (first, result), (_, stale) = (prepared(operations.allreduce, 8, 0, repetition) for repetition in (0, 1))
    result.copy_(stale)
    assert comm.wrong_elements([first]) > 64


def test_wrong_elements_are_counted():
    good = torch.arange(10.0)
    bad = good.clone()
    bad[3:5] = -1
    slots = [operations.Prepared(timing.nothing, timing.nothing, [(out, good)]) for out in (good, bad, bad)]
    assert comm.wrong_elements(slots) == 4


ELEMENTS = [(1024, 2, 256), (1024, 3, 255), (1, 4, 4), (2**20, 8, 2**18)]


@pytest.mark.parametrize(("size", "ranks", "wanted"), ELEMENTS)
def test_elements_divide_by_the_ranks(size, ranks, wanted):
    assert formulas.message_elements(size, ranks, 4) == wanted


def test_nothing_is_expected_of_two_ranks_on_one_gpu():
    part = {"allreduce": {"rows": [{"busbw_gb_per_s": 360.0}]}}
    assert expected.compared(part, "NVIDIA H200", 2, 1)
    assert expected.compared(part, "NVIDIA H200", 2, 1, 2) == []


def test_expected_bandwidths_stand_beside_the_measured():
    part = {"allreduce": {"rows": [{"busbw_gb_per_s": 1.0}, {"busbw_gb_per_s": 360.0}]}, "p2p": {"skipped": ""}}
    rows = expected.compared(part, "NVIDIA H200", 8, 1)
    assert [(row["expected_gb_per_s"], row["ratio"]) for row in rows] == [
        (450.0, near(0.8)),
        (480.0, near(0.75)),
        (367.0, near(360 / 367)),
    ]
    assert all(row["source"] for row in rows)
    assert [row["expected_gb_per_s"] for row in expected.compared(part, "NVIDIA H100 80GB HBM3", 2, 1)] == [450.0]
    for device, ranks, nodes in (("NVIDIA H100 PCIe", 8, 1), ("NVIDIA H200", 16, 2), ("NVIDIA A100", 8, 1)):
        assert expected.compared(part, device, ranks, nodes) == []


def test_pairs():
    assert comm.pairs(3) == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]
    assert comm.pairs(32)[-1] == (31, 0)
    assert len(comm.pairs(32)) == 32


def test_two_ranks_on_one_gpu_are_no_measurement():
    assert world(2, gpus=["GPU-1", "GPU-2"]).ranks_per_gpu() == 1
    shared = world(2, gpus=["GPU-1", "GPU-1"]).ranks_per_gpu()
    judgement = verdict.judge({"ranks_per_gpu": shared}, ["shared_gpu"])
    assert not judgement["valid"]
    assert "two ranks on one GPU" in judgement["reasons"][0]["message"]


def test_buckets_are_those_of_ddp():
    mib = 2**20
    assert training.buckets(1000) == [1000]
    assert training.buckets(60 * mib) == [mib, 25 * mib, 25 * mib, 9 * mib]
    piece = {"smallest": 10**6, "largest": 10**9, "alpha_s": 1e-3, "seconds_per_byte": 1e-9}
    assert training.predict({"pieces": [piece]}, [10**9, 5 * 10**8]) == near(1.502)
    assert training.predict({"pieces": [piece]}, [10**9, 10**5]) is None  # one bucket is smaller than what was measured
    assert training.predict(None, [1]) is None


def test_an_invalid_run_gives_an_invalid_fit():
    sizes = [2**k for k in range(10, 20)]
    row = lambda size, cv: {
        "size_bytes": size,
        "timing": {"p50_s": 1e-5 + size / 1e9},
        "verdict": verdict.judge({"cv": cv}, ["cv"]),
    }
    assert comm.fitted([row(size, 0.01) for size in sizes])["valid"]
    assert not comm.fitted([row(size, 0.5 if size == 2**15 else 0.01) for size in sizes])["valid"]


def test_batches_of_scaling():
    plan = Plan("tiny", models.SHAPES["tiny"], 8, "fp32", 1, 1, 0)
    assert scaling.samples_per_rank("weak", plan, [1, 2, 4]) == {1: 8, 2: 8, 4: 8}
    assert scaling.samples_per_rank("strong", plan, [1, 2, 4]) == {1: 8, 2: 4, 4: 2}
    assert scaling.samples_per_rank("strong", plan, [1, 2, 4, 6]) == {1: 12, 2: 6, 4: 3, 6: 2}


def test_the_readme_names_every_flag():
    written = re.findall(r"^\| `(--[\w-]+)`", (FOLDER / "README.md").read_text(), re.M)
    assert written == [flag for flag in suite.parser()._option_string_actions if flag.startswith("--")][1:]


SIZES = [("512", 512), ("64K", 65536), ("1m", 2**20), ("2GiB", 2**31), ("8MB", 8 * 2**20)]


@pytest.mark.parametrize(("text", "wanted"), SIZES)
def test_sizes(text, wanted):
    assert suite.parse_size(text, "--sizes") == wanted


LOGS = {
    "with names": ("NCCL INFO AllReduce: 1024 Bytes -> Algo RING proto SIMPLE channel{0..1}", ["Ring/Simple"]),
    "with numbers": ("NCCL INFO 1024 Bytes -> Algo 1 proto 2 time 5.2", ["Ring/Simple"]),
    "two, once each": (2 * "16 Bytes -> Algo 4 proto 2\n16 Bytes -> Algo 0 proto 0\n", ["NVLS/Simple", "Tree/LL"]),
    "a barrier's": ("4 Bytes -> Algo 1 proto 0\n1024 Bytes -> Algo 1 proto 2\n", ["Ring/Simple"]),
    "none": ("NCCL INFO Connected all rings", []),
}


@pytest.mark.parametrize(("text", "wanted"), LOGS.values(), ids=LOGS)
def test_the_log_of_nccl(text, wanted):
    assert algorithms.parse(text) == wanted


def test_the_algorithm_of_each_operation(tmp_path, monkeypatch):
    log = tmp_path / f"log.{os.getpid()}"
    monkeypatch.setenv("NCCL_DEBUG_FILE", str(tmp_path / "log.%p"))
    monkeypatch.delenv("NCCL_ALGO", raising=False)
    algorithm = algorithms.Algorithms("nccl")
    assert algorithm.since_last() == "unknown"
    log.write_text(LOGS["with names"][0] + "\n")
    assert (algorithm.since_last(), algorithm.since_last()) == ("Ring/Simple", "unknown")
    assert algorithm.all() == "Ring/Simple"
    monkeypatch.setenv("NCCL_ALGO", "Tree")
    assert algorithm.since_last() == "NCCL_ALGO=Tree"
    assert algorithms.Algorithms("gloo").all() == "unknown"


def test_graphs_are_freed_before_the_process_group(monkeypatch):
    """NCCL waits for the graphs of a communicator when it is destroyed, and the collector may not run before."""
    graphs, captures = weakref.WeakSet(), []

    class Graph:
        def __init__(self):
            graphs.add(self)
            captures.append(len(graphs))

        def replay(self):
            pass

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, **_: contextlib.nullcontext())
    buffer = torch.ones(3)
    slots = [operations.Prepared(lambda: buffer.add_(1), timing.nothing, [(buffer, buffer)]) for _ in range(3)]
    gc.collect()
    gc.disable()
    try:
        comm.rounds(world(1), slots, comm.Plan([64], 0, 2, "fp32", graphs=True))
        assert (len(captures), len(graphs)) == (4, 0)  # of the queue, and of each operation
    finally:
        gc.enable()


def test_both_times_and_the_launch_are_what_they_are_called(monkeypatch):
    """One at a time, back to back, and the host's time of a call: each has its own figures."""
    times = [5e-6] * 3, [2e-6] * 3, [1e-6, 1e-6, 9e-6], 0
    monkeypatch.setattr(comm, "rounds", lambda world, slots, plan: times)
    plan, make = comm.Plan([1024], 0, 3, "fp32"), lambda *words: None
    gpu = dataclasses.replace(world(1), device=torch.device("cuda"))
    row = comm.measure(gpu, "allreduce", make, 1024, plan)
    assert (row["single_us"], row["latency_us"], row["launch_us"]) == (near(5), near(2), near(1))
    assert (row["single"]["timing"]["p50_s"], row["timing"]["p50_s"]) == (near(5e-6), near(2e-6))
    assert row["launch"] == {"median": 1e-6, "seconds": [1e-6, 1e-6, 9e-6]}
    slower = times[0], times[1], [2e-6] * 3, 0
    with mock.patch.object(World, "gather", lambda self, own: [own, slower, own]):
        assert comm.measure(gpu, "allreduce", make, 1024, plan)["launch_us"] == near(2)  # of the slowest rank
    place = derived.Place("results.communication.allreduce.rows[0]", {"world_size": 1})
    assert derived.transfer(row | {"launch_us": 0.5}, place)["launch_us"] == near(1)  # an edited figure is noticed
    assert comm.measure(world(1), "allreduce", make, 1024, plan)["launch_us"] is None


def test_operations_of_a_queue_follow_each_other_without_waiting(monkeypatch):
    """The device is idle before the first one only, and the launch is the host's time alone."""
    log = []
    monkeypatch.setattr(timing, "synchronize", lambda device: log.append("idle"))
    monkeypatch.setattr(timing, "mark", lambda device: log.append("mark") or float(len(log)))
    slot = lambda name: operations.Prepared(lambda: log.append(name), timing.nothing, [])
    queue = [slot("b"), slot("c")]
    seconds, launch = comm.back_to_back(world(1), slot("a"), lambda: (comm.run_all(queue), time.sleep(0.01)), 2)
    assert log == ["idle", "a", "mark", "b", "c", "mark", "idle"]
    assert seconds == 1.5  # of the marks: three events later, two operations
    assert 0.005 <= launch < 1


def test_a_graph_keeps_its_buffers(monkeypatch):
    """A graph holds addresses: buffers that only its action refers to must not be freed before it is replayed."""

    class Graph:
        replayed = 0

        def replay(self):
            Graph.replayed += 1

    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, **_: contextlib.nullcontext())
    buffer = torch.ones(3)
    alive = weakref.ref(buffer)
    replay = comm.captured(functools.partial(buffer.add_, 1))
    del buffer
    gc.collect()
    replay()
    assert Graph.replayed == 1
    assert alive().tolist() == [2.0] * 3


def test_wrong_elements_of_one_way_make_the_row_not_valid(monkeypatch):
    judged = {"in": verdict.judge({"wrong_elements": 0}, ["wrong_elements"])}
    judged["out"] = verdict.judge({"wrong_elements": 1}, ["wrong_elements"])
    monkeypatch.setattr(comm, "measure", lambda world, name, make, size, plan: {"verdict": judged[make]})
    row = comm.both_ways(None, "allreduce", {"in place": "in", "out of place": "out"}, 8, None)
    assert [reason["code"] for reason in row["verdict"]["reasons"]] == ["wrong_elements"]


def test_a_slow_link_of_the_matrix_is_in_its_verdict(monkeypatch):
    speeds = iter([20.0 if pair == (1, 2) else 100.0 for pair in comm.pairs(4)])

    def measure(*_):
        return {"algbw_gb_per_s": next(speeds), "timing": {"samples_s": []}, "size_bytes": 8, "wrong_elements": 0}

    monkeypatch.setattr(comm, "measure", measure)
    members = [{"host": "a", "gpu": None}] * 4
    plan = comm.Plan([8], 0, 1, "fp32")
    matrix = comm.pair_matrix(World(0, 4, 0, torch.device("cpu"), "gloo", members=members), plan, Progress("", 12))
    assert "the link from rank 1 to 2 with 20 GB/s" in matrix["verdict"]["reasons"][0]["message"]
