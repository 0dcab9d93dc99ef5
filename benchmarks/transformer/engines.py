"""One training step on torch: alone, under DDP, or under FSDP2. `engine_gt.GtEngine` is the same on GT.

An engine runs ahead of the device. It records a mark after each step, or after several; `finish` waits for the device
and returns their durations and losses.
"""

from __future__ import annotations

import contextlib
import gc
import time
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

from benchmarks.core.ranks import World
from benchmarks.transformer.model import build_torch
from benchmarks.transformer.options import DTYPES, Config

RATE = 1e-4


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


class TorchEngine:
    def __init__(self, config: Config, world: World) -> None:
        self.device, self.config = world.device, config
        self.cuda = self.device.type == "cuda"
        #: bytes allocated after load, forward, backward and the first optimizer step
        self.phases: dict[str, int] = {}
        module = build_torch(config.sizes, self.device, config.seed)
        self.parameters = sum(p.numel() for p in module.parameters())
        self._note("load")
        self.module: Any = WRAPS[config.engine](module, config, world)
        self.model: Any = torch.compile(self.module) if config.compile else self.module
        self.optimizer: Any = torch.optim.AdamW(self.module.parameters(), lr=RATE, fused=self.cuda or None)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=config.precision == "fp16")
        self.criterion = nn.CrossEntropyLoss()
        self._taken = 0
        self.begin()

    def stage(self, arrays: tuple[np.ndarray, ...]) -> Any:
        tensors = [torch.from_numpy(array) for array in arrays]
        if not self.cuda:
            return tensors
        # the device is a setting of each thread, and this is the loader's: otherwise all ranks would use the first GPU
        torch.cuda.set_device(self.device)
        return [tensor.pin_memory() for tensor in tensors]

    def begin(self, steps: int = 1) -> None:
        """Start a new series of steps, from an idle device."""
        self._wait()
        self._losses: list[torch.Tensor] = []
        self._before, self._tried = self._optimized(), self._taken
        self._begun = time.perf_counter()
        self._marks = [self._mark()]

    def step(self, batch: Any, sync: bool = True) -> None:
        source, decoder_input, target = (tensor.to(self.device, non_blocking=True) for tensor in batch)
        alone = contextlib.nullcontext() if sync or not hasattr(self.module, "no_sync") else self.module.no_sync()
        with alone:
            with self._autocast():
                scores = self.model(source, decoder_input)
                loss = self.criterion(scores.flatten(0, 1), target.flatten())
            self._note("forward")
            self.scaler.scale(loss).backward()
        self._note("backward")
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self._note("optimizer")
        self.optimizer.zero_grad()
        self._note("rest")
        self._taken += 1
        self._losses.append(loss.detach())
        self._marks.append(self._mark())

    def finish(self) -> Steps:
        self._wait()
        wall = time.perf_counter() - self._begun
        pairs = zip(self._marks, self._marks[1:], strict=False)
        laps = [(1, a.elapsed_time(b) / 1e3 if self.cuda else b - a) for a, b in pairs]
        skipped = (self._taken - self._tried) - (self._optimized() - self._before)
        losses = torch.stack(self._losses).tolist() if self._losses else []
        return Steps(wall, laps, losses, skipped)

    def _autocast(self) -> Any:
        precision = self.config.precision
        dtype = getattr(torch, DTYPES["bf16" if precision == "fp32" else precision])
        return torch.autocast(self.device.type, dtype=dtype, enabled=precision != "fp32")

    def _optimized(self) -> int:
        """The optimizer's own count of its steps, which does not increase where fp16 skips one."""
        state = next(iter(self.optimizer.state.values()), None)
        return int(state["step"].item()) if state else 0

    def _mark(self) -> Any:
        if not self.cuda:
            return time.perf_counter()
        event: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def _wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def _note(self, phase: str) -> None:
        if self.cuda and phase not in self.phases:
            self.phases[phase] = torch.cuda.memory_allocated(self.device)

    def reset_memory(self) -> None:
        if self.cuda:
            torch.cuda.reset_peak_memory_stats(self.device)
            torch.cuda.reset_accumulated_memory_stats(self.device)
            self._retries = torch.cuda.memory_stats(self.device)
        else:
            reset_process_peak()

    def memory(self) -> list[dict[str, Any]]:
        """Peaks since `reset_memory`, one entry for each rank of this process."""
        if not self.cuda:
            kind, peak = "process (resident)", process_peak()
            return [{"peak_bytes": peak, "kind": kind, "capacity_bytes": memory_of_machine()}]
        now, before = torch.cuda.memory_stats(self.device), self._retries
        report = {
            "peak_bytes": torch.cuda.max_memory_allocated(self.device),
            "kind": "allocated by tensors",
            "reserved_bytes": torch.cuda.max_memory_reserved(self.device),
            "capacity_bytes": torch.cuda.get_device_properties(self.device).total_memory,
            "allocation_retries": now["num_alloc_retries"] - before["num_alloc_retries"],
            "ooms": now["num_ooms"] - before["num_ooms"],
            "phases_bytes": dict(self.phases),
        }
        return [report]

    def recover(self) -> None:
        """Recover from a step that ran out of memory."""
        self.optimizer.zero_grad()
        self._losses = []

    def close(self) -> None:
        """Release the memory."""
        self.model = self.module = self.optimizer = None
        self._losses = []
        gc.collect()
        if self.cuda:
            torch.cuda.empty_cache()


# -- what makes it distributed -------------------------------------------------------------


def _ddp(module: nn.Module, config: Config, world: World) -> nn.Module:
    """One rank needs no communication: torch alone."""
    if world.size == 1:
        return module
    devices = [world.device] if world.device.type == "cuda" else None
    return nn.parallel.DistributedDataParallel(module, device_ids=devices, gradient_as_bucket_view=True)


def _fsdp(module: Any, config: Config, world: World) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    lower = None if config.precision == "fp32" else getattr(torch, DTYPES[config.precision])
    policy = MixedPrecisionPolicy(param_dtype=lower, reduce_dtype=torch.float32)
    mesh = init_device_mesh(world.device.type, (world.size,))
    for layer in [*module.encoder.layers, *module.decoder.layers, module]:
        fully_shard(layer, mesh=mesh, mp_policy=policy)
    return module


WRAPS = {"ddp": _ddp, "fsdp": _fsdp}


# -- memory of a process, where there is no GPU ----------------------------------------------


def process_peak() -> int | None:
    """The peak of the resident set since the last reset, in bytes."""
    with contextlib.suppress(OSError), open("/proc/self/status") as file:
        line = next((line for line in file if line.startswith("VmHWM:")), None)
        return int(line.split()[1]) * 1024 if line else None
    return None


def reset_process_peak() -> None:
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def memory_of_machine() -> int:
    from benchmarks.core.environment import cpu

    return int(cpu()["memory_bytes"])
