"""The benchmark of uneven workers: real workers, equal losses, blocks by speed, and a record."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import uneven


def test_two_workers(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    words = ["--rows", "64", "--width", "16", "--depth", "1", "--steps", "2", "--output-dir", str(tmp_path)]
    assert uneven.main([*words, "--worker", "OMP_NUM_THREADS=1 --device cpu", "--worker", "--device cpu"]) == 0
    (path,) = tmp_path.glob("*.json")
    record = json.loads(path.read_text())["results"]
    steps = record["steps"]
    assert list(steps) == ["one worker", "equal blocks", "by speed", "equal again"]
    assert steps["one worker"]["rows"] == {"0": 64}
    assert steps["equal blocks"]["rows"] == {"0": 32, "1": 32}
    assert sum(steps["by speed"]["rows"].values()) == 64
    assert all(speed > 0 for speed in record["speeds"].values())
    assert all(row["difference"] <= uneven.TOLERANCE for row in steps.values())
    assert "by speed" in capfd.readouterr().out
