"""One training step on GT: the same model, weights, data and optimizer as torch's, on one worker or on many.

On many, each has all parameters and its share of the batch, as under DDP: worker r that of rank r.

Only a value that is read says when a step is over, and reading one waits for all that was asked for before it: the
client is then ahead of nobody, and its own pauses (a garbage collection is one) stop the workers. So steps are timed in
blocks that end with a read, and within a block the client runs ahead, as it does in a training.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from typing import Any

import numpy as np
import torch

from benchmarks.core.environment import uuid
from benchmarks.core.ranks import World
from benchmarks.transformer.engines import RATE, Steps
from benchmarks.transformer.model import build, build_torch
from benchmarks.transformer.options import DTYPES, Config
from benchmarks.transformer.problems import BadInput

#: an epoch is cut into so many blocks, unless they would be longer than this
BLOCKS, LONGEST = 10, 10
#: the signal of batches: cut over the workers, however small they are
DATA = "data"


def workers() -> int:
    """As many as the launcher says, or `BENCH_PROCESSES`; one if nobody does."""
    said = os.environ.get("BENCH_PROCESSES", "")
    return max(1, int(said)) if said.isdigit() else 1


def check(config: Config, processes: int) -> None:
    """What GT cannot do, all of it here."""
    if processes > 1:
        raise BadInput(
            f"--engine gt in {processes} processes: GT is one process that has its workers itself; start it with "
            f"run_benchmark.sh, or with BENCH_PROCESSES={processes} and without torchrun"
        )
    if config.compile:
        raise BadInput("--compile is torch's: leave it out with --engine gt")
    gpus, sharing = torch.cuda.device_count(), os.environ.get("GT_SHARE_GPUS", "0") not in ("", "0")
    if 0 < gpus < workers() and not sharing:
        raise BadInput(
            f"--engine gt on {workers()} workers: there are {gpus} GPU(s) here; GT_SHARE_GPUS=1 lets workers share"
        )


def world() -> World:
    """One client that speaks for all its workers, and no group of torch's."""
    cuda, count = torch.cuda.is_available(), workers()
    made = World(0, count, 0, torch.device("cuda", 0) if cuda else torch.device("cpu"), "gt", own=count)
    cards = [uuid(n % torch.cuda.device_count()) if cuda else None for n in range(count)]
    # the workers, once they are there, and the client, which makes the first weights on a GPU: none is a stranger
    made.members = [{"host": socket.gethostname(), "gpu": gpu, "pid": os.getpid()} for gpu in [*cards, None]]
    return made


class GtEngine:
    def __init__(self, config: Config, world: World) -> None:
        import gt

        self.gt, self.config, self.world = gt, config, world
        self.recover()

    def recover(self) -> None:
        """A new system with the weights of the beginning."""
        gt, config, world = self.gt, self.config, self.world
        self._start()
        start = build_torch(config.sizes, world.device, config.seed)
        self.parameters = sum(p.numel() for p in start.parameters())
        self.model = build(gt, config.sizes)
        self.model.load_state_dict({name: value.cpu() for name, value in start.state_dict().items()})
        del start
        if world.device.type == "cuda":
            torch.cuda.empty_cache()
        self.optimizer = gt.optim.AdamW(self.model.parameters(), lr=RATE)
        self.scaler = gt.amp.GradScaler(enabled=config.precision == "fp16")
        self.criterion = gt.nn.CrossEntropyLoss()
        self.begin()

    def _start(self) -> None:
        gt, world = self.gt, self.world
        if world.size > 1:
            gt.auto_shard()
            gt.register_config(DATA, gt.SignalConfig(shard=gt.ShardConfig(axis=0)))
        gt.gpu_workers(world.size)
        for member, worker in zip(world.members, gt.workers(), strict=False):
            member["pid"] = worker.pid

    def stage(self, arrays: tuple[np.ndarray, ...]) -> Any:
        return arrays

    def begin(self, steps: int = 1) -> None:
        self._wait()
        self._block = min(LONGEST, max(1, steps // BLOCKS))
        #: losses of the block so far, and the samples of its batches
        self._pending: list[Any] = []
        self._samples = 0
        self._steps = Steps()
        self._begun = self._mark = time.perf_counter()

    def step(self, batch: Any, sync: bool = True) -> None:
        gt = self.gt
        if len(batch[0]) != self._samples:  # a shorter batch is a block of its own
            self._read()
            self._samples = len(batch[0])
        with gt.signal.context(DATA) if self.world.size > 1 else contextlib.nullcontext():
            source, seen, target = map(gt.from_numpy, batch)
        precision = self.config.precision
        lower = getattr(gt, DTYPES["bf16" if precision == "fp32" else precision])
        with gt.autocast(dtype=lower, enabled=precision != "fp32"):
            loss = self.criterion(self.model(source, seen).flatten(0, 1), target.flatten())
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        before = self.scaler.get_scale()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self._steps.skipped += self.scaler.get_scale() < before
        self._pending.append(loss.detach())
        if len(self._pending) == self._block:
            self._read()

    def _read(self) -> None:
        """The losses of the block; that they are there says that its steps are done."""
        if not self._pending:
            return
        self._steps.losses += self.gt.stack(self._pending).tolist()
        now = time.perf_counter()
        self._steps.laps.append((len(self._pending), now - self._mark))
        self._pending, self._mark = [], now

    def _wait(self) -> None:
        """For a number that all workers have a part in: each has done all it had to do before."""
        with self.gt.signal.context(DATA) if self.world.size > 1 else contextlib.nullcontext():
            parts = self.gt.zeros(self.world.size)
        parts.sum().item()

    def finish(self) -> Steps:
        self._read()
        self._wait()
        self._steps.wall = time.perf_counter() - self._begun
        return self._steps

    def reset_memory(self) -> None:
        self.gt.debug.memory()

    def memory(self) -> list[dict[str, Any]]:
        """The workers', since the last time they were asked."""
        return [_told(worker) for worker in self.gt.debug.memory().values()]

    def close(self) -> None:
        self.gt.disconnect()


def _told(worker: dict[str, Any]) -> dict[str, Any]:
    device = worker["device"] or {}
    return {
        "peak_bytes": device.get("peak"),
        "kind": "allocated by the worker's tensors",
        "capacity_bytes": device.get("total"),
        "client_bytes": worker["client"]["bytes"],
    }
