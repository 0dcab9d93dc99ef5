"""Moves between two workers, as between two stages: one after the other, and many at once. Two workers that share a GPU
move tensors through the host or by CUDA IPC; both ways must give the same bits."""

from __future__ import annotations

import os
import pathlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import gt
from benchmarks.autoshard.system import System
from benchmarks.core.rows import Row
from benchmarks.pipelines.sizes import Sizes

#: bytes of a tensor -> moves in one sample
COUNTS = {1 << 10: 400, 64 << 10: 400, 1 << 20: 100, 8 << 20: 20}
#: how workers that share a GPU move tensors -> GT_CUDA_IPC
WAYS = {"through the host": "0", "CUDA IPC": "1"}


@contextmanager
def two_stages(port: int) -> Iterator[None]:
    """Two workers, each a stage of its own."""
    with System(2, port):
        for number in range(2):
            gt.register_config(f"stage{number}", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=[number])))
        yield
        gt.load_config(None)


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


def rates(sizes: Sizes, way: str = "") -> Iterator[Row]:
    for nbytes, count in COUNTS.items():
        with gt.signal.context("stage0"):
            x = gt.ones(nbytes // 4)
        for program in (back_and_forth, one_way):
            for _ in range(2):
                rate(program, x, count)
            name = program.__name__.replace("_", " ")
            samples = [rate(program, x, count) for _ in range(sizes.rounds)]
            yield Row(f"moves {name}, {nbytes >> 10} KiB{way}", samples, "moves a second")


def moves(sizes: Sizes, folder: pathlib.Path) -> Iterator[Row]:
    with two_stages(sizes.port):
        yield from rates(sizes)


# -- two workers that share a GPU ------------------------------------------------------------------


def moved_bits() -> list[bytes]:
    """What arrives of tensors of several types and shapes, whole and in parts, after work that takes a while."""
    arrived = []
    with gt.signal.context("stage0"):
        gt.manual_seed(0)
        large = gt.randn(1024, 1024)
        for _ in range(20):  # the move must wait for it
            large = (large @ large).tanh()
        values = [large, large[:, 1:-1], large.T, (large > 0), large.half(), large.bfloat16().float(), large[:0]]
        values += [gt.complex(large, -large), gt.arange(1000), gt.full((), 3.5)]
    for x in values:
        moved = gt.signal.tensor(x, "stage1")
        x.mul_(0) if x is large else None  # the memory is written as soon as the move allows it
        with gt.signal.context("stage1"):
            arrived.append(moved.clone().numpy().tobytes())
    return arrived


def both_ways(sizes: Sizes) -> Iterator[Row]:
    """The same moves through the host and by CUDA IPC: times, and whether all bits are equal."""
    bits: dict[str, list[bytes]] = {}
    for way in WAYS:
        with moving(way), two_stages(sizes.port):
            bits[way] = moved_bits()
            yield from rates(sizes, f", {way}")
    different = sum(a != b for a, b in zip(*bits.values(), strict=True))
    yield Row("moves whose bits differ between the two ways", [float(different)], "moves", "<=", 0.0)


@contextmanager
def moving(way: str) -> Iterator[None]:
    """Systems that are started inside move tensors in this way."""
    before = os.environ.get("GT_CUDA_IPC")
    os.environ["GT_CUDA_IPC"] = WAYS[way]
    try:
        yield
    finally:
        del os.environ["GT_CUDA_IPC"]
        if before is not None:
            os.environ["GT_CUDA_IPC"] = before
