#!/usr/bin/env python3
"""Pipelines: ``python benchmarks/pipeline.py [--quick] [--only NAME…] [--output-dir DIR]``

bubble     the idle share of a step, from the traces of workers whose ops take a set time, beside the formula
client     a repeated step without work, in processes
replay     what a repeated step costs the client and the dispatcher, and the share of it in templates
memory     the activations that each stage holds, counted on the workers, beside the number by the schedule
moves      moves between two CPU workers a second, one after the other and independent ones
scaling    two CPU workers of one thread each, two stages, against one worker: a training step of an MLP
gpu        2 and 4 workers on one GPU, moves through the host and by CUDA IPC: equal bits, losses beside those of one
           worker, times of a step, and a trace of one step

``gpu`` is left out where there is no GPU. This is not a test: a busy machine changes figures, not results.
"""

from __future__ import annotations

import argparse
import pathlib
import sys

if __name__ == "__main__":
    # the root of the repository instead of this folder, so that modules have the same name wherever this starts
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from benchmarks.core import environment, results
from benchmarks.core.rows import run_all
from benchmarks.pipelines import bubbles, memory, moves, replay, training
from benchmarks.pipelines.sizes import Sizes
from gt.launch.local import visible_gpus

MEASUREMENTS = {
    "bubble": bubbles.bubble,
    "client": bubbles.client,
    "replay": replay.replay,
    "memory": memory.memory,
    "moves": moves.moves,
    "scaling": training.scaling,
    "gpu": training.gpu,
}
FULL = Sizes(op_seconds=0.25, steps=1, rounds=7, width=1024, rows=4096, port=9137)
QUICK = Sizes(op_seconds=0.005, steps=1, rounds=2, width=64, rows=64, port=9137)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        environment.program(__file__), description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that everything runs")
    parser.add_argument("--only", nargs="+", choices=list(MEASUREMENTS), metavar="NAME", help=", ".join(MEASUREMENTS))
    parser.add_argument("--output-dir", default="results", help="the folder of the record (default: results)")
    options = parser.parse_args(argv)
    sizes = QUICK if options.quick else FULL
    names = options.only or [name for name in MEASUREMENTS if name != "gpu" or visible_gpus()]
    record = results.Record(
        options.output_dir,
        suite="pipeline",
        name="pipeline",
        world_size=4,
        config={
            "device": "cuda" if visible_gpus() else "cpu",
            "quick": options.quick,
            "only": names,
            **sizes._asdict(),
        },
        environment=environment.record({"gt": 0}),
    )
    folder = pathlib.Path(options.output_dir)
    return run_all(record, "Pipelines", {name: MEASUREMENTS[name](sizes, folder) for name in names})


if __name__ == "__main__":
    sys.exit(main())
