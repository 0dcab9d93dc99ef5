"""Several workers on one GPU, over NCCL: the losses of one worker. ``make test-gpu`` runs it; skipped without CUDA."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest
import torch

ROOT = pathlib.Path(__file__).parent.parent
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def losses(workers: int) -> list[float]:
    command = [sys.executable, "-m", "tests.support.gpu_sharding", str(workers)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-2000:]
    return [float(line.split()[-1]) for line in process.stdout.splitlines() if line.startswith("step ")]


@pytest.mark.parametrize("workers", [2, 4])
def test_training_is_that_of_one_worker(workers: int) -> None:
    assert losses(workers) == pytest.approx(losses(1), rel=1e-5)
