#!/usr/bin/env python3
"""How fast are checkpoints, measured against the disk? A program without GT writes and reads the same bytes in turns.

disk         one process writes a file of the same size from memory and calls fsync, and reads it: what the disk can do
gt file      gt.save and gt.load of one file
gt folder    gt.save and gt.load of a folder of several files
gt into      gt.load(into=…): each worker reads the blocks that it holds

Before each read the file is dropped from the cache of the operating system. A figure is the median over the rounds of
the disk's time divided by GT's in the same round: 1 means as fast as the disk.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

if __name__ == "__main__":
    # the root of the repository instead of this folder, so that modules have the same name wherever this starts
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

import numpy as np

import gt
from benchmarks.core import environment, results, tables, timing, verdict
from gt.launch.local import visible_gpus

#: The size of one write or read of the program without GT.
PIECE = 16 << 20
ROWS = ("disk", "gt file", "gt folder", "gt into")
COLUMNS = ("row", "write MB/s", "of the disk's", "read MB/s", "of the disk's")


def forget(path: pathlib.Path) -> None:
    """Drop the files of a path from the cache."""
    for file in [path] if path.is_file() else list(path.iterdir()):
        with open(file, "rb") as opened:
            os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class Run:
    """The rows of one run, over tensors of a number of bytes that are divided among the workers."""

    def __init__(self, folder: pathlib.Path, nbytes: int) -> None:
        self.folder, self.nbytes = folder, nbytes
        side = 1024
        rows = nbytes // 8 // side // 4  # eight tensors of float32
        self.state = {f"layer{k}.weight": gt.randn(rows, side) for k in range(8)}
        self.into = {name: gt.zeros(rows, side) for name in self.state}
        self.data = memoryview(np.random.default_rng(0).bytes(nbytes))
        for x in (*self.state.values(), *self.into.values()):
            x.sum().item()

    def write(self, row: str) -> None:
        if row == "disk":
            with open(self.folder / "disk", "wb", buffering=0) as file:
                for at in range(0, self.nbytes, PIECE):
                    file.write(self.data[at : at + PIECE])
                os.fsync(file.fileno())
        elif row == "gt folder":
            gt.save(self.state, f"{self.folder}/folder/", max_shard_size=self.nbytes // 4)
        else:
            gt.save(self.state, self.folder / "file")

    def read(self, row: str) -> None:
        if row == "disk":
            buffer = bytearray(PIECE)
            with open(self.folder / "disk", "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass
        elif row == "gt into":
            gt.load(self.folder / "file", into=self.into)
        else:
            gt.load(self.folder / ("folder" if row == "gt folder" else "file"))

    def timed(self, row: str) -> tuple[float, float]:
        """Seconds of one write and of one read."""
        name = {"disk": "disk", "gt folder": "folder"}.get(row, "file")
        return _seconds(self.write, row), (forget(self.folder / name), _seconds(self.read, row))[1]

    def check(self) -> None:
        """The values that were read are those that were written."""
        for name, x in self.state.items():
            assert (self.into[name] == x).all(), f"{name} was read wrongly"


def _seconds(do: Callable[[str], None], row: str) -> float:
    started = time.perf_counter()
    do(row)
    return time.perf_counter() - started


def summary(row: str, nbytes: int, samples: dict[str, list[tuple[float, float]]]) -> dict[str, Any]:
    """A row in the record."""
    result: dict[str, Any] = {}
    for number, kind in enumerate(("write", "read")):
        seconds = [sample[number] for sample in samples[row]]
        disk = [sample[number] for sample in samples["disk"]]
        ratios = [d / s for d, s in zip(disk, seconds, strict=True)]
        result[kind] = {
            **timing.summary(seconds),
            "mb_per_s": nbytes / 1e6 / statistics.median(seconds),
            "of_disk": statistics.median(ratios),
        }
    cv = max(timing.variation([sample[n] for sample in samples[row]]) or 0.0 for n in (0, 1))
    return {**result, "verdict": verdict.judge({"cv": cv}, ["cv"], row)}


def line(name: str, row: dict[str, Any]) -> list[Any]:
    return [name, *(row[kind][figure] for kind in ("write", "read") for figure in ("mb_per_s", "of_disk"))]


def parse(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(environment.program(__file__), description=(__doc__ or "").splitlines()[0])
    add: Callable[..., Any] = parser.add_argument
    add("--megabytes", type=int, default=512, help="MiB of tensors (default 512)")
    add("--workers", type=int, default=2)
    add("--rounds", type=int, default=5)
    add("--folder", default=tempfile.gettempdir(), help="a folder on the disk to measure (default: the temporary one)")
    add("--output-dir", default="./results", help="where the JSON record goes (default ./results)")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    options = parse(words)
    keys = ("megabytes", "workers", "rounds")
    record = results.Record(
        options.output_dir,
        suite="checkpoints",
        name="checkpoints",
        world_size=options.workers,
        config={"device": "cuda" if visible_gpus() else "cpu", **{k: getattr(options, k) for k in keys}},
        environment=environment.record({"all": 0}),
    )
    gt.gpu_workers(options.workers)
    gt.auto_shard()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="gt-checkpoints-", dir=options.folder))
    try:
        run = Run(folder, options.megabytes << 20)
        samples: dict[str, list[tuple[float, float]]] = {row: [] for row in ROWS}
        for _ in range(options.rounds):
            for row in ROWS:
                samples[row].append(run.timed(row))
        run.check()
    finally:
        shutil.rmtree(folder)
        gt.disconnect()
    rows = {row: summary(row, run.nbytes, samples) for row in ROWS}
    for row, value in rows.items():
        record.put(row.replace(" ", "_"), value=value)
    record.finish()
    title = f"{options.megabytes} MiB on {options.workers} workers"
    tables.show(title, COLUMNS, [line(name, row) for name, row in rows.items()])
    print(f"record: {record.path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
