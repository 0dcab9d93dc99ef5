"""How much of a step the dispatcher takes with many workers: Mini-GPT, data parallel, with workers that do nothing.

``python -m benchmarks.simulation.scale WORKERS ROUNDS`` measures the dispatcher's core in this process, which is
new for each number of workers, so that its memory can be measured, and prints a line of JSON. All times are processor
time. The workers report times that make a step take `STEP_S`, so that they confirm as often as real ones.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from typing import Any

from benchmarks.core.environment import ROOT
from benchmarks.simulation import load
from benchmarks.simulation.workloads import WORKLOADS
from gt.dispatcher.actions import SendAll, SendMessage
from gt.version import PROTOCOL, VERSION
from gt.wire.codec import encode
from gt.wire.messages import Hello

#: The step that the dispatcher's time is compared with: Mini-GPT on one H200 per worker.
STEP_S = 0.020
#: Samples per worker.
BATCH = 8
#: Rounds before a repeated step is measured: it becomes a fragment, and the estimated times settle.
WARMUP = 16


def program(workers: int, rounds: int) -> load.Program:
    """The messages of a client that trains Mini-GPT on this many workers."""
    workload = WORKLOADS["mini-gpt"]
    return load.record(lambda: workload.setup(BATCH * workers), workload.step, WARMUP + rounds, templates=True)


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def joined(workers: int) -> tuple[load.Drive, float]:
    """A dispatcher with one client, which these workers join one by one; and the seconds that takes."""
    drive = load.Drive(0)
    started = time.thread_time()
    for i in range(workers):
        hello = Hello("worker", PROTOCOL, VERSION, "", i, "null", "null", "", f"local:{i}")
        for action in drive.core.handle(b"w%d" % i, hello):
            assert isinstance(action, SendMessage | SendAll)
            encode(action.message)
    return drive, time.thread_time() - started


def measured(workers: int, rounds: int) -> dict[str, Any]:
    """The figures of one dispatcher's core."""
    recorded = program(workers, rounds)
    empty = resident_bytes(os.getpid())
    drive, join_s = joined(workers)
    after_join = resident_bytes(os.getpid()) - empty
    first, second = recorded.before_steps
    drive.run(recorded.opening[:first])
    cold = drive.run(recorded.opening[first:second])
    drive.run(recorded.opening[second:])
    for frames in recorded.rounds[: WARMUP // 2]:
        words = drive.run(frames).words
    drive.word_us = STEP_S * 1e6 / words
    for frames in recorded.rounds[WARMUP // 2 : WARMUP]:
        drive.run(frames)
    steps = [drive.run(frames) for frames in recorded.rounds[WARMUP:]]
    seconds = [step.seconds for step in steps]
    return {
        "workers": workers,
        "instructions": steps[0].instructions,
        "join_s": join_s,
        "cold_s": cold.seconds,
        "cold_messages": cold.messages,
        "replay_s": statistics.median(seconds),
        "replay_lowest_s": min(seconds),
        "replay_share": statistics.median(seconds) / STEP_S,
        "replay_messages": statistics.median(step.messages for step in steps),
        "confirmations": statistics.median(step.confirmations for step in steps),
        "joined_bytes": after_join,
        "running_bytes": resident_bytes(os.getpid()) - empty,
    }


def in_new_process(module: str, *words: object) -> dict[str, Any]:
    """What the module prints as JSON."""
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", module, *map(str, words)]
    output = subprocess.run(
        command, env={**os.environ, "PYTHONPATH": path}, stdout=subprocess.PIPE, check=True, text=True
    ).stdout
    figures: dict[str, Any] = json.loads(output.splitlines()[-1])
    return figures


if __name__ == "__main__":
    print(json.dumps(measured(int(sys.argv[1]), int(sys.argv[2]))))
