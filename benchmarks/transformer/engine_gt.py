"""One training step on GT: the same model, weights, data and optimizer as torch's, on one worker."""

from __future__ import annotations

import os
import socket
import time
from collections import deque
from typing import Any

import numpy as np
import torch

from benchmarks.core.environment import uuid
from benchmarks.core.ranks import World
from benchmarks.transformer.engines import RATE, Steps
from benchmarks.transformer.model import build, build_torch
from benchmarks.transformer.options import DTYPES, Config
from benchmarks.transformer.problems import BadInput

#: how many steps after its own a loss is read: GT runs ahead, and reading at once would stop it
LAG = 2


def check(config: Config, workers: int) -> None:
    """What GT cannot do yet, all of it here."""
    if workers > 1:
        raise BadInput(
            f"--engine gt on {workers} workers: data parallel training is not there yet; "
            f"use one (--single with run_benchmark.sh), or --engine ddp or fsdp"
        )
    if config.compile:
        raise BadInput("--compile is torch's: leave it out with --engine gt")


def world() -> World:
    """One client, and no group of torch's."""
    device = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
    made = World(0, 1, 0, device, "gt")
    gpu, host = uuid(0) if device.type == "cuda" else None, socket.gethostname()
    # the worker, once it is there, and the client, which makes the first weights on the same GPU: neither is a stranger
    made.members = [{"host": host, "gpu": gpu, "pid": os.getpid()} for _ in range(2)]
    return made


class GtEngine:
    def __init__(self, config: Config, world: World) -> None:
        import gt

        self.gt, self.config, self.world = gt, config, world
        self.recover()

    def recover(self) -> None:
        """A new system with the weights of the beginning."""
        gt, config, world = self.gt, self.config, self.world
        gt.gpu_workers(1)
        world.members[0]["pid"] = gt.workers()[0].pid
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

    def stage(self, arrays: tuple[np.ndarray, ...]) -> Any:
        return arrays

    def begin(self) -> None:
        self.gt.zeros(1).item()
        self._pending: deque[Any] = deque()
        self._steps = Steps()
        self._begun = self._mark = time.perf_counter()

    def step(self, batch: Any, sync: bool = True) -> None:
        gt = self.gt
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
        if len(self._pending) > LAG:
            self._read()

    def _read(self) -> None:
        """A loss that is there says that its step is done."""
        self._steps.losses.append(self._pending.popleft().item())
        now = time.perf_counter()
        self._steps.seconds.append(now - self._mark)
        self._mark = now

    def finish(self) -> Steps:
        while self._pending:
            self._read()
        self.gt.zeros(1).item()
        self._steps.wall = time.perf_counter() - self._begun
        return self._steps

    def reset_memory(self) -> None:
        self.gt.debug.memory()

    def memory(self) -> dict[str, Any]:
        """The worker's, since the last time it was asked."""
        found = next(iter(self.gt.debug.memory().values()))
        device = found["device"] or {}
        return {
            "peak_bytes": device.get("peak"),
            "kind": "allocated by the worker's tensors",
            "capacity_bytes": device.get("total"),
            "client_bytes": found["client"]["bytes"],
        }

    def close(self) -> None:
        self.gt.disconnect()
