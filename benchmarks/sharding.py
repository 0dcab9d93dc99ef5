#!/usr/bin/env python3
"""What sharding costs and gains: ``python benchmarks/sharding.py [--quick] [--only NAME…] [--output-dir DIR]``

plan       the dispatcher's core on instructions for several workers whose plans are cached: us per instruction
workers    the dispatcher for 64 workers against 1: instructions are encoded once per mesh
scaling    2 CPU workers of one thread each against 1: a matrix product, and a training step of an MLP, data parallel
overhead   one worker under auto-sharding against the same without
exposed    fully sharded training on 2 workers: waiting for collectives, with prefetching against without it; over NCCL
           from the kernels of a trace

Workers are on GPUs if there are any; GT_SHARE_GPUS=1 GT_NCCL_SHARED=1 lets two share one. For a ratio the two sides
take turns; it is the median over the rounds. This is not a test: a busy machine changes figures, not results.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

if __name__ == "__main__":
    # the root of the repository instead of this folder, so that modules have the same name wherever this starts
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

import torch

import gt
from benchmarks.autoshard.exposed import waits
from benchmarks.autoshard.system import System
from benchmarks.core import environment, results
from benchmarks.core.ranks import BAD_INPUT, BadInput
from benchmarks.core.rows import Row, quotient, run_all
from benchmarks.simulation import load
from benchmarks.simulation.workloads import mlp, mlp_step
from benchmarks.training import CUDA, DEVICE


@dataclass(frozen=True)
class Sizes:
    """The sizes of a run; ``--quick`` uses smaller ones."""

    rounds: int
    #: the matrix product: (m, k) @ (k, n)
    product: tuple[int, int, int]
    #: the MLP: batch and widths
    mlp: tuple[int, ...]
    #: fully sharded training: batch, width, layers
    sharded: tuple[int, int, int]
    #: actions per sample
    steps: int
    port: int


#: fully sharded training on GPUs: a layer's products take about as long as its gather at 2 GB/s
SHARDED_ON_GPUS = (32768, 2048, 8)
FULL = Sizes(15, (4096, 1024, 1024), (2048, 256, 1024, 1024, 16), SHARDED_ON_GPUS if CUDA else (2048, 512, 8), 3, 9107)
QUICK = Sizes(3, (512, 256, 256), (256, 64, 128, 16), (512, 64, 3), 2, 9107)

#: additions in a row, for the dispatcher alone
CHAIN = 2000


# -- the dispatcher alone ----------------------------------------------------------------------


def _adds() -> Any:
    return gt.ones(1024, 64)


def _chain(x: Any) -> Any:
    y = x
    for _ in range(CHAIN):
        y = y + x
    return y


def _small_mlp() -> Any:
    return mlp((64, 64, 16))(1024)


def plan(sizes: Sizes) -> Iterator[Row]:
    """Elementwise ops on sharded tensors, and training steps with their moves."""
    for name, setup, step in (
        ("adds of sharded tensors", _adds, _chain),
        ("training steps of an MLP", _small_mlp, lambda state: [mlp_step(state) for _ in range(20)]),
    ):
        loads = load.measured(load.record(setup, step, sizes.rounds + 1), 2)
        cores = [one.core / one.instructions * 1e6 for one in loads]
        all_of_it = statistics.median(one.seconds / one.instructions * 1e6 for one in loads)
        details = {"with_codec_us": all_of_it, "instructions": loads[0].instructions}
        yield Row(f"planning known {name}, 2 workers", cores, "us an instruction", "<=", 5.0, details)


def workers(sizes: Sizes) -> Iterator[Row]:
    program = load.record(_adds, _chain, sizes.rounds + 1)
    counts = (1, 2, 64)
    drives = {n: load.Drive(n) for n in counts}
    for drive in drives.values():
        drive.run(program.opening)
        drive.run(program.rounds[0])
    # in turns, so that all run under the same load
    samples = [{n: drives[n].run(frames).seconds for n in counts} for frames in program.rounds[1:]]
    details = {f"us_{n}": statistics.median(t[n] for t in samples) / drives[n].load.instructions * 1e6 for n in counts}
    yield Row("dispatcher for 64 workers", [t[64] / t[1] for t in samples], "x for 1 worker", "<=", 1.5, details)
    yield Row("dispatcher for 64 workers", [t[64] / t[2] for t in samples], "x for 2 workers")


# -- two workers ---------------------------------------------------------------------------


class Sides:
    """The same program under several settings of auto-sharding, in turns on one system."""

    def __init__(self, setup: Callable[[], Any], step: Callable[[Any], Any], settings: dict[str, int | None]) -> None:
        self.step, self.settings = step, settings
        self.states: dict[str, Any] = {}
        #: the losses of the first and the second step
        self.values: dict[str, list[float]] = {}
        for name in settings:
            self._set(name)
            gt.manual_seed(0)
            self.states[name] = setup()
            self.values[name] = [self._read(name) for _ in range(2)]

    def _set(self, name: str) -> None:
        count = self.settings[name]
        gt.auto_shard(count is not None, workers=count)

    def _read(self, name: str) -> float:
        return float(self.step(self.states[name]).sum().item())

    def seconds(self, name: str, steps: int) -> float:
        """Seconds of a step, after one that is not timed: it plans again what the change of settings discarded."""
        self._set(name)
        self._read(name)
        started = time.perf_counter()
        for _ in range(steps - 1):
            self.step(self.states[name])
        self._read(name)
        return (time.perf_counter() - started) / steps

    def in_turns(self, rounds: int, steps: int) -> dict[str, list[float]]:
        samples = [{name: self.seconds(name, steps) for name in self.settings} for _ in range(rounds)]
        gt.auto_shard(False)
        return {name: [t[name] for t in samples] for name in self.settings}


def _programs(sizes: Sizes) -> dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]]:
    m, k, n = sizes.product
    product = f"({m}x{k})@({k}x{n})"
    batch, *widths = sizes.mlp
    step = f"training step of an MLP, batch {batch}, {'-'.join(map(str, widths))}"
    return {
        product: (
            lambda: (gt.randn(m, k), gt.nn.Parameter(gt.randn(k, n)).detach()),
            lambda state: state[0] @ state[1],
        ),
        step: (lambda: mlp(tuple(widths))(batch), mlp_step),
    }


def _against(sizes: Sizes, ours: int, count: int) -> Iterator[tuple[str, list[float], dict[str, float]]]:
    """(name, seconds of the base divided by ours, medians) of each program."""
    with System(count, sizes.port):
        for name, (setup, step) in _programs(sizes).items():
            samples = Sides(setup, step, {"base": None, "ours": ours}).in_turns(sizes.rounds, sizes.steps)
            ratios = [b / o for b, o in zip(samples["base"], samples["ours"], strict=True)]
            yield name, ratios, {f"{side}_ms": statistics.median(s) * 1e3 for side, s in samples.items()}


def scaling(sizes: Sizes) -> Iterator[Row]:
    for name, ratios, details in _against(sizes, 2, 2):
        yield Row(f"2 workers: {name}", ratios, "x 1 worker", ">=", 1.7, details)


def overhead(sizes: Sizes) -> Iterator[Row]:
    for name, ratios, details in _against(sizes, 1, 1):
        lost = [(1 / ratio - 1) * 100 for ratio in ratios]
        yield Row(f"1 sharded worker: {name}", lost, "% more than unsharded", "<=", 3.0, details)


def exposed(sizes: Sizes) -> Iterator[Row]:
    medians = {}
    for name, prefetch in (("without", False), ("with", True)):
        waiting, whole, from_kernels = waits(sizes.port, *sizes.sharded, sizes.rounds, prefetch)
        medians[name] = statistics.median(waiting)
        details = {"step_ms": statistics.median(whole) * 1e3, "least_step_ms": min(whole) * 1e3}
        source = " (from kernels)" if from_kernels else ""
        shown = f"fully sharded, {name} prefetching: waiting for collectives{source}"
        yield Row(shown, [seconds * 1e3 for seconds in waiting], "ms a step", details=details)
    yield quotient("the same", medians["with"], medians["without"], "x without", "<=", 0.5)


MEASUREMENTS: dict[str, Callable[[Sizes], Iterator[Row]]] = {
    "plan": plan,
    "workers": workers,
    "scaling": scaling,
    "overhead": overhead,
    "exposed": exposed,
}


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(environment.program(__file__), description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three rounds of small sizes instead of fifteen of large")
    parser.add_argument("--only", nargs="+", choices=list(MEASUREMENTS), default=list(MEASUREMENTS))
    parser.add_argument("--port", type=int, default=FULL.port, help=f"of the system it starts (default {FULL.port})")
    parser.add_argument("--output-dir", default="./results", help="where the JSON record goes (default ./results)")
    options = parser.parse_args(words)
    chosen = Sizes(**{**asdict(QUICK if options.quick else FULL), "port": options.port})
    try:
        return _run(options, chosen)
    except (BadInput, results.Unwritable) as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT


def _run(options: argparse.Namespace, sizes: Sizes) -> int:
    config = {"device": environment.device_name(torch.device(DEVICE)), "benchmark_iters": sizes.rounds, **asdict(sizes)}
    record = results.Record(
        options.output_dir,
        suite="sharding",
        name="sharding",
        world_size=2,
        config=config,
        environment=environment.record({"gt": 0}),
    )
    return run_all(record, "Sharding", {name: MEASUREMENTS[name](sizes) for name in options.only})


if __name__ == "__main__":
    sys.exit(main())
