"""Schedules of pipelines as data: dependencies, bubbles, activations, files and pictures."""

from __future__ import annotations

import itertools
import pathlib
import re
import subprocess
import sys

import pytest

from gt.errors import ConfigError
from gt.pipeline import Action, Schedule, bubble, bubble_formula, make_schedule, peak_activations, read_schedule
from gt.pipeline.__main__ import main
from gt.pipeline.drawing import draw
from gt.pipeline.files import to_csv
from gt.pipeline.schedules import SCHEDULES, forward_schedule
from gt.pipeline.timing import merged_order, timeline

STAGES, MICROBATCHES = (1, 2, 3, 4, 6), (1, 2, 3, 5, 7, 8, 12, 16)


def shapes(name: str) -> list[tuple[int, int, int]]:
    chunks = (1, 2, 3) if name == "interleaved_1f1b" else (SCHEDULES[name][1],)
    return list(itertools.product(STAGES, MICROBATCHES, chunks))


def check_needs(order: list[Action], parts: int) -> None:
    """Written anew, independent of `Action.needs`: F flows down, gradients flow up, W comes after its I."""
    at = {action: i for i, action in enumerate(order)}
    assert len(at) == len(order)
    for kind, part, m in order:
        first = {k: at.get(Action(k, part, m), -1) for k in "FBIW"}
        before = {k: at.get(Action(k, part - 1, m), -1) for k in "FBI"}
        after = [at[a] for k in "BI" if (a := Action(k, part + 1, m)) in at]
        if kind == "F":
            assert part == 0 or 0 <= before["F"] < first["F"]
        elif kind == "W":
            assert 0 <= first["I"] < first["W"]
        else:
            assert 0 <= first["F"] < first[kind]
            assert part + 1 == parts or after[0] < first[kind]


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_schedule_is_complete_and_in_order(name: str) -> None:
    for stages, microbatches, chunks in shapes(name):
        schedule = make_schedule(name, stages, microbatches, chunks)
        assert (schedule.parts, schedule.microbatches) == (stages * chunks, microbatches)
        forwards = {(a.part, a.microbatch) for a in schedule.order if a.kind == "F"}
        assert forwards == set(itertools.product(range(schedule.parts), range(microbatches)))
        for order in (list(schedule.order), merged_order(schedule)):
            assert sorted(order) == sorted(a for row in schedule.rows for a in row)
            check_needs(order, schedule.parts)
        merged = merged_order(schedule)
        for number, row in enumerate(schedule.rows):  # the merged order keeps each stage's own
            assert [a for a in merged if schedule.stage_of[a.part] == number] == list(row)


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_formula_is_the_simulated_bubble(name: str) -> None:
    compared = 0
    for stages, microbatches, chunks in shapes(name):
        formula = bubble_formula(name, stages, microbatches, chunks)
        if formula is not None:
            schedule = make_schedule(name, stages, microbatches, chunks)
            assert bubble(schedule) == pytest.approx(formula, abs=1e-12)
            compared += 1
    assert compared > 15


def test_known_bubbles() -> None:
    assert bubble_formula("1f1b", 4, 8) == pytest.approx(3 / 11)
    assert bubble_formula("1f1b", 4, 16) == pytest.approx(3 / 19)
    assert bubble_formula("zb_h1", 4, 16) == pytest.approx(3 / 51)
    assert bubble_formula("zbv", 4, 16, 2) == pytest.approx(3 / 99)
    assert bubble_formula("interleaved_1f1b", 4, 8, 2) == pytest.approx(3 / 19)
    assert bubble_formula("interleaved_1f1b", 4, 7, 2) is None
    assert bubble_formula("custom", 4, 8) is None


def test_peak_activations() -> None:
    for stages, microbatches in itertools.product(STAGES, MICROBATCHES):
        held = {name: peak_activations(make_schedule(name, stages, microbatches)) for name in SCHEDULES}
        assert held["gpipe"] == [microbatches] * stages
        assert held["1f1b"] == [min(microbatches, stages - s) for s in range(stages)]
        assert max(held["zb_h1"]) <= stages  # no more than the first stage of 1f1b
        assert max(held["zbv"]) <= 2 * stages  # parts of half the size


def test_a_stage_never_does_two_things_at_once() -> None:
    for name in SCHEDULES:
        for row in timeline(make_schedule(name, 4, 9)):
            assert all(a.end <= b.start for a, b in itertools.pairwise(row))


def test_an_evaluation_has_only_forwards() -> None:
    for name in SCHEDULES:
        schedule = forward_schedule(make_schedule(name, 3, 5), 7)
        assert schedule.forward_only
        assert schedule.microbatches == 7
        check_needs(merged_order(schedule), schedule.parts)


# -- schedules of one's own ------------------------------------------------------------------

ROWS = [["F0", "F1", "B0", "B1"], ["F0", "I0", "F1", "W0", "B1"]]


def test_a_schedule_from_python_csv_and_yaml(tmp_path: pathlib.Path) -> None:
    own = Schedule(ROWS)
    assert own.rows[1][1] == Action("I", 1, 0)
    assert own.split == {(1, 0)}
    (tmp_path / "own.csv").write_text("F0, F1, ,,B0,B1\nF0,I0,F1,W0,B1\n\n")
    (tmp_path / "own.yaml").write_text("- F0 F1 B0 B1\n- [F0, I0, F1, W0, B1]\n")
    (tmp_path / "all.csv").write_text(to_csv(make_schedule("zbv", 3, 6)))
    assert read_schedule(tmp_path / "own.csv").rows == own.rows == read_schedule(tmp_path / "own.yaml").rows
    assert read_schedule(tmp_path / "all.csv").rows == make_schedule("zbv", 3, 6).rows


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([["F0", "B1"]], "schedule custom: stage 0: part 0 has for microbatch 0: F 1 times; expected F once, and"),
        ([["F0", "F0", "B0"]], "part 0 has for microbatch 0: F 2 times, B 1 times"),
        ([["F0", "I0"]], "F 1 times, I 1 times; expected F once, and B once or I and W once"),
        ([["F0", "B0", "F2", "B2"]], "part 0 has for microbatch 1: nothing"),
        ([["B0", "F0"]], "stage 0: 0B0 waits for 0F0, which never runs: it comes too late on its stage"),
        ([["F0", "B0", "F1", "B1"], ["F0", "F1", "B0", "B1"]], "stage 0: 0B0 waits for 1B0"),
        ([["F0", "B0"], ["0F1", "F0", "B0"]], "stage 1: 0F1: part 0 runs on stage 0 already"),
        ([["F0", "B0"], ["2F0", "2B0"]], "no stage runs part 1"),
        ([["X0"]], "stage 0: 'X0' is not an action; write F0, B0, I0 or W0, or 5F0 for part 5"),
        ([[3]], "stage 0: 3 is not an action"),
        ([], "schedule custom: there are no actions"),
    ],
)
def test_wrong_schedules(rows: list[list[str]], text: str) -> None:
    with pytest.raises(ConfigError, match=r"^[\s\S]*" + re.escape(text)):
        Schedule(rows)


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("a.txt", "F0", "the name of a schedule's file ends in .csv, .yaml, .yml"),
        ("a.yaml", "stages: 4", "expected a list with one item for each stage, not dict"),
        ("a.yaml", "- 3", "stage 0: expected a list of actions such as [F0, B0], not 3"),
        ("a.yaml", "- [F0", "expected ',' or ']'"),
        ("a.csv", "F0,B1", "a.csv: schedule a.csv: stage 0"),
        ("a.csv", None, "the schedule cannot be read: No such file or directory"),
    ],
)
def test_wrong_files(tmp_path: pathlib.Path, name: str, content: str | None, text: str) -> None:
    if content is not None:
        (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError) as error:
        read_schedule(tmp_path / name)
    assert text in str(error.value)


def test_wrong_numbers() -> None:
    with pytest.raises(ConfigError, match="there is no schedule '2f2b'; there are: gpipe, 1f1b"):
        make_schedule("2f2b", 2, 2)
    with pytest.raises(ConfigError, match="stages=0; expected an integer, 1 or more"):
        make_schedule("1f1b", 0, 2)
    with pytest.raises(ConfigError, match=r"microbatches=1\.5"):
        make_schedule("1f1b", 1, 1.5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="chunks=3; this schedule has 2 on each stage"):
        make_schedule("zbv", 2, 4, chunks=3)


# -- pictures --------------------------------------------------------------------------------


def test_a_picture_in_text() -> None:
    assert draw(make_schedule("1f1b", 2, 2)) == (
        "stage 0  F0 F1 .  .  B0 -  .  B1 -\n"
        "stage 1  .  F0 B0 -  F1 B1 -  .  ."
    )  # fmt: skip
    assert draw(make_schedule("zbv", 2, 1)) == (
        "stage 0  0F0 .   .   3F0 3I0 3W0 .   .   0I0 0W0\n"
        "stage 1  .   1F0 2F0 .   .   2I0 2W0 1I0 1W0 ."
    )  # fmt: skip


def test_the_command(capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path) -> None:
    picture = tmp_path / "schedule.png"
    assert main(["show", "1f1b", "--stages", "4", "--microbatches", "8", "--png", str(picture)]) == 0
    text = capsys.readouterr().out
    assert "bubble: by formula 27.3%, simulated 27.3% (F = I = W = 1, B = 2)" in text
    assert "peak activations, in microbatches: 4, 3, 2, 1" in text
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert main(["show", "zb_h1", "--stages", "2", "--microbatches", "2", "--csv"]) == 0
    (tmp_path / "own.csv").write_text(capsys.readouterr().out)
    assert main(["show", str(tmp_path / "own.csv")]) == 0
    assert "own.csv: 2 stages, 2 parts, 2 microbatches\nbubble: no formula" in capsys.readouterr().out
    assert main(["show", "1f1b", "--stages", "0"]) == 2
    assert capsys.readouterr().err.startswith("gt.pipeline: schedule 1f1b: stages=0")
    assert main(["show", "1f1b", "--png", str(tmp_path / "no" / "folder.png")]) == 1
    assert "the picture cannot be written" in capsys.readouterr().err


def test_the_command_needs_no_session() -> None:
    code = "import sys, gt.pipeline.__main__ as m; m.main(['show', 'zbv']); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
