"""The benchmark of checkpoints: its figures, and one small run with real workers."""

from __future__ import annotations

import subprocess
import sys

import pytest

from benchmarks import checkpoints
from benchmarks.core import results
from tests.support.processes import ROOT, environment

near = pytest.approx


def test_the_ratio_is_that_of_one_round():
    samples = {"disk": [(1.0, 2.0), (2.0, 2.0), (3.0, 2.0)], "gt file": [(2.0, 1.0), (4.0, 1.0), (6.0, 1.0)]}
    row = checkpoints.summary("gt file", 8_000_000, samples)
    assert (row["write"]["of_disk"], row["read"]["of_disk"]) == (near(0.5), near(2.0))
    assert row["write"]["mb_per_s"] == near(2.0)
    assert checkpoints.line("gt file", row) == ["gt file", near(2.0), near(0.5), near(8.0), near(2.0)]


def test_a_small_run(tmp_path):
    words = ("--megabytes", "4", "--rounds", "1", "--workers", "2", "--folder", str(tmp_path))
    command = [sys.executable, str(ROOT / "benchmarks" / "checkpoints.py"), *words, "--output-dir", str(tmp_path)]
    process = subprocess.run(command, capture_output=True, text=True, env=environment(CUDA_VISIBLE_DEVICES=""))
    assert process.returncode == 0, process.stderr
    (record,) = tmp_path.glob("checkpoints_*.json")
    rows = results.load(record)["results"]
    assert [name.replace("_", " ") for name in rows] == list(checkpoints.ROWS)
    assert all(row[kind]["mb_per_s"] > 0 for row in rows.values() for kind in ("write", "read"))
    assert [path.name for path in tmp_path.iterdir()] == [record.name]  # nothing is left over
