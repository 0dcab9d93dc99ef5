"""Programs under faults on the pure cores (`tests/support/fault_plays.py`): all values right, and no wait without end.

``python -m tests.support.fault_plays 100000`` runs until so many faults happened.
"""

from __future__ import annotations

import pytest

from gt.dispatcher.recovery import recoveries
from gt.wire.numbering import Numbering
from tests.support import fault_plays
from tests.support.fault_plays import FAULTS, Step, failure, main, play, report, schedule, shrink

pytestmark = pytest.mark.filterwarnings("ignore")

#: Plays of one case; about 25 faults each.
PLAYS = 6


@pytest.mark.parametrize("block", [*range(20), *(pytest.param(n, marks=pytest.mark.long) for n in range(20, 100))])
def test_faults_change_no_value(block: int) -> None:
    faults = sum(play(seed).total() for seed in range(block * PLAYS, (block + 1) * PLAYS))
    assert faults > 10 * PLAYS


#: What was wrong -> (seed, shrunk schedule) of a play that found it.
FOUND = {
    "a fork of a snapshot whose session ended while it was taken again": (
        1000755,
        """
        kill 471682784, silence 767705856, act 966519188, act 954176462, loop 228906916, keep 824419783, join
        1019127757, end_client 483696316, loop 169995113, fork 784374816, loop 860810721, fork 1051969521, keep
        794589459, kill 238999529, keep 36694413, join 476007087, kill 309531715, reset 850795222
        """,
    ),
    "the same, after the last worker with a copy was lost": (
        1001918,
        """
        loop 576735361, act 124615874, reset 912305250, keep 969292373, fork 277939761, stop_client 563363903,
        kill 138047660, reset 45126993, join 150121822, kill 1002359673, kill 618582781, loop 593620133
        """,
    ),
}


@pytest.mark.parametrize(("seed", "text"), FOUND.values(), ids=FOUND)
def test_what_was_found(seed: int, text: str) -> None:
    steps = [Step(kind, int(number)) for kind, number in (step.split() for step in text.split(","))]
    assert failure(seed, steps) == ""


@pytest.mark.timeout(120)
def test_a_fork_that_waits_for_a_snapshot_whose_session_ends() -> None:
    """It got no answer, and waited for ever."""
    assert play(3000535).total() > 10


def test_all_kinds_of_faults_happen() -> None:
    kinds = {step.kind for seed in range(20) for step in schedule(seed)}
    assert kinds == set(fault_plays.WEIGHTS) > FAULTS


def test_a_play_repeats() -> None:
    assert play(7) == play(7)


def first_report(seeds: range) -> str:
    return next((text for text in map(report, seeds) if text), "")


def test_a_lost_message_is_found_and_its_schedule_is_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait that never ends, or a message that is not understood."""
    resume = Numbering.resume
    monkeypatch.setattr(Numbering, "resume", lambda self, received: resume(self, received)[1:])
    text = first_report(range(10))
    assert "seed " in text
    assert 1 <= text.count("Step(kind=") <= 15, text
    assert any(f"kind='{kind}'" in text for kind in ("reset", "silence", "server_kill")), text


def test_a_read_that_nobody_answers_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a death, the reads that were waiting are not run again."""
    begin_again = recoveries._begin_again

    def without_reads(client, log, ledger, messages, answered):
        begin_again(client, log, ledger, messages, recoveries._reads(client, log, messages))

    monkeypatch.setattr(recoveries, "_begin_again", without_reads)
    text = first_report(range(30))
    assert "waits for a message that will not come" in text


def test_shrinking(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = {Step("kill", 3), Step("act", 40)}
    monkeypatch.setattr(fault_plays, "failure", lambda seed, steps: "bad" if needed <= set(steps) else "")
    steps = [Step("act", n) for n in range(50)]
    steps[3] = Step("kill", 3)
    assert shrink(0, steps) == [Step("kill", 3), Step("act", 40)]


def test_the_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["20"]) == 0
    assert " faults in " in capsys.readouterr().out
    assert failure(0, []) == ""
    monkeypatch.setattr(fault_plays, "play", lambda *arguments: [][0])
    assert main(["--seed", "3"]) == 1
    assert "seed 3: IndexError" in capsys.readouterr().out
