"""The bandwidth of each device's own memory: written, copied, and two tensors added into a third."""

from __future__ import annotations

from collections.abc import Callable

import torch

from benchmarks.core import timing
from benchmarks.core.progress import Progress
from benchmarks.core.ranks import World
from benchmarks.node.figures import figure

#: bytes of a tensor: far larger than any cache
SIZES = {"cuda": 2**30, "cpu": 2**28}
QUICK = 2**22
#: name -> what is timed on three tensors, and the tensors that it reads or writes
KINDS: dict[str, tuple[Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object], int]] = {
    "write": (lambda a, b, c: a.fill_(1.0), 1),
    "copy": (lambda a, b, c: a.copy_(b), 2),
    "add": (lambda a, b, c: torch.add(b, c, out=a), 3),
}


def run(world: World, put: Callable[..., None], quick: bool) -> None:
    size = QUICK if quick else SIZES[world.device.type]
    tensors = [torch.rand(size // 4, device=world.device) for _ in range(3)]
    put("tensor_bytes", size)
    with Progress("memory", len(KINDS), rank=world.rank) as bar:
        for name, (act, moved) in KINDS.items():
            seconds = timing.measure(
                lambda act=act: act(*tensors),  # type: ignore[misc]
                warmup=3,
                iters=5 if quick else 50,
                device=world.device,
                events=True,
            )
            put(name, figure(world, f"memory {name}", moved * size / 1e9, "GB/s", seconds))
            bar.step(name)
