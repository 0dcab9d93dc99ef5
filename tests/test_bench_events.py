"""The benchmark of the event stream: it measures, and its interval contains its median."""

from __future__ import annotations

import json
import pathlib

from benchmarks import events


def test_interval() -> None:
    median, low, high = events.interval([1.0, 1.1, 1.2, 0.9, 1.0])
    assert low <= median == 1.0 <= high


def test_a_small_run(tmp_path: pathlib.Path) -> None:
    options = ["--blocks", "2", "--steps", "3", "--only", "adds", "--against", str(events.ROOT), "--pages", "2"]
    assert events.main([*options, "--output-dir", str(tmp_path)]) == 0
    (record,) = tmp_path.glob("*.json")
    results = json.loads(record.read_text())["results"]["adds"]
    assert set(results) == {"with a listener", "with 2 pages", "nobody listens"}
    for row in results.values():
        for kind in (row["seconds"], row["processor"]):
            assert len(kind["ratios"]) == 2
            assert 0 < kind["low"] <= kind["median"] <= kind["high"]
    roles = {"client", "server", "worker"}
    assert set(results["with a listener"]["added"]) == set(results["with 2 pages"]["added"]) == roles | {"listener"}
    assert set(results["nobody listens"]["added"]) == roles


def test_a_ratio_says_who_took_the_time() -> None:
    found = events.ratio(
        events.Block(3.0, {"client": 2.0, "listener": 1.0}), events.Block(2.0, {"client": 1.5, "worker": 0.5})
    )
    assert found == events.Ratio(1.5, 1.5, {"client": 0.25, "worker": -0.25, "listener": 0.5})
