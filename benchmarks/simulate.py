#!/usr/bin/env python3
"""PREDICTIONS for other machines: a real client and dispatcher, simulated workers, a cost model in YAML.

python benchmarks/simulate.py                                       8, 16 and 512 H100s
python benchmarks/simulate.py --machine 8xh100 --workload gpt --workers 1 2 4 8
python benchmarks/simulate.py --machine 2cpu --workload small-mlp --check     against a real run here, with its error
python benchmarks/simulate.py --scale 8 64 512 4096 --connections 512         the dispatcher alone, measured here
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import sys
from typing import Any

if __name__ == "__main__":
    # the root of the repository instead of this folder, so that modules have the same name wherever this starts
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

import msgspec

from benchmarks.autoshard.system import System
from benchmarks.core import environment, results, tables, timing, verdict
from benchmarks.core.progress import Progress
from benchmarks.core.ranks import BAD_INPUT, BadInput
from benchmarks.simulation import calibrate, scale_report
from benchmarks.simulation.machine import Machine, names, read
from benchmarks.simulation.predict import Prediction, predict
from benchmarks.simulation.workloads import WORKLOADS, Workload

H100S = ["8xh100", "2x8xh100", "64x8xh100"]
WARNING = (
    "PREDICTIONS: nothing below was measured on such a machine; only the dispatcher's own load was measured, here."
)
COLUMNS = (
    *("workers", "batch", "step ms", "busy", "exposed", "moving", "speedup", "efficiency", "moves"),
    *("*ms", "*instr/s", "*messages"),
)
LEGEND = """  step ms: predicted; busy, exposed, moving: the shares of it a worker computes, waits for collectives,
  and has collectives under way; moves: collectives a step; *: the dispatcher's own load a step, its time measured here
"""


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(environment.program(__file__), description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--machine", nargs="+", default=H100S, help=f"of {', '.join(names())}, or a file (default: {' '.join(H100S)})")
    add("--workload", nargs="+", choices=list(WORKLOADS), default=["mlp", "gpt"], help="training steps, data parallel")
    add("--workers", type=int, nargs="+", help="how many of the machine's (default: 1 and all)")
    add("--scaling", choices=["weak", "strong"], default="weak", help="weak: the batch of a worker is fixed (default)")
    add("--batch", type=int, help="samples of a worker (weak) or of all together (strong)")
    add("--calibrate", action="store_true", help="measure the machine's rates with 2 CPU workers here first")
    add("--check", action="store_true", help="calibrate, and run the workload for real on 2 CPU workers here as well")
    add("--scale", type=int, nargs="+", metavar="N", help="measure the dispatcher with N workers that do nothing")
    add(
        "--connections", type=int, nargs="+", default=[], metavar="N", help="with --scale: a real server, N connections"
    )
    add("--rounds", type=int, default=40, help="with --scale: repeated steps that are measured (default 40)")
    add("--port", type=int, default=9108, help="of the real system that is started for it (default 9108)")
    add("--output-dir", default="./results", help="where the JSON record goes (default ./results)")
    return parser


def rows(machine: Machine, workload: Workload, options: argparse.Namespace) -> list[Prediction]:
    """The predictions for each number of workers, one worker first."""
    counts = sorted({1, *(options.workers or [machine.workers])})
    if counts[0] < 1 or counts[-1] > machine.workers:
        raise BadInput(f"--workers {counts[0]} {counts[-1]}: {machine.name} has 1 to {machine.workers}")
    batch = options.batch or workload.batch * (machine.workers if options.scaling == "strong" else 1)
    predictions = []
    with Progress(machine.name, len(counts)) as bar:
        for n in counts:
            predictions.append(predict(machine, workload, n, batch * n if options.scaling == "weak" else batch))
            bar.step(f"{n} workers")
    return predictions


def speedup(base: Prediction, other: Prediction) -> float:
    """Samples per second, relative to one worker."""
    return (other.batch / other.step_s) / (base.batch / base.step_s)


def cells(base: Prediction, p: Prediction) -> list[Any]:
    gain = speedup(base, p)
    shares = [f"{share:.1%}" for share in (p.compute_s / p.step_s, p.exposed_share, p.communication_share)]
    control = [p.dispatcher_s * 1e3, round(p.dispatcher_rate), round(p.messages)]
    return [p.workers, p.batch, p.step_s * 1e3, *shares, gain, gain / p.workers, round(p.collectives), *control]


def show(machine: Machine, workload: Workload, scaling: str, predictions: list[Prediction]) -> None:
    title = f"PREDICTED: {machine.name}: {workload.name} ({scaling} scaling, data parallel)"
    tables.show(title, COLUMNS, [cells(predictions[0], p) for p in predictions])
    print(LEGEND)
    slow = [p for p in predictions if p.dispatcher_s > p.step_s]
    if slow:
        words = ", ".join(str(p.workers) for p in slow)
        print(f"  the dispatcher took longer than the predicted step for {words} worker(s): it would set the pace\n")


def check(machine: Machine, options: argparse.Namespace) -> tuple[Machine, dict[str, Any]]:
    """The machine calibrated here; and, with --check, a real run of each workload, its prediction and the error."""
    names = options.workload if options.check else []
    batches = {name: (options.batch or WORKLOADS[name].batch) * calibrate.WORKERS for name in names}
    with System(calibrate.WORKERS, options.port):
        measured, real = calibrate.in_turns(machine, {name: (WORKLOADS[name], batches[name]) for name in names})
    print(f"calibrated: {msgspec.json.encode(measured).decode()}\n", flush=True)
    checks: dict[str, Any] = {}
    for name, samples in real.items():
        predicted = predict(measured, WORKLOADS[name], calibrate.WORKERS, batches[name]).step_s
        median = statistics.median(samples)
        error = predicted / median - 1
        checks[name] = {"batch": batches[name], "predicted_s": predicted, "real": {"timing": timing.summary(samples)}}
        checks[name]["error"] = error
        print(
            f"CHECK {name}, 2 CPU workers, batch {batches[name]}: predicted {predicted * 1e3:.1f} ms, real "
            f"{median * 1e3:.1f} ms ({min(samples) * 1e3:.1f} to {max(samples) * 1e3:.1f}), error {error:+.1%}\n",
            flush=True,
        )
    return measured, checks


def run(options: argparse.Namespace) -> int:
    machines = {name: _read(name) for name in options.machine}
    if (options.check or options.calibrate) and any(m.workers != calibrate.WORKERS for m in machines.values()):
        raise BadInput("--calibrate and --check measure 2 CPU workers: use them with --machine 2cpu")
    record = results.Record(
        options.output_dir,
        suite="simulate",
        name="simulate",
        world_size=1,
        config={
            "device": "simulated",
            "scaling": options.scaling,
            "workloads": options.workload,
            "machines": options.machine,
        },
        environment=environment.record({"gt": 0}),
    )
    print(f"{WARNING}\n", flush=True)
    for name, machine in machines.items():
        checked: dict[str, Any] = {}
        if options.check or options.calibrate:
            machine, checked = check(machine, options)
        record.put(name, "machine", value=msgspec.to_builtins(machine))
        for workload in options.workload:
            predictions = rows(machine, WORKLOADS[workload], options)
            show(machine, WORKLOADS[workload], options.scaling, predictions)
            records = [p.record() | {"speedup": speedup(predictions[0], p)} for p in predictions]
            record.put(
                name,
                workload,
                value={
                    "predictions": records,
                    "check": checked.get(workload),
                    "verdict": verdict.predicted(f"{name} {workload}"),
                },
            )
    record.finish()
    print(f"record: {record.path}")
    return 0


def _read(name: str) -> Machine:
    try:
        return read(name)
    except ValueError as error:
        raise BadInput(f"--machine {error}") from None


def main(words: list[str] | None = None) -> int:
    options = parser().parse_args(words)
    try:
        if options.batch is not None and options.batch < 1:
            raise BadInput(f"--batch {options.batch}: at least 1")
        if min([*(options.scale or []), *options.connections, options.rounds], default=1) < 1:
            raise BadInput("--scale, --connections and --rounds: at least 1")
        if options.connections and not options.scale:
            raise BadInput("--connections belongs to --scale")
        return scale_report.run(options) if options.scale else run(options)
    except (BadInput, results.Unwritable) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT


if __name__ == "__main__":
    sys.exit(main())
