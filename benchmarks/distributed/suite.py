"""The suite: its command line, and the parts in turn."""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks.core import environment, outliers, ranks, results, verdict
from benchmarks.core.ranks import BadInput, Guard, World
from benchmarks.core.sampler import Watch
from benchmarks.core.trainer import DTYPES
from benchmarks.distributed import algorithms, comm, memory, recording, replay, report, scaling, training
from benchmarks.distributed import distributed_benchmarks as script
from benchmarks.distributed.models import SHAPES
from benchmarks.distributed.plans import Plan

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
#: device -> the defaults
SIZES = {
    "cuda": ["1K", "16K", "256K", "1M", "4M", "16M", "64M", "256M", "1G"],
    "cpu": ["1K", "16K", "256K", "1M", "4M", "16M"],
}
DTYPE = {"cuda": "bf16", "cpu": "fp32"}
MODEL = {"cuda": "gpt2", "cpu": "tiny"}
#: the name of a part on the command line -> in the record
PARTS = {"comm": "communication", "training": "training", "memory": "memory", "scaling": "scaling", "replay": "replay"}


class Parser(argparse.ArgumentParser):
    """Reports a mistake once, not once per rank."""

    def error(self, message: str) -> Any:
        raise BadInput(f"{message} (see --help)")

    def print_help(self, file: Any = None) -> None:
        if ranks.rank() == 0:
            super().print_help(file)


def parser() -> Parser:
    command_line = Parser(
        "distributed_benchmarks.py", description=script.__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    add = command_line.add_argument
    add("--benchmark", choices=[*PARTS, "all"], default="all", help="which part to run (default: all)")
    add("--warmup", type=int, default=10, help="untimed iterations or steps before each measurement (default: 10)")
    add("--iters", type=int, default=100, help="timed iterations or steps of each (default: 100; p99 needs 100)")
    add("--output-dir", default="./results", help="where JSON, tables and plots go (default: ./results)")
    add("--sizes", nargs="+", metavar="SIZE", help="message sizes, K, M and G being powers of two: 64K 8M 1G")
    add("--dtype", choices=list(DTYPES), help="of messages and computing (default: bf16 on a GPU, fp32 on a CPU)")
    add("--backend", choices=["nccl", "gloo", "auto"], default="auto", help="nccl: GPUs; gloo: CPUs (default: auto)")
    shapes = "\n".join(f"  {name}: {shape.parameters():,} parameters" for name, shape in SHAPES.items())
    add("--model", choices=list(SHAPES), help=f"the transformer (default: gpt2 on a GPU, tiny on a CPU)\n{shapes}")
    add("--batch-size", type=int, help="samples a rank and step (default: the model's)")
    add("--memory-budget", metavar="SIZE", help="for the largest batch (default: the GPU's free memory; 512M on a CPU)")
    add("--cuda-graph", action="store_true", help="capture collectives in CUDA graphs (comm and replay; needs a GPU)")
    add("--record", metavar="FILE", help="write the collectives of one training step of each engine (training)")
    add("--replay", metavar="FILE", help="run the collectives of such a file again, as a part of its own")
    add("--nccl-log", action="store_true", help="record NCCL's algorithm by its log, at the cost of a line a call")
    add("--seed", type=int, default=0, help="of models, data and bootstrap (default: 0)")
    return command_line


def parse_size(text: str, flag: str) -> int:
    match = re.fullmatch(r"(\d+)([KMG]?)(i?B)?", text.strip(), re.I)
    if not match or not int(match[1]):
        raise BadInput(f"{flag} {text}: not a size; write bytes, or a number with K, M or G, such as 64K or 1G")
    return int(match[1]) * UNITS[match[2].upper()]


@dataclass(frozen=True)
class Settings:
    """The command line, resolved for this machine."""

    parts: list[str]
    backend: str
    comm: comm.Plan
    training: Plan
    memory_budget: int | None
    record: str | None
    replay: str | None
    output_dir: str
    nccl_log: bool

    def config(self, world: World) -> dict[str, Any]:
        plan = self.training
        return {
            "warmup_iters": plan.warmup,
            "benchmark_iters": plan.iters,
            "device": environment.device_name(world.device),
            "device_type": world.device.type,
            "nodes": world.nodes(),
            "ranks_per_gpu": world.ranks_per_gpu(),
            "benchmarks": self.parts,
            "backend": world.backend,
            "dtype": plan.dtype,
            "sizes": list(self.comm.sizes),
            "model": {"name": plan.model, **asdict(plan.shape)},
            "batch_size": plan.batch,
            "memory_budget_bytes": self.memory_budget,
            "nccl_log": self.nccl_log,
            "cuda_graphs": self.comm.graphs,
            "replay": self.replay and pathlib.PurePath(self.replay).name,
        }


def settings(words: Sequence[str]) -> Settings:
    """Find every mistake in the command line here, before any rank waits for another."""
    options = parser().parse_args(words)
    for flag, value, least in (
        ("--warmup", options.warmup, 0),
        ("--iters", options.iters, 1),
        ("--seed", options.seed, 0),
    ):
        if value < least:
            raise BadInput(f"{flag} {value}: at least {least}")
    if options.batch_size is not None and options.batch_size < 1:
        raise BadInput(f"--batch-size {options.batch_size}: at least 1")
    backend = ranks.choose_backend(options.backend, torch.cuda.is_available())
    device = "cuda" if backend == "nccl" else "cpu"
    sizes = sorted({parse_size(s, "--sizes") for word in options.sizes or SIZES[device] for s in word.split(",") if s})
    dtype, model = options.dtype or DTYPE[device], options.model or MODEL[device]
    shape = SHAPES[model]
    return Settings(
        parts=parts(options, device),
        backend=backend,
        comm=comm.Plan(sizes, options.warmup, options.iters, dtype, options.cuda_graph),
        training=Plan(
            model, shape, options.batch_size or shape.batch, dtype, options.warmup, options.iters, options.seed
        ),
        memory_budget=parse_size(options.memory_budget, "--memory-budget") if options.memory_budget else None,
        record=options.record,
        replay=options.replay,
        output_dir=options.output_dir,
        nccl_log=options.nccl_log,
    )


def parts(options: argparse.Namespace, device: str) -> list[str]:
    """The parts to run, and what their options need. A replay is run if there is a file of one."""
    chosen = [part for part in PARTS if part != "replay"] if options.benchmark == "all" else [options.benchmark]
    if options.replay and "replay" not in chosen:
        chosen.append("replay")
    if options.cuda_graph and device != "cuda":
        raise BadInput("--cuda-graph captures the work of a GPU, and gloo runs on CPUs: leave it out, or use nccl")
    if "replay" in chosen and not options.replay:
        raise BadInput("--benchmark replay: give the recorded collectives with --replay FILE")
    if options.replay:
        recording.read(options.replay, int(os.environ.get("WORLD_SIZE", 1)))
    if options.record and "training" not in chosen:
        raise BadInput(f"--record {options.record}: only the training has a step to record; use --benchmark training")
    if options.record:
        recording.check_new(options.record)
    return chosen


class Run:
    """One run of the suite on this rank; the first rank also writes the record."""

    def __init__(self, world: World, chosen: Settings, record: results.Record | None) -> None:
        self.world, self.chosen, self.record = world, chosen, record
        self.results: dict[str, dict[str, Any]] = {}
        self.logs = algorithms.Algorithms(world.backend)
        fit = lambda: self.results.get("communication", {}).get("allreduce", {}).get("fit")
        plan = chosen.training
        self._acts: dict[str, Callable[[Callable[..., None]], None]] = {
            "comm": lambda put: comm.run(world, chosen.comm, put, self.logs),
            "training": lambda put: training.run(world, plan, put, fit(), chosen.record),
            "memory": lambda put: memory.run(world, plan, put, chosen.memory_budget),
            "scaling": lambda put: scaling.run(world, plan, put),
            "replay": lambda put: replay.run(world, chosen.comm, put, str(chosen.replay)),
        }

    def part(self, name: str) -> None:
        """One part, sampled by NVML, with the verdict over all of it."""
        part = self.results.setdefault(PARTS[name], {})

        def put(key: str, value: Any) -> None:
            part[key] = value
            if self.record:
                self.record.put(PARTS[name], key, value=value)

        with Watch(self.world) as watch:
            self._acts[name](put)
        put("gpu", watch.cards)
        put("processor", watch.processor)
        machine = verdict.judge(watch.facts(), verdict.MACHINE[self.world.device.type], name)
        put("verdict", verdict.together([machine, *results.verdicts(part)]))

    def wrong_elements(self) -> int:
        return wrong_elements([self.results.get(name) for name in ("communication", "replay")])


def wrong_elements(value: Any) -> int:
    """The sum over all results within a value."""
    if isinstance(value, dict):
        return value.get("wrong_elements", 0) + wrong_elements(list(value.values()))
    return sum(map(wrong_elements, value)) if isinstance(value, list) else 0


ADVICE = {
    "comm": "leave out the largest of --sizes",
    "training": "give a smaller --batch-size or --model",
    "memory": "give a smaller --batch-size or --model",
    "scaling": "give a smaller --batch-size or --model",
    "replay": "record a smaller --model",
}


def main(guard: Guard, words: Sequence[str] | None = None) -> int:
    chosen = settings(sys.argv[1:] if words is None else words)
    if ranks.rank() == 0:
        folder = writable(chosen.output_dir)
    if chosen.nccl_log:
        algorithms.switch_on()
    world = guard.world = ranks.start(chosen.backend)
    record = start_record(world, chosen, folder) if world.first else None
    if record:
        guard.close = record.finish
    run = Run(world, chosen, record)
    for name in chosen.parts:
        try:
            run.part(name)
        except (torch.cuda.OutOfMemoryError, MemoryError) as error:
            short = str(error).splitlines()[0] if str(error) else ""
            raise MemoryError(f"{name}: {short}: {ADVICE[name]}") from error
    if record:
        record.finish()
        report.write(record)
    world.gather(None)  # if a rank ended before the first has written, the launcher would end that too
    wrong = run.wrong_elements()
    if wrong:
        world.say(f"error: {wrong} elements of the results of collectives are wrong: see wrong_elements in the record")
    return ranks.FAILED if wrong else ranks.DONE


def writable(folder: str) -> Any:
    try:
        return results.writable(folder)
    except results.Unwritable as error:
        raise BadInput(str(error)) from error


def start_record(world: World, chosen: Settings, folder: Any) -> results.Record:
    kind = "gpu" if world.device.type == "cuda" else "cpu"
    return results.Record(
        folder,
        suite="distributed",
        name=f"benchmark_{world.size}{kind}",
        world_size=world.size,
        config=chosen.config(world),
        environment=environment.record({"seed": chosen.training.seed}) | {"ranks": outliers.described(world.members)},
    )
