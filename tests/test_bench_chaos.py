"""chaos.py, recovery.py and journal.py: short runs of them."""

from __future__ import annotations

import json

import pytest

from benchmarks import chaos, journal, recovery


@pytest.mark.long
def test_a_short_run(tmp_path, capsys):
    arguments = "--only plain --faults kill --workers 2 --max-faults 1 --interval 1 --steps 30 --seconds 120"
    assert chaos.main([*arguments.split(), "--output-dir", str(tmp_path)]) == 0, capsys.readouterr().out
    (path,) = tmp_path.glob("chaos_*.json")
    report = json.loads(path.read_text())["results"]["report"]
    assert report["faults"] == {"kill": 1}
    assert report["losses"]["equal"] > 0
    assert report["losses"]["wrong"] == report["hangs"] == 0
    assert report["errors"] == []


@pytest.mark.parametrize(
    ("loss", "verdict"), [(0.5, "equal"), (0.5 + 1e-7, "rounded"), (0.501, "wrong"), (float("nan"), "wrong")]
)
def test_losses_are_compared(loss, verdict):
    assert chaos.compare(loss, 0.5) == verdict


@pytest.mark.long
def test_the_cost_of_recovery(tmp_path):
    assert recovery.main(["--blocks", "1", "--steps", "5", "--output-dir", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("recovery_*.json")
    results = json.loads(path.read_text())["results"]
    assert set(results) == {"on", "snapshots"}
    assert all(row["median"] > 0 for row in results.values())


@pytest.mark.long
def test_the_cost_of_a_journal(tmp_path):
    assert journal.main(["--blocks", "1", "--steps", "20", "--kills", "1", "--output-dir", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("journal_*.json")
    results = json.loads(path.read_text())["results"]
    assert set(results) == {"server", "all", "journal_bytes", "message", "outage"}
    assert 0 < results["outage"]["worst"] < 120
