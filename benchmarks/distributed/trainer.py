"""One rank's model, optimizer and data under an engine, and the step that is measured."""

from __future__ import annotations

import contextlib
import gc
import queue
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from benchmarks.core import timing
from benchmarks.core.ranks import World
from benchmarks.distributed.comm import DTYPES
from benchmarks.distributed.models import Shape, build

#: batches that the loader holds ready
AHEAD = 2


def with_ddp(model: nn.Module, world: World, dtype: torch.dtype, group: Any) -> nn.Module:
    return DistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True)


def with_fsdp(model: nn.Module, world: World, dtype: torch.dtype, group: Any) -> nn.Module:
    """FSDP: each block is a unit, the rest another; computed in the given dtype, reduced in fp32."""
    # this import takes a second, which runs of other parts save
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    mesh = DeviceMesh.from_group(group or dist.group.WORLD, world.device.type)
    low = None if dtype == torch.float32 else dtype
    policy = MixedPrecisionPolicy(param_dtype=low, reduce_dtype=torch.float32 if low else None)
    for block in model.blocks:  # type: ignore[union-attr]
        fully_shard(block, mesh=mesh, mp_policy=policy)
    return fully_shard(model, mesh=mesh, mp_policy=policy)  # type: ignore[return-value]


@contextlib.contextmanager
def _fsdp_unsynced(model: Any) -> Iterator[None]:
    model.set_requires_gradient_sync(False)
    yield
    model.set_requires_gradient_sync(True)


#: engine -> the function that wraps the model, and a context in which gradients stay on their rank
ENGINES: dict[str, tuple[Callable[..., nn.Module], Callable[[Any], Any]]] = {
    "ddp": (with_ddp, lambda model: model.no_sync()),
    "fsdp": (with_fsdp, _fsdp_unsynced),
    "none": (lambda model, world, dtype, group: model, lambda model: contextlib.nullcontext()),
}


class Batches:
    """Random tokens, made by a thread ahead of their use; the time in ``next`` is the wait for data."""

    def __init__(self, shape: Shape, batch: int, device: torch.device, seed: int) -> None:
        self.device, self.waits = device, list[float]()
        self._size = (batch, shape.length + 1)
        self._vocabulary = shape.vocabulary
        self._generator = torch.Generator().manual_seed(seed)
        self._ready: queue.Queue[torch.Tensor] = queue.Queue(AHEAD)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._make, daemon=True)
        self._thread.start()

    def _make(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)  # a thread starts on the first GPU, and pinning would use its memory
        while not self._closed.is_set():
            tokens = torch.randint(0, self._vocabulary, self._size, generator=self._generator)
            tokens = tokens.pin_memory() if self.device.type == "cuda" else tokens
            while not self._closed.is_set():
                with contextlib.suppress(queue.Full):
                    self._ready.put(tokens, timeout=0.1)
                    break

    def next(self) -> torch.Tensor:
        started = time.perf_counter()
        tokens = self._ready.get()
        self.waits.append(time.perf_counter() - started)
        return tokens.to(self.device, non_blocking=True)

    def close(self) -> None:
        self._closed.set()
        self._thread.join()


class Trainer:
    """``step`` is a whole training step; ``passes`` only its forward and backward pass."""

    def __init__(
        self,
        world: World,
        shape: Shape,
        *,
        engine: str,
        batch: int,
        dtype: str,
        seed: int,
        group: Any = None,
        built: Callable[[], Any] = timing.nothing,
    ) -> None:
        self.world, self.shape, self.batch, self.dtype = world, shape, batch, DTYPES[dtype]
        wrap, self._unsynced = ENGINES[engine]
        # under FSDP the parameters themselves are computed in the low dtype; autocast would cast again
        self._autocast = engine != "fsdp" and dtype != "fp32"
        #: does the engine keep gradients of passes without exchange, and add them to its next exchange?
        self.keeps = engine == "fsdp"
        self.model: nn.Module = build(shape, world.device, seed)
        built()  # the model exists and the engine has not changed it
        self.model = wrap(self.model, world, self.dtype, group)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.scaler = torch.amp.GradScaler(world.device.type, enabled=dtype == "fp16")
        self.batches = Batches(shape, batch, world.device, seed * 1000 + world.rank)
        self.loss = torch.zeros(())
        self.skipped = 0

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self.world.device.type, self.dtype, enabled=self._autocast):
            logits = self.model(ids[:, :-1])
        return functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten())

    def passes(self, ids: torch.Tensor, *, synced: bool = True) -> None:
        with contextlib.nullcontext() if synced else self._unsynced(self.model):
            loss = self.forward(ids)
            self.scaler.scale(loss).backward()
        self.loss = loss.detach()

    def update(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)

    def step(self) -> None:
        self.passes(self.batches.next())
        self.update()

    def steps(self, warmup: int, iters: int) -> list[float]:
        """Seconds of each step, including the wait for its data; the waits of the timed steps are kept.

        As in a training, the program does not wait for the device between two steps: a pause of the host that the
        device does not notice has no effect.
        """
        for _ in range(warmup):
            self.step()
        self.batches.waits.clear()
        before = self._optimized()
        samples = timing.laps(self.step, iters=iters, device=self.world.device)
        self.skipped += iters - (self._optimized() - before)
        return samples

    def _optimized(self) -> int:
        """The optimizer's own count of its steps, which does not increase where fp16 skips one."""
        state = next(iter(self.optimizer.state.values()), None)
        return int(state["step"].item()) if state else 0

    def forget(self, ids: torch.Tensor, *, synced: bool) -> None:
        """Do passes, with or without exchange of gradients."""
        if self.keeps and not synced:
            self.passes(ids)
        self.optimizer.zero_grad(set_to_none=True)

    def close(self) -> None:
        """Free the memory of the model and its optimizer."""
        self.batches.close()
        del self.model, self.optimizer
        self.loss = torch.zeros(())
        gc.collect()  # an engine and its model refer to each other
        if self.world.device.type == "cuda":
            torch.cuda.empty_cache()
