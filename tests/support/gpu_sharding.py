"""``python -m tests.support.gpu_sharding WORKERS``: a training run on this many workers that share one GPU, over NCCL.

Prints its losses, which must equal those of one worker.
"""

from __future__ import annotations

import os
import sys

os.environ |= {"GT_SHARE_GPUS": "1", "GT_NCCL_SHARED": "1"}

import numpy as np

import gt
from gt.nn import functional as F


def main(workers: int) -> None:
    gt.auto_shard(workers > 1)
    gt.gpu_workers(workers)
    gt.manual_seed(0)
    model = gt.nn.Sequential(gt.nn.Linear(256, 512), gt.nn.GELU(), gt.nn.LayerNorm(512), gt.nn.Linear(512, 10))
    optimizer = gt.optim.AdamW(model.parameters(), lr=1e-3)
    rng = np.random.default_rng(0)
    for step in range(10):
        x, y = rng.normal(size=(129, 256)).astype("f"), rng.integers(0, 10, 129)
        loss = F.cross_entropy(model(gt.from_numpy(x)), gt.from_numpy(y))
        optimizer.zero_grad()
        loss.backward()
        gt.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        print(f"step {step} loss {loss.item():.6f}", flush=True)
    print(f"parameters lie as {next(model.parameters()).layout}")


if __name__ == "__main__":
    main(int(sys.argv[1]))
