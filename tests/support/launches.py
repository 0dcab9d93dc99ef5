"""Runs of the distributed benchmarks for tests: small, on CPUs, on two ranks or one."""

from __future__ import annotations

import json

from tests.support.processes import ROOT, Process

FOLDER = ROOT / "benchmarks" / "distributed"
SCRIPT = FOLDER / "distributed_benchmarks.py"
SMALL = ["--iters", "4", "--warmup", "1", "--sizes", "1K", "64K", "--memory-budget", "32M"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
ONE_THREAD = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def launcher(stack):
    """Starts a script on two ranks, or with ``ranks=1`` without torchrun; no process is left at the end."""

    def start(*words, script=SCRIPT, ranks=2, **extra):
        process = Process(*(TORCHRUN if ranks > 1 else []), str(script), *map(str, words), **ONE_THREAD, **extra)
        stack.callback(process.close)
        return process

    return start


def only_record(folder):
    (path,) = folder.glob("*.json")
    return path, json.loads(path.read_text())
