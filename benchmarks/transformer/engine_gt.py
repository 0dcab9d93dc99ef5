"""One training step on GT: the same model, weights, data and optimizer as torch's, on one worker or on many.

On many, parameters are replicated and the batch is sharded, as under DDP: worker r has the samples of rank r.

A step is complete only when one of its values is read, and a read waits for everything submitted before it. The client
is then not ahead of the workers, and its own pauses (for example garbage collection) stop them. So steps are timed in
blocks that end with a read; within a block the client runs ahead, as it does in a training.
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
from benchmarks.core.trainer import RATE, Steps
from benchmarks.transformer.model import build, build_torch
from benchmarks.transformer.options import DTYPES, Config
from benchmarks.transformer.problems import BadInput

#: an epoch is divided into this many blocks, unless they would be longer than the second number
BLOCKS, LONGEST = 10, 10
#: the signal of batches: sharded over the workers, even if they are small
DATA = "data"


def workers() -> int:
    """The number of workers: from the launcher, or `BENCH_PROCESSES`; otherwise one."""
    setting = os.environ.get("BENCH_PROCESSES", "")
    return max(1, int(setting)) if setting.isdigit() else 1


def check(config: Config, processes: int) -> None:
    """Refuse options that GT does not support."""
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
    """One client that represents all its workers; there is no process group of torch."""
    cuda, count = torch.cuda.is_available(), workers()
    world = World(0, count, 0, torch.device("cuda", 0) if cuda else torch.device("cpu"), "gt", ranks_led=count)
    cards = [uuid(n % torch.cuda.device_count()) if cuda else None for n in range(count)]
    # the workers, once they exist, and the client, which creates the first weights on a GPU: both are part of this run
    world.members = [{"host": socket.gethostname(), "gpu": gpu, "pid": os.getpid()} for gpu in [*cards, None]]
    return world


class GtEngine:
    def __init__(self, config: Config, world: World) -> None:
        import gt

        self.gt, self.config, self.world = gt, config, world
        self.recover()

    def recover(self) -> None:
        """A new system with the initial weights."""
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
            source, decoder_input, target = map(gt.from_numpy, batch)
        precision = self.config.precision
        lower = getattr(gt, DTYPES["bf16" if precision == "fp32" else precision])
        with gt.autocast(dtype=lower, enabled=precision != "fp32"):
            loss = self.criterion(self.model(source, decoder_input).flatten(0, 1), target.flatten())
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
        """The losses of the block; reading them waits until its steps are complete."""
        if not self._pending:
            return
        self._steps.losses += self.gt.stack(self._pending).tolist()
        now = time.perf_counter()
        self._steps.laps.append((len(self._pending), now - self._mark))
        self._pending, self._mark = [], now

    def _wait(self) -> None:
        """Read a number in which all workers take part: each has then finished everything before it."""
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
        """The peaks of the workers, since the last call."""
        return [_memory_report(worker) for worker in self.gt.debug.memory().values()]

    def close(self) -> None:
        self.gt.disconnect()


def _memory_report(worker: dict[str, Any]) -> dict[str, Any]:
    device = worker["device"] or {}
    return {
        "peak_bytes": device.get("allocated_peak"),
        "kind": "allocated by the worker's tensors",
        "capacity_bytes": device.get("total"),
        "client_bytes": worker["client"]["bytes"],
    }
