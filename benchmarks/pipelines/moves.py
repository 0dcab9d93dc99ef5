"""Moves between two CPU workers, as between two stages: one after the other, and many at once."""

from __future__ import annotations

import pathlib
import time
from collections.abc import Iterator
from typing import Any

import gt
from benchmarks.autoshard.system import System
from benchmarks.pipelines.figures import Figure, Sizes

#: bytes of a tensor -> moves in one sample
COUNTS = {1 << 10: 400, 64 << 10: 400, 1 << 20: 100, 8 << 20: 20}


def back_and_forth(x: Any, count: int) -> Any:
    """Each move sends the result of the one before."""
    for i in range(count):
        x = gt.signal.tensor(x, f"stage{(i + 1) % 2}") + 1
    return x


def one_way(x: Any, count: int) -> Any:
    """Each move sends a tensor of its own."""
    with gt.signal.context("stage0"):
        rows = [x + i for i in range(count)]
    return [gt.signal.tensor(row, "stage1") for row in rows][-1]


def rate(program: Any, x: Any, count: int) -> float:
    """Moves per second, until the last result is known."""
    started = time.perf_counter()
    program(x, count).sum().item()
    return count / (time.perf_counter() - started)


def moves(sizes: Sizes, folder: pathlib.Path) -> Iterator[Figure]:
    with System(2, sizes.port):
        for number in range(2):
            gt.register_config(f"stage{number}", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=[number])))
        for nbytes, count in COUNTS.items():
            with gt.signal.context("stage0"):
                x = gt.ones(nbytes // 4)
            for program in (back_and_forth, one_way):
                for _ in range(2):
                    rate(program, x, count)
                name = program.__name__.replace("_", " ")
                rates = [rate(program, x, count) for _ in range(sizes.rounds)]
                yield Figure(f"moves {name}, {nbytes >> 10} KiB", rates, "moves a second")
        gt.load_config(None)
