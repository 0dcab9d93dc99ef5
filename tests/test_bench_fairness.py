"""The benchmark of fairness: it measures all users, and writes a record."""

from __future__ import annotations

import json
import pathlib

import pytest

from benchmarks import fairness


@pytest.mark.long
def test_a_small_run(tmp_path: pathlib.Path) -> None:
    assert fairness.main(["--seconds", "2", "--reads", "5", "--output-dir", str(tmp_path)]) == 0
    (record,) = tmp_path.glob("*.json")
    results = json.loads(record.read_text())["results"]
    assert sum(row["share"] for row in results["shares"].values()) == pytest.approx(1.0)
    assert [row["goal"] for row in results["shares"].values()] == [weight / 15 for weight in fairness.WEIGHTS]
    for name in ("alone", "beside three", "beside three, fragments"):
        assert 0 < results["interactive"][name]["median_ms"] <= results["interactive"][name]["max_ms"]
    assert results["throughput"]["alone_per_s"] > 0
