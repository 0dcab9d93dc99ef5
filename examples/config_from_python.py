"""Signals without a file: ``python examples/config_from_python.py``

The program configures its own signals, and changes one of them while it runs. The values stay the same.
"""

from __future__ import annotations

import gt


def main() -> None:
    gt.gpu_workers(2)
    x = gt.arange(24).float().reshape(6, 4)
    for workers in ([0], [1], [0, 1]):
        gt.register_config("data", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=workers)))
        placed = gt.signal.tensor(x, "data")
        with gt.signal.context("data"):
            total = (placed * 2).sum()
        print(f"workers {workers}: x is {placed.layout}, the sum of 2x is {total.item():.0f}")


if __name__ == "__main__":
    main()
