"""See what a program does: ``python examples/debug_demo.py``

It prints the last instructions with their source lines, the reason for a layout, and the memory of each worker.
"""

from __future__ import annotations

import gt


def main() -> None:
    gt.gpu_workers(2)
    gt.register_config("rows", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=[0, 1])))
    with gt.signal.context("rows"):
        x = gt.randn(600, 400)
    w = gt.ones(400, 8)
    total = (x @ w).relu().sum(0)
    print("the last instructions:")
    gt.debug.print_tape(last=6)
    print("\nwhy x @ w is placed where it is:")
    print(gt.debug.explain(x @ w))
    print("\nwhere the blocks of x are:")
    gt.debug.show_layout(x)
    print("\nmemory:")
    for worker, memory in gt.debug.memory().items():
        print(f"{worker}: {memory['client']['bytes'] / 2**20:.1f} MiB in {memory['client']['tensors']} tensors")
    try:
        (gt.arange(3) // gt.zeros(3, dtype=gt.int64)).tolist()
    except gt.RemoteError as error:
        print(f"\nan error names the line that caused it:\n{error}")
    print(f"\nthe sum is still there: {total.sum().item():.0f}")


if __name__ == "__main__":
    main()
