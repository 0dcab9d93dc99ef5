"""Several workers on one GPU, over NCCL: the losses of one worker, and exposed communication from a trace's kernels.

``make test-gpu`` runs it; skipped without CUDA.
"""

from __future__ import annotations

import json
import pathlib
import subprocess
import sys

import pytest
import torch

from gt.events.intervals import length, union
from gt.events.kernels import DEVICE_CATEGORIES, read_device_work

ROOT = pathlib.Path(__file__).parent.parent
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def output(module: str, *words: object) -> list[str]:
    command = [sys.executable, "-m", f"tests.support.{module}", *map(str, words)]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr[-2000:]
    return process.stdout.splitlines()


def losses(workers: int) -> list[float]:
    return [float(line.split()[-1]) for line in output("gpu_sharding", workers) if line.startswith("step ")]


@pytest.mark.parametrize("workers", [2, 4])
def test_training_is_that_of_one_worker(workers: int) -> None:
    assert losses(workers) == pytest.approx(losses(1), rel=1e-5)


def test_exposed_communication_comes_from_the_kernels(tmp_path: pathlib.Path) -> None:
    measured = json.loads(output("gpu_exposed", tmp_path)[-1])
    assert "exposed communication  not known" in measured["report"][2]
    assert measured["seconds"] > 0
    work = read_device_work(tmp_path / "step.json")
    assert list(work) == [0, 1]
    for each in work.values():
        communicating = length(union(each.communicating))
        assert 0 < length(each.exposed) < communicating, "some of it runs beside kernels that compute"
    # collectives have streams of their own
    rows: dict[bool, set[tuple[int, int]]] = {True: set(), False: set()}
    for event in json.loads((tmp_path / "step.json").read_text())["traceEvents"]:
        if event.get("cat") in DEVICE_CATEGORIES:
            rows["nccl" in event["name"].lower()].add((event["pid"], event["tid"]))
    assert rows[True]
    assert rows[False]
    assert rows[True].isdisjoint(rows[False])
