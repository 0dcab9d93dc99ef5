"""chaos.py, recovery.py and journal.py: short runs of them."""

from __future__ import annotations

import json
import subprocess
import sys
from types import SimpleNamespace

import pytest

from benchmarks import chaos, recovery
from benchmarks.chaos import Fault
from benchmarks.chaos_system import ChaosClient
from benchmarks.reports import chaos_table
from tests.support.processes import ROOT


@pytest.mark.long
@pytest.mark.parametrize(
    "faults", ["kill server_kill", "partition", "client_silence client_reset", "full_disk client_kill"]
)
def test_a_short_run(tmp_path, capsys, faults):
    arguments = f"--only templated --faults {faults} --workers 2 --max-faults 2 --interval 1 --steps 30 --seconds 120"
    assert chaos.main([*arguments.split(), "--output-dir", str(tmp_path)]) == 0, capsys.readouterr().out
    (path,) = tmp_path.glob("chaos_*.json")
    report = json.loads(path.read_text())["results"]["report"]
    assert 2 <= sum(report["faults"].values()) <= 3
    assert set(report["faults"]) <= set(faults.split())
    assert report["losses"]["equal"] > 0
    assert report["losses"]["wrong"] == 0
    assert report["errors"] == report["hangs"] == []
    assert all(row["worst"] >= row["median"] for row in report["recovery_s"].values() if row["count"])


def steps(*times):
    return [{"t": float(t), "step": 0, "loss": 0.5} for t in times]


def a_run(faults, *clients):
    """A run that has happened."""
    options = SimpleNamespace(faults=sorted({fault.kind for fault in faults}))
    clients = [ChaosClient(None, None, "plain", lines) for lines in clients]
    return chaos.Chaos(None, options, {"plain": [0.5]}, faults, clients)


@pytest.mark.parametrize(
    ("lines", "hangs", "explained"),
    [
        (steps(0, 29), 0, 0),
        (steps(0, 31), 1, 0),
        ([*steps(0), {"t": 5.0, "cause": "[gt] worker 1 is gone"}, *steps(31)], 0, 1),
        (steps(100, 135), 0, 0),  # ten of these seconds it was stopped
        (steps(100, 145), 1, 0),
    ],
)
def test_a_wait_without_a_cause_is_a_hang(lines, hangs, explained):
    report = chaos.judge(a_run([Fault("client_stop", 110.0, 120.0)], lines))
    assert (len(report["hangs"]), report["explained_long_waits"]) == (hangs, explained)
    assert report["losses"] == {"equal": 2, "rounded": 0, "wrong": 0}


def test_how_long_a_recovery_took():
    """Until the last of the clients has gone on that were there; a client that was started later does not count."""
    faults = [Fault("kill", 10.0, 10.0), Fault("client_stop", 20.0, 25.0), Fault("kill", 40.0, 40.0)]
    report = chaos.judge(a_run(faults, steps(1, 12, 26, 41), steps(1, 11, 30, 46), steps(43, 44)))
    assert report["recovery_s"]["kill"] == {"count": 2, "median": 4.0, "worst": 6.0, "samples": [2.0, 6.0]}
    assert report["recovery_s"]["client_stop"]["samples"] == [5.0]


def test_a_fault_without_a_client_has_no_time():
    report = chaos.judge(a_run([Fault("kill", 10.0, 10.0)], steps(43, 44)))
    assert report["faults"] == {"kill": 1}
    assert report["recovery_s"]["kill"] == {"count": 0}


def test_the_table_of_all_records(tmp_path, capsys):
    assert chaos_table.main([str(tmp_path)]) == 2
    faults = [Fault("kill", 10.0, 10.0), Fault("join", 60.0, 60.0)]
    runs = [chaos.judge(a_run(faults, steps(1, 50, 61))), chaos.judge(a_run(faults[:1], steps(1, 12)))]
    for number, run in enumerate(runs):
        (tmp_path / f"chaos_{number}.json").write_text(json.dumps({"results": {"report": run}}))
    old = {"faults": {"leave": 2}, "losses": dict.fromkeys(("equal", "rounded", "wrong"), 0), "errors": [], "hangs": 3}
    (tmp_path / "chaos_old.json").write_text(json.dumps({"results": {"report": old}}))
    assert chaos_table.main([str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "| `kill` | 2 | 21.00 / 40.0 | 1 |" in lines
    assert "| `join` | 1 | 1.00 / 1.0 | 0 |" in lines
    assert "| `leave` | 2 |  | 0 |" in lines
    assert "| together | 5 | | 4 |" in lines
    assert lines[-1].startswith("3 runs: 5 losses were equal, 0 within rounding, 0 wrong; 0 errors; 0 waits")
    assert chaos_table.main([str(tmp_path), "--since", "1"]) == 0
    assert "| together | 3 | | 3 |" in capsys.readouterr().out


def test_a_report_is_shown(capsys):
    chaos.show(chaos.judge(a_run([Fault("kill", 10.0, 10.0)], steps(1, 50))))
    shown = capsys.readouterr().out
    assert "kill: 1 times, 40.00 s (median), 40.00 s (worst)" in shown
    assert "plain: -9.0 to 40.0 s; kill at 0 s" in shown


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
    assert set(results) == {"on", "snapshots", "files"}
    assert all(row["median"] > 0 for row in results.values())


@pytest.mark.long
def test_the_cost_of_a_journal(tmp_path):
    options = ["--blocks", "1", "--steps", "20", "--kills", "1", "--output-dir", str(tmp_path)]
    run = subprocess.run([sys.executable, ROOT / "benchmarks/journal.py", *options], capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    (path,) = tmp_path.glob("journal_*.json")
    results = json.loads(path.read_text())["results"]
    assert set(results) == {"server", "all", "journal_bytes", "message", "outage"}
    assert 0 < results["outage"]["worst"] < 120
