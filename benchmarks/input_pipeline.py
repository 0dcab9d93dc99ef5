#!/usr/bin/env python3
"""Is loading data hidden behind the step? ResNet-18 on images of uint8 from a DataLoader with several processes.

The same step runs on batches that are on the device already, and on batches from the loader, in turns. The figure is
the median over the rounds of the second step time divided by the first: 1 means that loading costs nothing.

torch       torch eager; pinned memory and non_blocking copies, one batch ahead, on a GPU
template    GT with its defaults, and its own DataLoader
compiled    GT with GT_AUTO_COMPILE=1

``--trace FILE``: the worker's work in three steps from the loader, for ui.perfetto.dev, with every kernel and copy.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

if __name__ == "__main__":
    # the root of the repository instead of this folder, so that modules have the same name wherever this starts
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

import torch
from torch.utils.data import Dataset

import gt
from benchmarks.core import environment, results, tables, timing, verdict
from benchmarks.hot import models
from benchmarks.hot.rows import ROWS
from benchmarks.training import CUDA, DEVICE

NAMES = ("torch", "template", "compiled")
GOAL = 1.03
#: batches that are on the device from the start
RESIDENT = 4
#: steps of each way between two looks at what is compiled
WARM_STEPS = 10


class Images(Dataset[Any]):
    """Endless random images; a sample is a copy, as after decoding a file."""

    def __init__(self, side: int) -> None:
        self.pool = torch.randint(0, 256, (64, 3, side, side), dtype=torch.uint8)

    def __len__(self) -> int:
        return 1 << 30

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.pool[index % len(self.pool)].clone(), index % 10


class Training:
    def __init__(self, lib: Any) -> None:
        torch.manual_seed(0)
        self.lib, self.model = lib, models.resnet18(lib, 10)
        if lib is torch:
            self.model = self.model.to(DEVICE)
        self.optimizer = lib.optim.SGD(self.model.parameters(), lr=0.01, momentum=0.9)

    def step(self, x: Any, y: Any) -> Any:
        if self.lib is torch:
            precision: Any = torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=CUDA)
        else:
            precision = gt.autocast(dtype=gt.bfloat16, enabled=CUDA)
        with precision:
            out = self.model(x.to(self.lib.float32) / 127.5 - 1)
            loss = self.lib.nn.functional.cross_entropy(out, y)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def timed(self, batches: Iterator[Any], steps: int) -> tuple[float, float]:
        """Seconds per step, and of these the seconds in which the program waited for a batch."""
        started, waited = time.perf_counter(), 0.0
        for _ in range(steps):
            asked = time.perf_counter()
            x, y = next(batches)
            waited += time.perf_counter() - asked
            loss = self.step(x, y)
        loss.item()
        return (time.perf_counter() - started) / steps, waited / steps


def loaded(lib: Any, images: Images, batch: int, processes: int) -> Iterator[Any]:
    """Batches from a loader, on the device."""
    loader = gt.utils.data.DataLoader if lib is gt else torch.utils.data.DataLoader
    options = {"pin_memory": CUDA} if lib is torch else {}
    batches: Iterable[Any] = loader(images, batch_size=batch, num_workers=processes, **options)
    return iter(batches) if lib is gt else _one_ahead(batches)


def _one_ahead(batches: Iterable[Any]) -> Iterator[Any]:
    """Each batch is copied to the device while the step before it runs."""
    sent: list[Any] = []
    for x, y in batches:
        sent.append((x.to(DEVICE, non_blocking=True), y.to(DEVICE, non_blocking=True)))
        if len(sent) > 1:
            yield sent.pop(0)


def child(options: argparse.Namespace) -> int:
    """One row: prints its figures as JSON."""
    lib = gt if ROWS[options.row].library == "gt" else torch
    images, training = Images(options.side), Training(lib)
    batches = loaded(lib, images, options.batch, options.processes)
    resident = itertools.cycle([next(batches) for _ in range(RESIDENT)])
    _warm(training, resident, batches, options)
    pairs = [
        (training.timed(resident, options.steps), training.timed(batches, options.steps)) for _ in range(options.rounds)
    ]
    if options.trace and lib is gt:
        with gt.debug.trace(options.trace, kernels=True):
            training.timed(batches, 3)
    figures = {
        "resident_s": [there[0] for there, _ in pairs],
        "loaded_s": [came[0] for _, came in pairs],
        "waited_s": [came[1] for _, came in pairs],
    }
    print(json.dumps(figures), flush=True)
    if lib is gt:
        gt.disconnect()
    return 0


def _warm(training: Training, resident: Iterator[Any], batches: Iterator[Any], options: argparse.Namespace) -> None:
    """Both ways, as their steps are different sections: until no step gets faster, and, if the row compiles, nothing
    that runs is still to be compiled; at most for the given time."""
    ended = time.perf_counter() + options.patience
    times: dict[str, list[float]] = {"resident": [], "loaded": []}
    runs: dict[str, int] = {}
    while time.perf_counter() < ended:
        times["resident"].append(training.timed(resident, WARM_STEPS)[0])
        times["loaded"].append(training.timed(batches, WARM_STEPS)[0])
        sections = gt.debug.get_worker_stats()["compilation_stats"] if ROWS[options.row].compiles else {}
        compiling = any(still_compiling(section, runs.get(name, 0)) for name, section in sections.items())
        runs = {name: section["runs"] for name, section in sections.items()}
        if not compiling and all(map(settled, times.values())):
            return


def still_compiling(section: dict[str, Any], runs_before: int) -> bool:
    """Whether a section that has run since may yet become faster. A single instruction may not be worth it."""
    ran = section["runs"] > runs_before
    return ran and section["length"] > 1 and section["level"] != "compiled" and not section["reasons"]


def settled(times: list[float]) -> bool:
    """Whether the last two are not faster than those before them."""
    return len(times) >= 4 and min(times[-2:]) > 0.95 * min(times[:-2])


def measure(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """A row in its own process; {"error": …} if it fails."""
    kept = ("batch", "side", "processes", "steps", "rounds", "patience", "trace")
    words = [f"--{key}={value}" for key in kept if (value := getattr(options, key)) is not None]
    process = subprocess.run(
        [sys.executable, __file__, "--row", name, *words],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **ROWS[name].environment},
    )
    lines = process.stdout.strip().splitlines()
    return json.loads(lines[-1]) if process.returncode == 0 and lines else {"error": f"ended with {process.returncode}"}


def summary(name: str, figures: dict[str, Any]) -> dict[str, Any]:
    """A row in the record."""
    if "error" in figures:
        return figures
    ratios = [came / there for there, came in zip(figures["resident_s"], figures["loaded_s"], strict=True)]
    cv = max(timing.variation(figures[key]) or 0.0 for key in ("resident_s", "loaded_s"))
    return {
        "resident": timing.summary(figures["resident_s"]),
        "loaded": timing.summary(figures["loaded_s"]),
        "waited": timing.summary(figures["waited_s"]),
        "ratio": statistics.median(ratios),
        "goal": {"bound": GOAL, "reached": statistics.median(ratios) <= GOAL},
        "verdict": verdict.judge({"cv": cv}, ["cv"], name),
    }


COLUMNS = ("row", "ms on data there", "ms from the loader", "ratio", f"<= {GOAL}", "ms waiting for a batch", "left out")


def line(name: str, row: dict[str, Any]) -> list[Any]:
    if "error" in row:
        return [name, None, None, None, None, None, row["error"]]
    times = [row[key]["p50_s"] * 1e3 for key in ("resident", "loaded", "waited")]
    return [name, *times[:2], row["ratio"], row["goal"]["reached"], times[2], ""]


def parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(environment.program(__file__), description=(__doc__ or "").splitlines()[0])
    add: Callable[..., Any] = parser.add_argument
    add("--quick", action="store_true", help="three rounds of two steps instead of nine of 20; small without a GPU")
    add("--rows", nargs="+", choices=NAMES, default=list(NAMES))
    add("--batch", type=int, help="images in a batch (default 256; 8 without a GPU)")
    add("--side", type=int, help="pixels of a side (default 224; 64 without a GPU)")
    add("--processes", type=int, default=8 if CUDA else 2, help="processes of the loader (default 8; 2 without a GPU)")
    add("--steps", type=int, help="steps of a sample")
    add("--rounds", type=int)
    add("--patience", type=float, default=120.0, help="seconds that compiling may take at the most")
    add("--trace", metavar="FILE", help="write a trace of the last GT row here")
    add("--output-dir", default="./results", help="where the JSON record goes (default ./results)")
    add("--row", choices=NAMES, help=argparse.SUPPRESS)
    options = parser.parse_args(words)
    options.batch = options.batch or (256 if CUDA else 8)
    options.side = options.side or (224 if CUDA else 64)
    options.steps = options.steps or (2 if options.quick else 20)
    options.rounds = options.rounds or (3 if options.quick else 9)
    return options


def main(words: list[str] | None = None) -> int:
    options = parse(words)
    if options.row:
        return child(options)
    keys = ("batch", "side", "processes", "steps", "rounds")
    record = results.Record(
        options.output_dir,
        suite="input_pipeline",
        name="input_pipeline",
        world_size=1,
        config={"device": environment.device_name(torch.device(DEVICE)), **{k: getattr(options, k) for k in keys}},
        environment=environment.record({"all": 0}),
    )
    rows = {}
    for name in options.rows:
        rows[name] = summary(name, measure(name, options))
        record.put(name, value=rows[name])
    record.finish()
    title = f"ResNet-18 at {options.side}, batch {options.batch}, {options.processes} processes load"
    tables.show(title, COLUMNS, [line(name, row) for name, row in rows.items()])
    for text in tables.verdict_lines(record.data["verdict"]):
        print(text)
    print(f"record: {record.path}")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
