"""``python -m tests.support.gpu_pipeline WORKERS [--decorated]``: a pipelined training run, as in ``make test-gpu``.

It goes on until each worker runs a part of the step as a CUDA graph or compiled (at most `LIMIT_S`), then for a few
steps more. Each loss is compared with torch's of the whole batch. Prints the levels of the workers. Several workers
share one GPU; without a GPU they are CPU workers.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

os.environ |= {"GT_SHARE_GPUS": "1", "GT_NCCL_SHARED": "1"}

import numpy as np
import torch

import gt
from gt.nn import functional as F
from gt.pipeline import Pipeline

ROWS, WIDTH, MICROBATCHES = 64, 128, 4
#: how long the compiler may take, and how many steps follow after it
LIMIT_S, STEPS_AFTER = 240, 10
QUICK_LEVELS = {"graph", "compiled"}


def stages(nn: Any, generator: np.random.Generator, tensor: Any, count: int) -> list[Any]:
    """Equal layers in ``gt.nn`` or ``torch.nn``."""
    parts = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH)) for _ in range(count)]
    for part in parts:
        values = {
            name: tensor(generator.normal(size=tuple(p.shape)).astype("f") / WIDTH**0.5)
            for name, p in part.named_parameters()
        }
        part.load_state_dict(values)
    return parts


def main(workers: int, decorated: bool) -> None:
    gt.gpu_workers(workers)
    pipeline = Pipeline(stages(gt.nn, np.random.default_rng(0), gt.tensor, workers), "1f1b", MICROBATCHES)
    optimizer = gt.optim.SGD(pipeline.parameters(), lr=0.05)
    reference = torch.nn.Sequential(*stages(torch.nn, np.random.default_rng(0), torch.tensor, workers))
    torch_optimizer = torch.optim.SGD(reference.parameters(), lr=0.05)

    def step(batch: gt.Tensor, target: gt.Tensor) -> gt.Tensor:
        optimizer.zero_grad()
        loss = pipeline.step(batch, target, F.mse_loss)
        optimizer.step()
        return loss

    run = gt.compile(step) if decorated else step
    generator = np.random.default_rng(1)
    limit, left = time.monotonic() + LIMIT_S, STEPS_AFTER
    while left:
        x, y = (generator.normal(size=(ROWS, WIDTH)).astype("f") for _ in range(2))
        loss = run(gt.tensor(x), gt.tensor(y)).item()
        torch_optimizer.zero_grad()
        expected = torch.nn.functional.mse_loss(reference(torch.tensor(x)), torch.tensor(y))
        expected.backward()
        torch_optimizer.step()
        np.testing.assert_allclose(loss, expected.item(), rtol=1e-4)
        left -= all(levels & QUICK_LEVELS for levels in levels_of_workers().values())
        assert time.monotonic() < limit, levels_of_workers()
    print(f"levels {levels_of_workers()}", flush=True)


def levels_of_workers() -> dict[str, set[str]]:
    stats = gt.debug.get_worker_stats()
    workers = {name: entry for name, entry in stats.items() if name.startswith("worker ")}
    return {
        name: {entry["level"] for entry in worker["compilation_stats"].values()} for name, worker in workers.items()
    }


if __name__ == "__main__":
    main(int(sys.argv[1]), "--decorated" in sys.argv)
