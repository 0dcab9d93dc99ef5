"""Repeated steps get faster: ``python examples/compile_demo.py``. See docs/hot_paths.md.

The same training loop three times: with the defaults, with GT_AUTO_COMPILE=1, and with its step under ``@gt.compile``.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

import gt
from gt import nn

STEPS = 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--width", type=int, default=64, help="of the hidden layers")
    parser.add_argument("--patience", type=float, default=15.0, help="seconds to wait for the compiler at the most")
    options = parser.parse_args()
    settings: list[tuple[str, str, Callable[..., Any] | None]] = [
        ("as it is", "0", None),
        ("GT_AUTO_COMPILE=1", "1", None),
        ("and @gt.compile", "1", gt.compile),
    ]
    print(f"{'':18}  {'first step':>10}  {'later':>9}  {'at last':>9}  loss after {4 * STEPS} steps")
    for name, auto, decorate in settings:
        os.environ["GT_AUTO_COMPILE"] = auto  # read by the worker when it starts
        gt.disconnect()  # the next tensor starts a new system
        first, later, last, loss = measured(options.width, decorate, options.patience if auto == "1" else 0.0)
        print(f"{name:18}  {first:7.2f} ms  {later:6.3f} ms  {last:6.3f} ms  {loss:.5f}")
    print()
    gt.debug.print_hot_paths()
    gt.disconnect()


def measured(width: int, decorate: Callable[..., Any] | None, patience: float) -> tuple[float, float, float, float]:
    """Milliseconds of the first step, of a later one, and of one after compilation; and the loss after a while."""
    step, x, y = training(width)
    if decorate is not None:
        step = decorate(step)
    first, _ = timed(step, x, y, 1)
    timed(step, x, y, STEPS)
    later, _ = timed(step, x, y, STEPS)
    _, loss = timed(step, x, y, 2 * STEPS - 1)
    started = time.perf_counter()
    while time.perf_counter() - started < patience and not compiled():
        timed(step, x, y, STEPS)
    return first, later, min(timed(step, x, y, STEPS)[0] for _ in range(3)), loss


def training(width: int) -> tuple[Callable[..., Any], Any, Any]:
    """A model's step, and a batch."""
    gt.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, width), nn.GELU(), nn.Linear(width, 10))
    optimizer = gt.optim.SGD(model.parameters(), lr=0.1)
    x, y = gt.randn(64, 32), gt.randint(0, 10, (64,))

    def step(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step, x, y


def timed(step: Callable[..., Any], x: Any, y: Any, steps: int) -> tuple[float, float]:
    """Milliseconds per step, with one read at the end; and the value that was read."""
    started = time.perf_counter()
    for _ in range(steps):
        loss = step(x, y)
    value = loss.item()
    return (time.perf_counter() - started) / steps * 1e3, value


def compiled() -> bool:
    """Is every repeated section compiled, or is there a reason why not?"""
    pieces = gt.debug.get_worker_stats()["compilation_stats"].values()
    often = [p for p in pieces if p["length"] > 1 and p["runs"] > STEPS]
    return bool(often) and all(p["level"] == "compiled" or p["reasons"] for p in often)


if __name__ == "__main__":
    main()
