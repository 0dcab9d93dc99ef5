"""The way between the host's memory and each GPU (PCIe, or what a machine has instead).

From pinned and pageable memory, in both directions and in both at once; each GPU while the others are idle, and all at
once, which shows the links that GPUs share.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.core import timing
from benchmarks.core.progress import Progress
from benchmarks.core.ranks import World
from benchmarks.node.figures import figure

SIZE, QUICK = 2**28, 2**22
WAYS = ("to the device", "to the host", "both at once")


def run(world: World, put: Callable[..., None], quick: bool) -> None:
    if world.device.type != "cuda":
        put("skipped", "needs a GPU: a CPU has its memory beside it")
        return
    size, iters = (QUICK, 3) if quick else (SIZE, 20)
    put("copied_bytes", size)
    with Progress("host link", 2 * (2 * len(WAYS) - 1), rank=world.rank) as bar:
        for pinned in (True, False):
            acts = copies(world, size, pinned)
            kind = "pinned" if pinned else "pageable"
            for way, act in acts.items():
                work = size * (2 if way == WAYS[2] else 1) / 1e9
                name = f"{kind}, {way}"
                put(name, figure(world, name, work, "GB/s", in_turns(world, act, iters)))
                bar.step(name)
                if pinned and world.size > 1:
                    together = f"{name}, all GPUs at once"
                    put(together, figure(world, together, work, "GB/s", timed(world, act, iters, world.barrier)))
                bar.step(name)


def copies(world: World, size: int, pinned: bool) -> dict[str, Callable[[], Any]]:
    """Pageable memory is copied through a buffer of the driver, one direction at a time."""
    here = [torch.empty(size, dtype=torch.uint8, pin_memory=pinned).random_() for _ in range(2)]
    there = [torch.empty(size, dtype=torch.uint8, device=world.device).random_() for _ in range(2)]
    down = lambda: there[0].copy_(here[0], non_blocking=pinned)
    up = lambda: here[1].copy_(there[1], non_blocking=pinned)
    if not pinned:
        return {WAYS[0]: down, WAYS[1]: up}
    other: Any = torch.cuda.Stream(world.device)

    def both() -> None:
        now = torch.cuda.current_stream(world.device)
        other.wait_stream(now)
        down()
        with torch.cuda.stream(other):
            up()
        now.wait_stream(other)

    return dict(zip(WAYS, (down, up, both), strict=True))


def timed(world: World, act: Callable[[], Any], iters: int, before: Callable[[], Any] = timing.nothing) -> list[float]:
    return timing.measure(act, warmup=2, iters=iters, device=world.device, before=before, events=True)


def in_turns(world: World, act: Callable[[], Any], iters: int) -> list[float]:
    """One rank after the other; those that wait are blocked on the CPU."""
    own: list[float] = []
    for rank in range(world.size):
        if rank == world.rank:
            own = timed(world, act, iters)
        world.gather(None)
    return own
