"""Every failure of a run of the distributed suite: it is reported, ends every rank, and leaves a valid record."""

from __future__ import annotations

import json
import re
import signal

import pytest
import torch

from benchmarks.core import results
from benchmarks.core.ranks import BAD_INPUT, DONE, FAILED, INTERRUPTED, BadInput
from benchmarks.distributed import recording, suite
from tests.support.launches import SMALL, launcher, only_record
from tests.support.processes import alive, wait_until


@pytest.fixture
def launch(stack):
    return launcher(stack)


BAD = {
    "an unknown size": (["--sizes", "12Q"], "--sizes 12Q: not a size; write bytes, or a number with K, M or G"),
    "no size at all": (["--sizes", "0"], "--sizes 0: not a size"),
    "nccl without a GPU": (["--backend", "nccl"], "--backend nccl needs a GPU and torch sees none: use --backend gloo"),
    "an unknown part": (["--benchmark", "com"], "invalid choice: 'com'"),
    "an unknown model": (["--model", "huge"], "invalid choice: 'huge'"),
    "no iterations": (["--iters", "0"], "--iters 0: at least 1"),
    "negative warm-up": (["--warmup", "-1"], "--warmup -1: at least 0"),
    "no batch": (["--batch-size", "0"], "--batch-size 0: at least 1"),
    "a wrong budget": (["--memory-budget", "lots"], "--memory-budget lots: not a size"),
    "graphs without a GPU": (["--cuda-graph"], "--cuda-graph captures the work of a GPU, and gloo runs on CPUs"),
    "a replay without a file": (["--benchmark", "replay"], "give the recorded collectives with --replay FILE"),
    "a file that is not there": (["--replay", "/nowhere"], "--replay /nowhere: No such file or directory"),
    "a record without a step": (["--benchmark", "comm", "--record", "x"], "only the training has a step to record"),
    "a record that exists": (["--record", __file__], "File exists"),
    "a record nowhere": (["--record", "/nowhere/x"], "cannot write to /nowhere"),
    "an unknown flag": (["--frobnicate"], "unrecognized arguments: --frobnicate (see --help)"),
}


@pytest.mark.parametrize(("words", "message"), BAD.values(), ids=BAD)
def test_bad_input(words, message, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BadInput) as error:
        suite.settings(words)
    assert message in str(error.value)


def test_bad_input_is_said_once_and_ends_all_ranks(launch, tmp_path):
    (tmp_path / "file").write_text("")
    process = launch("--output-dir", tmp_path / "file", *SMALL)
    assert process.end() == FAILED  # torchrun's own exit code; the rank's exit code is in its message
    assert sum("cannot write to" in line for line in process.lines) == 1, process.output
    assert f"exitcode  : {BAD_INPUT}" in process.output


def wait_for_results(folder):
    """Wait until something is measured and more is still to come."""

    def has_results():
        paths = list(folder.glob("*.json"))
        return paths and json.loads(paths[0].read_text())["results"].get("communication", {}).get("allreduce")

    wait_until(has_results, what="the first operation")


def test_ctrl_c_leaves_what_was_measured(launch, tmp_path):
    process = launch("--benchmark", "comm", "--sizes", "1K", "--iters", 500, "--output-dir", tmp_path)
    wait_for_results(tmp_path)
    process.kill(signal.SIGINT)
    assert process.end() != DONE
    path, data = only_record(tmp_path)
    assert results.problems(data) == []
    assert data["status"] == "interrupted"
    assert "SIGINT" in data["error"]
    assert data["results"]["communication"]["allreduce"]["rows"][0]["timing"]["count"] == 500
    assert data["verdict"]["reasons"][0]["code"] == "interrupted"
    assert list(tmp_path.iterdir()) == [path]


def test_one_rank_that_is_terminated(launch, tmp_path):
    process = launch("--benchmark", "comm", "--sizes", "1K", "--iters", 5000, "--output-dir", tmp_path, ranks=1)
    wait_for_results(tmp_path)
    process.kill(signal.SIGTERM)
    assert process.end() == INTERRUPTED
    assert only_record(tmp_path)[1]["status"] == "interrupted"


FAULTY = """
import os, signal, sys, time
import torch, torch.distributed as dist
from benchmarks.core import ranks
from benchmarks.core.trainer import Trainer
from benchmarks.distributed import suite, training

rank = ranks.rank()
real_reduce, real_doubled, real_passes = dist.all_reduce, training.doubled, Trainer.passes
calls = 0

def wrong_reduce(buffer, *args, **more):
    global calls  # wrong on every second call
    done = real_reduce(buffer, *args, **more)
    calls += buffer.numel() > 100
    if rank == 1 and buffer.numel() > 100 and calls % 2:
        buffer[7] += 1
    return done

def slow_passes(self, batch, sync=True):
    # without exchange only the delay counts, so that the load of the machine that runs this does not
    if rank == 1:
        time.sleep(0.06)
    return real_passes(self, batch, sync) if sync else None

def doubled(world, plan):
    world.gather(None)  # the first rank has its record by now
    if rank == 1:
        {action}
    return real_doubled(world, plan)

{patch}
ranks.run(suite.main)
"""


def faulty(folder, action="pass", patch="training.doubled = doubled"):
    path = folder / "faulty.py"
    path.write_text(FAULTY.format(action=action, patch=patch))
    return path


def test_a_broken_collective_is_found(launch, tmp_path):
    script = faulty(tmp_path, patch="dist.all_reduce = wrong_reduce")
    reduced = {"op": "allreduce", "bytes": 1024, "dtype": "fp32", "group": [0, 1]}
    recording.write(tmp_path / "step", 2, "a test", {"ddp": {"left_out": {}, "collectives": 2 * [reduced]}})
    words = ["--benchmark", "comm", "--replay", tmp_path / "step", *SMALL]
    process = launch(*words, "--output-dir", tmp_path / "out", script=script)
    assert process.end() == FAILED
    data = only_record(tmp_path / "out")[1]
    part = data["results"]["communication"]
    # 4 rounds of one operation alone and three in a queue: every result was checked
    assert [row["wrong_elements"] for row in part["allreduce"]["rows"]] == [8, 8]
    assert [row["out_of_place"]["wrong_elements"] for row in part["allreduce"]["rows"]] == [8, 8]
    assert [row["wrong_elements"] for row in part["allgather"]["rows"]] == [0, 0]
    assert data["results"]["replay"]["ddp"]["wrong_elements"] == 4  # one of the two in each of 4 steps
    assert "wrong_elements" in {reason["code"] for reason in data["verdict"]["reasons"]}
    assert "36 elements of the results of collectives are wrong" in process.output


@pytest.mark.long
def test_a_rank_slowed_by_60_ms_is_named(launch, tmp_path):
    script = faulty(tmp_path, patch="Trainer.passes = slow_passes")
    words = ["--benchmark", "training", *SMALL, "--iters", "9", "--output-dir", tmp_path / "out"]
    process = launch(*words, script=script)
    assert process.end() == DONE, process.output
    data = only_record(tmp_path / "out")[1]
    entry = data["results"]["training"]["ddp"]
    (slow,) = entry["exposed"]["slow"]
    place = data["environment"]["ranks"][1]
    assert (slow["rank"], slow["host"], slow["gpu"]) == (1, place["host"], None)
    assert slow["p50_s"] > 0.06
    (reason,) = [reason for reason in entry["verdict"]["reasons"] if reason["code"] == "slow"]
    assert f"rank 1 ({place['host']}) takes" in reason["message"]


FAULTS = {
    "out of memory": ('raise torch.OutOfMemoryError("CUDA out of memory. Tried")', "failed", "smaller --batch-size"),
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", "interrupted", "another rank was killed"),
}


@pytest.mark.long
@pytest.mark.parametrize(("action", "status", "message"), FAULTS.values(), ids=FAULTS)
def test_one_rank_that_fails_ends_all(launch, tmp_path, action, status, message):
    script = faulty(tmp_path, action)
    process = launch("--benchmark", "training", *SMALL, "--output-dir", tmp_path / "out", script=script)
    assert process.end() == FAILED, process.output
    data = only_record(tmp_path / "out")[1]
    assert results.problems(data) == []
    # a killed rank reports nothing: the others lose its connection or receive the launcher's signal, whichever is first
    lost = status == "interrupted" and "Connection" in data["error"]
    assert lost or (data["status"], message in data["error"]) == (status, True), data["error"]
    assert "model" in data["results"]["training"]


def test_ranks_end_when_the_launcher_is_killed(launch, tmp_path):
    process = launch("--benchmark", "comm", "--sizes", "1K", "--iters", 500, "--output-dir", tmp_path)
    wait_for_results(tmp_path)
    with open(f"/proc/{process.pid}/task/{process.pid}/children") as file:
        ranks = [int(word) for word in file.read().split()]
    assert ranks
    process.kill()
    wait_until(lambda: not any(map(alive, ranks)), what="the end of all ranks")
    assert only_record(tmp_path)[1]["status"] == "interrupted"


IDLE = """
import time
from benchmarks.core import ranks

def main(guard):
    world = guard.world = ranks.start("gloo")
    begun = time.process_time()
    if world.first:
        time.sleep(1.5)
    world.gather(None)
    print(f"rank {world.rank} used {time.process_time() - begun}")

ranks.run(main)
"""


@pytest.mark.long
def test_ranks_without_work_are_blocked_and_do_not_spin(launch, tmp_path):
    (tmp_path / "idle.py").write_text(IDLE)
    process = launch(script=tmp_path / "idle.py")
    assert process.end() == DONE, process.output
    used = [float(seconds) for seconds in re.findall(r" used (\d+\.\d+)", process.output)]  # lines of two ranks may mix
    assert len(used) == 2
    assert max(used) < 0.5
