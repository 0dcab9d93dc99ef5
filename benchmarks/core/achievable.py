"""The fastest matrix product that a device does: its peak, where no data sheet is known."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from benchmarks.core import timing

#: sides of square products, and how often each is timed after it was done once
SIDES, ITERS = (1024, 2048, 4096, 8192, 16384), 10
#: seconds of products before the first sample, in which a GPU under load settles at its clock, and seconds of a sample
WARM_UP_S, SAMPLE_S = 0.1, 0.002
#: a product may use this share of the free memory
SHARE = 0.25
DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
FP8 = {"fp8": torch.float8_e4m3fn}

Shape = tuple[int, int, int]


@lru_cache(maxsize=8)
def peak(device: torch.device, dtype: str, sides: tuple[int, ...] = SIDES) -> tuple[float, str] | None:
    """FLOP/s of the fastest square product, and where the figure comes from; None for a dtype without products."""
    if dtype not in DTYPES:
        return None
    shapes: dict[int, Shape] = {side: (side, side, side) for side in sides}
    rates = {side: _rate(device, dtype, shape) for side, shape in shapes.items() if fits(device, dtype, shape)}
    best = max(rates, key=lambda side: rates[side])
    return rates[best], f"measured here: a {dtype} product of {best} x {best}, the fastest of {len(rates)} sizes"


def fits(device: torch.device, dtype: str, shape: Shape) -> bool:
    m, n, k = shape
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else float("inf")
    return (m * k + k * n + m * n) * (DTYPES | FP8)[dtype].itemsize <= SHARE * free


def _rate(device: torch.device, dtype: str, shape: Shape) -> float:
    m, n, k = shape
    return 2 * m * n * k / timing.percentile(seconds(device, dtype, shape, ITERS), 50)


def seconds(device: torch.device, dtype: str, shape: Shape, iters: int) -> list[float]:
    """Of a product of (m, k) and (k, n). A sample is of as many products, one after the other, as take 2 ms."""
    act = product(device, dtype, shape)
    precision = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    try:
        one = min(timing.measure(act, warmup=2, iters=3, device=device, events=True))
        repeats = max(1, math.ceil(SAMPLE_S / one))

        def several() -> None:
            for _ in range(repeats):
                act()

        warmup = math.ceil(WARM_UP_S / (one * repeats))
        samples = timing.measure(several, warmup=warmup, iters=iters, device=device, events=True)
        return [sample / repeats for sample in samples]
    finally:
        torch.set_float32_matmul_precision(precision)


def product(device: torch.device, dtype: str, shape: Shape) -> Callable[[], Any]:
    """Random numbers: products of zeros take less power, and are faster."""
    m, n, k = shape
    if dtype in FP8:
        # the second operand of an fp8 product is stored by columns, and each has a scale
        a, b = (torch.randn(rows, k, device=device).to(FP8[dtype]) for rows in (m, n))
        one = torch.ones((), device=device)
        return lambda: torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)
    a, b = torch.randn(m, k, device=device).to(DTYPES[dtype]), torch.randn(k, n, device=device).to(DTYPES[dtype])
    out = torch.empty(m, n, device=device, dtype=DTYPES[dtype])
    return lambda: torch.mm(a, b, out=out)
