"""The fastest matrix product that a device does: its peak, where no data sheet is known."""

from __future__ import annotations

from functools import lru_cache

import torch

from benchmarks.core import timing

#: sides of square products, and how often each is timed after it was done once
SIDES, ITERS = (1024, 2048, 4096, 8192, 16384), 10
#: a product may use this share of the free memory
SHARE = 0.25
DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@lru_cache(maxsize=8)
def peak(device: torch.device, dtype: str, sides: tuple[int, ...] = SIDES) -> tuple[float, str] | None:
    """FLOP/s of the fastest square product, and where the figure comes from; None for a dtype without products."""
    if dtype not in DTYPES:
        return None
    rates = {side: _rate(device, dtype, side) for side in sides if _fits(device, dtype, side)}
    best = max(rates, key=lambda side: rates[side])
    return rates[best], f"measured here: a {dtype} product of {best} x {best}, the fastest of {len(rates)} sizes"


def _fits(device: torch.device, dtype: str, side: int) -> bool:
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else float("inf")
    return 3 * side * side * DTYPES[dtype].itemsize <= SHARE * free


def _rate(device: torch.device, dtype: str, side: int) -> float:
    """Random numbers: products of zeros take less power, and are faster."""
    a, b = (torch.randn(side, side, device=device).to(DTYPES[dtype]) for _ in range(2))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if dtype == "tf32" else "highest")
    try:
        seconds = timing.measure(lambda: a @ b, warmup=2, iters=ITERS, device=device, events=True)
    finally:
        torch.set_float32_matmul_precision(before)
    return 2 * side**3 / timing.percentile(seconds, 50)
