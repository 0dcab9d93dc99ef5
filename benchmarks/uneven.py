"""Workers of different speed in one mesh: ``python benchmarks/uneven.py [--worker OPTIONS]…``

A data-parallel training step with equal blocks, with blocks in proportion to the measured speeds, and on the first
worker alone; the losses of all must agree. Each ``--worker`` has variables of its environment, and the options of
``python -m gt.worker``. Without any, two CPU workers start.

    python benchmarks/uneven.py --worker "--device cuda:0" --worker "--device cpu"

Two speeds on one GPU, by CUDA's multi-process service:

    nvidia-cuda-mps-control -d
    python benchmarks/uneven.py --worker "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=75 --device cuda:0" \\
        --worker "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=20 --device cuda:0"
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

if __name__ == "__main__":
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

import numpy as np

import gt
from benchmarks.core import environment, results
from benchmarks.core.formulas import largest_difference
from gt.client.stream.connect import open_session, use
from gt.client.stream.session import Session
from gt.launch.parent import with_parent

START_TIMEOUT_S = 90.0
EVEN = "mesh: {dp: %d}\nbatch: {shard: {0: dp}}\nparameters: {replicate: true}\n"
#: steps whose losses are compared, before those that are timed
CHECKED = 6
#: The most that a loss may differ from that of one worker, as a part of it.
TOLERANCE = 1e-5
HIDDEN, OUTPUTS = 256, 64


@contextlib.contextmanager
def system(workers: Sequence[str]) -> Iterator[Session]:
    """A server and these workers, and a session with them."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        address = f"{folder}/server"
        commands = [("gt.server", ["--unix", address, *with_parent()])]
        commands += [("gt.worker", [*words.split(), "--unix", address, *with_parent()]) for words in workers]
        for module, words in commands:
            variables = dict(word.split("=", 1) for word in words if "=" in word and not word.startswith("-"))
            options = [word for word in words if word.split("=")[0] not in variables]
            process = subprocess.Popen([sys.executable, "-m", module, *options], env={**os.environ, **variables})
            stack.callback(process.wait, 20)
            stack.callback(process.terminate)
        session = open_session(f"unix:{address}", None, "uneven workers", START_TIMEOUT_S)
        joined = lambda: len(session.connection.workers) == len(workers)
        if not session.connection.wait(joined, START_TIMEOUT_S):
            raise SystemExit(f"error: {len(session.connection.workers)} of {len(workers)} workers have joined")
        with use(session):
            yield session
        session.close()


def train(configuration: str, options: argparse.Namespace) -> dict[str, Any]:
    """The losses of the first steps, the rows of each worker, and seconds of the steps after that."""
    gt.load_config(None)
    if configuration:
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "mesh.yaml")
            path.write_text(configuration)
            gt.load_config(path)
    gt.manual_seed(0)
    data = np.random.default_rng(0)
    shapes = (options.rows, options.width), (options.rows, OUTPUTS)
    values = [data.standard_normal(shape, dtype=np.float32) for shape in shapes]
    hidden = [m for _ in range(options.depth) for m in (gt.nn.Linear(HIDDEN, HIDDEN), gt.nn.Tanh())]
    with gt.signal.context("parameters"):
        model = gt.nn.Sequential(gt.nn.Linear(options.width, HIDDEN), *hidden, gt.nn.Linear(HIDDEN, OUTPUTS))
    with gt.signal.context("batch"):
        x, y = map(gt.tensor, values)
    optimizer = gt.optim.SGD(model.parameters(), lr=0.05)

    def step() -> float:
        with gt.signal.context("batch"):
            loss = gt.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.item())

    losses, seconds = [step() for _ in range(CHECKED)], []
    for _ in range(options.steps):
        started = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - started)
    rows = {str(worker): sizes[0] for worker, (_, sizes) in x.layout.blocks.items()}
    return {"losses": losses, "rows": rows, "step_s": statistics.median(seconds), "samples_s": seconds}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(environment.program(__file__), description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--worker", action="append", metavar="OPTIONS", help="a worker: variables and options")
    parser.add_argument("--rows", type=int, default=8192, help="rows of a batch (default 8192)")
    parser.add_argument("--width", type=int, default=1024, help="numbers in a row (default 1024)")
    parser.add_argument("--depth", type=int, default=4, help=f"hidden layers of {HIDDEN} (default 4)")
    parser.add_argument("--steps", type=int, default=12, help="timed steps of each (default 12)")
    parser.add_argument("--output-dir", default="results")
    options = parser.parse_args(argv)
    workers = options.worker or ["--device cpu --threads 1"] * 2
    even = EVEN % len(workers)
    with system(workers) as session:
        speeds = {str(w.id): w.speed for w in session.connection.workers}
        record = results.Record(
            options.output_dir,
            suite="uneven",
            name="uneven",
            world_size=len(workers),
            config={"device": ", ".join(w.device for w in session.connection.workers), **vars(options)},
            environment=environment.record({"gt": 0}),
        )
        record.put("speeds", value=speeds)
        print("speeds, in billions of operations a second: " + ", ".join(f"{s:g}" for s in speeds.values()))
        plans = {"one worker": "", "equal blocks": even, "by speed": "weights: speed\n" + even, "equal again": even}
        measured = {name: train(configuration, options) for name, configuration in plans.items()}
        gt.load_config(None)
    for name, row in measured.items():
        expected = measured["one worker"]["losses"]
        ratios = [a / b for a, b in zip(row["losses"], expected, strict=True)]
        row["difference"] = largest_difference(ratios, [1.0] * len(ratios))
        record.put("steps", name, value=row)
        times = f"{row['step_s'] * 1e3:8.2f} ms a step"
        print(f"{name:<13} {times}, rows {row['rows']}, losses within {row['difference']:.1e}")
    record.finish()
    print(f"record: {record.path}")
    return 0 if all(row["difference"] <= TOLERANCE for row in measured.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
