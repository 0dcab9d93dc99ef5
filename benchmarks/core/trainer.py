"""One rank's model, optimizer and loss scale under an engine: the training step that every suite measures.

A trainer runs ahead of the device. It records a mark after each step; ``finish`` waits for the device and returns the
durations and losses. `Engine` are the methods that GT's trainer has as well (``transformer/engine_gt.py``).
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from benchmarks.core import timing
from benchmarks.core.gauge import Gauge, release
from benchmarks.core.parallel import ENGINES
from benchmarks.core.ranks import World

RATE = 1e-4
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
#: the stages of a first step that ``look`` is called after
PHASES = ("load", "engine", "forward", "backward", "optimizer", "rest")

#: (the model, a batch on the device) -> scores and their targets
Forward = Callable[[Any, Sequence[torch.Tensor]], tuple[torch.Tensor, torch.Tensor]]


@dataclass
class Steps:
    """The measurements of a series of steps."""

    #: seconds from the idle device before the first to the idle device after the last
    wall: float = 0.0
    #: steps, and the seconds from the end of the ones before to the end of these: as few as the engine can distinguish
    laps: list[tuple[int, float]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    #: steps whose optimizer was skipped by the loss scale of fp16
    skipped: int = 0


class Engine(Protocol):
    parameters: int

    def stage(self, arrays: tuple[np.ndarray, ...]) -> Any: ...
    def begin(self, steps: int = 1) -> None: ...
    def step(self, batch: Any, sync: bool = True) -> None: ...
    def finish(self) -> Steps: ...
    def reset_memory(self) -> None: ...
    def memory(self) -> list[dict[str, Any]]: ...
    def recover(self) -> None: ...
    def close(self) -> None: ...


def series(engine: Engine, steps: int, batches: Iterable[Any]) -> Steps:
    """This many steps, from an idle device to an idle device. As in a training, nothing waits between two steps.

    Python's garbage collector does not visit what was there before, so that no step contains a long collection.
    """
    gc.collect()
    gc.freeze()
    try:
        engine.begin(steps)
        for batch in batches:
            engine.step(batch)
        return engine.finish()
    finally:
        gc.unfreeze()


class Trainer:
    """Torch's `Engine`. ``units`` are the parts of the model that FSDP shards one by one."""

    def __init__(
        self,
        world: World,
        module: nn.Module,
        forward: Forward,
        *,
        engine: str,
        dtype: str,
        units: Sequence[nn.Module] = (),
        group: Any = None,
        compile: bool = False,
        look: Callable[[str], None] | None = None,
    ) -> None:
        self.world, self.device, self.dtype = world, world.device, DTYPES[dtype]
        self.gauge = Gauge(self.device)
        #: bytes allocated after each of `PHASES`, at its first time
        self.phases: dict[str, int] = {}
        self._look = look or self._note
        self._forward = forward
        self.parameters = sum(p.numel() for p in module.parameters())
        self._look("load")
        wrap, self._without_exchange = ENGINES[engine]
        self.module: Any = wrap(module, world, self.dtype, group, units)
        self.model: Any = torch.compile(self.module) if compile else self.module
        cuda = self.device.type == "cuda"
        self.optimizer: Any = torch.optim.AdamW(self.module.parameters(), lr=RATE, fused=cuda or None)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=dtype == "fp16")
        # under FSDP the parameters themselves are of the low dtype; autocast would cast again
        self._casts = engine != "fsdp" and dtype != "fp32"
        #: does the engine keep gradients of passes without exchange, and add them to its next exchange?
        self._keeps = engine == "fsdp"
        self.loss = torch.zeros(())
        self._taken = 0
        self._look("engine")
        self.begin()

    # -- a step ------------------------------------------------------------------------------

    def stage(self, arrays: tuple[np.ndarray, ...]) -> Any:
        """A batch, ready to be copied to the device: this runs in the loader's thread."""
        tensors = [torch.from_numpy(array) for array in arrays]
        if self.device.type != "cuda":
            return tensors
        # the device is a setting of each thread: otherwise all ranks would use the first GPU
        torch.cuda.set_device(self.device)
        return [tensor.pin_memory() for tensor in tensors]

    def passes(self, batch: Any, sync: bool = True) -> None:
        """Forward and backward, with or without exchange of gradients."""
        tensors = [tensor.to(self.device, non_blocking=True) for tensor in batch]
        with contextlib.nullcontext() if sync else self._without_exchange(self.module):
            loss = self._loss(tensors)
            self._look("forward")
            self.scaler.scale(loss).backward()
        self.loss = loss.detach()
        del loss
        self._look("backward")

    def _loss(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        with torch.autocast(self.device.type, self.dtype if self._casts else torch.bfloat16, enabled=self._casts):
            scores, target = self._forward(self.model, tensors)
        return functional.cross_entropy(scores.flatten(0, 1).float(), target.flatten())

    def step(self, batch: Any, sync: bool = True) -> None:
        self.passes(batch, sync)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self._look("optimizer")
        self.optimizer.zero_grad()
        self._look("rest")
        self._taken += 1
        self._losses.append(self.loss)
        self._marks.append(timing.mark(self.device))

    def forget(self, batch: Any, sync: bool) -> None:
        """Drop the gradients of passes, with or without exchange."""
        if self._keeps and not sync:
            self.passes(batch)
        self.optimizer.zero_grad()

    # -- a series of steps -------------------------------------------------------------------

    def begin(self, steps: int = 1) -> None:
        """Start a new series of steps, from an idle device."""
        timing.synchronize(self.device)
        self._losses: list[torch.Tensor] = []
        self._before, self._tried = self._optimized(), self._taken
        self._begun = time.perf_counter()
        self._marks = [timing.mark(self.device)]

    def finish(self) -> Steps:
        timing.synchronize(self.device)
        wall = time.perf_counter() - self._begun
        laps = [(1, timing.between(a, b)) for a, b in itertools.pairwise(self._marks)]
        skipped = (self._taken - self._tried) - (self._optimized() - self._before)
        losses = torch.stack(self._losses).tolist() if self._losses else []
        return Steps(wall, laps, losses, skipped)

    def _optimized(self) -> int:
        """The optimizer's own count of its steps, which does not increase where fp16 skips one."""
        state = next(iter(self.optimizer.state.values()), None)
        return int(state["step"].item()) if state else 0

    # -- memory ------------------------------------------------------------------------------

    def _note(self, phase: str) -> None:
        if self.gauge.cuda and phase not in self.phases:
            self.phases[phase] = torch.cuda.memory_allocated(self.device)

    def reset_memory(self) -> None:
        self.gauge.reset()

    def memory(self) -> list[dict[str, Any]]:
        """Peaks since ``reset_memory``, one entry for each rank of this process."""
        return [self.gauge.report() | ({"phases_bytes": dict(self.phases)} if self.phases else {})]

    def recover(self) -> None:
        """Recover from a step that ran out of memory."""
        self.optimizer.zero_grad()
        self._losses = []

    def close(self) -> None:
        """Free the memory of the model and its optimizer."""
        self.model = self.module = self.optimizer = None
        self._losses, self.loss = [], torch.zeros(())
        release(self.device)
