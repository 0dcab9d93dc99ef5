"""The fastest matrix products of each dtype, over a sweep of shapes, beside the data sheet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.core import achievable, peaks, verdict
from benchmarks.core.environment import device_name
from benchmarks.core.progress import Progress
from benchmarks.core.ranks import World
from benchmarks.node.figures import figure

#: (m, n, k): squares, and the products of models: many tokens, wide and long layers
SHAPES = [
    *((side, side, side) for side in (1024, 2048, 4096, 8192, 12288, 16384)),
    *((16384, 4096, 4096), (16384, 16384, 4096), (16384, 4096, 16384), (8192, 28672, 8192), (65536, 2048, 2048)),
]
QUICK = [(64, 64, 64), (128, 128, 128), (256, 64, 128)]
DTYPES = {"cuda": ["fp32", "tf32", "bf16", "fp16", "fp8"], "cpu": ["fp32", "bf16"]}
#: the first GPUs with fp8
FP8 = (8, 9)


def run(world: World, put: Callable[..., None], quick: bool) -> None:
    shapes = QUICK if quick else SHAPES if world.device.type == "cuda" else SHAPES[:2]
    dtypes = DTYPES[world.device.type]
    with Progress("products", len(shapes) * len(dtypes), rank=world.rank) as bar:
        for dtype in dtypes:
            if dtype == "fp8" and torch.cuda.get_device_capability(world.device) < FP8:
                put(dtype, {"skipped": "fp8 needs a GPU of capability 8.9 or later"})
            else:
                put(dtype, swept(world, dtype, shapes, 3 if quick else 20, bar))


def swept(world: World, dtype: str, shapes: list[tuple[int, int, int]], iters: int, bar: Progress) -> dict[str, Any]:
    """All shapes that fit into the memory of every rank's device, and the fastest."""
    rows = []
    for shape in shapes:
        if all(world.gather(achievable.fits(world.device, dtype, shape))):
            seconds = achievable.seconds(world.device, dtype, shape, iters)
            m, n, k = shape
            work = 2 * m * n * k / 1e12
            rows.append(figure(world, f"{dtype} {m} x {n} x {k}", work, "TFLOP/s", seconds) | {"shape": list(shape)})
        bar.step(dtype)
    best = max(rows, key=lambda row: row["value"])
    mfu = share(device_name(world.device), dtype, best)
    judged = verdict.judge({"mfu": mfu["mfu"]}, ["mfu"], f"products in {dtype}")
    return {
        "rows": rows,
        "best": {"shape": best["shape"], "tflop_per_s": best["value"]},
        "mfu": mfu,
        "verdict": verdict.together([judged, *(row["verdict"] for row in rows)]),
    }


def share(device: str, dtype: str, best: dict[str, Any]) -> dict[str, Any]:
    """Of one device's peak by its data sheet."""
    return peaks.mfu(best["value"] * 1e12, 1.0, device, dtype)
