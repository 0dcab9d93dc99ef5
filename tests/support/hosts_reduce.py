"""``python -m tests.support.hosts_reduce SERVER ROWS STEPS``: data-parallel steps whose gradient has ROWS KiB.

Prints one line of JSON: the seconds of a step (the median), the loss of each step, how the gradient was added, and how
the last loss was.
"""

from __future__ import annotations

import json
import statistics
import sys
import time

import gt

BATCH, WIDTH = 16, 256


def main(server: str, rows: str, steps: str) -> None:
    gt.connect(server)
    gt.register_config("data", gt.SignalConfig(shard=gt.ShardConfig(0)))
    gt.register_config("whole", gt.SignalConfig(shard=gt.ShardConfig(9)))  # no tensor has this dim: all have it whole
    gt.manual_seed(0)
    with gt.signal.context("whole"):
        w = (gt.randn(int(rows), WIDTH) * 0.01).requires_grad_()
    with gt.signal.context("data"):
        x = gt.randn(BATCH, int(rows))
    losses, seconds = [], []
    for _ in range(int(steps)):
        began = time.perf_counter()
        loss = ((x @ w) ** 2).mean()
        loss.backward()
        with gt.no_grad():
            gradient = w.grad
            w -= 0.01 * gradient
        w.grad = None
        losses.append(loss.item())
        seconds.append(time.perf_counter() - began)
    text = str(gt.debug.explain(w))
    print(json.dumps([statistics.median(seconds[2:]), losses, text, str(gt.debug.explain(gradient))]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
