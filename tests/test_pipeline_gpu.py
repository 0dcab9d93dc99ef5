"""A pipelined step on a GPU: CUDA graphs and compiled code, with and without ``@gt.compile``, give torch's losses."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest
import torch

ROOT = pathlib.Path(__file__).parent.parent
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("decorated", [False, True])
@pytest.mark.parametrize("workers", [1, 2])
def test_workers_that_compile(workers: int, decorated: bool, tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-m", "tests.support.gpu_pipeline", str(workers), *["--decorated"] * decorated]
    environment = os.environ | {"GT_AUTO_COMPILE": "1", "GT_CACHE_DIR": str(tmp_path)}
    process = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-2000:]
    assert "without being compiled" not in process.stderr, process.stderr
    assert "graph" in process.stdout or "compiled" in process.stdout, process.stdout
