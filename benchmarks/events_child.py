"""A program with a local system, for `events.py`: reads ``run STEPS`` and prints the seconds that they took.

It uses only GT's public names, so that it also runs with an older checkout of GT.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import gt
from gt.client.stream import connect


def training() -> Callable[[], object]:
    """Steps of a small MLP: a repeated fragment."""
    model = gt.nn.Sequential(
        gt.nn.Linear(64, 64), gt.nn.ReLU(), gt.nn.Linear(64, 64), gt.nn.ReLU(), gt.nn.Linear(64, 10)
    )
    optimizer = gt.optim.SGD(model.parameters(), lr=0.01)
    x, y = gt.randn(64, 64), gt.randn(64, 10)

    def step() -> object:
        optimizer.zero_grad()
        loss = gt.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    return step


def adds() -> Callable[[], object]:
    """30 instructions, sent one by one if GT_TEMPLATES=0."""
    x = gt.ones(64, 64)

    def step() -> object:
        y = x
        for _ in range(30):
            y = y + x
        return y.sum()

    return step


PROGRAMS = {"training": training, "adds": adds}


def main() -> int:
    step = PROGRAMS[sys.argv[1]]()
    for _ in range(20):
        step().item()  # type: ignore[attr-defined]
    print(connect._process.local.address, flush=True)
    for line in sys.stdin:
        steps = int(line.split()[1])
        begun = time.perf_counter()
        for k in range(steps):
            result = step()
            if k % 10 == 9:
                result.item()  # type: ignore[attr-defined]
        result.item()  # type: ignore[attr-defined]
        print(time.perf_counter() - begun, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
