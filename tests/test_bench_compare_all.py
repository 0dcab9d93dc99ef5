"""gt bench compare: runs and machines of every suite, regressions, history, cost, and what it refuses."""

from __future__ import annotations

import csv
import json
import pathlib
import re

import pytest

from benchmarks import compare as program
from benchmarks.core import timing, verdict
from benchmarks.reports import comparing, reading, works
from benchmarks.reports.figures import HIGHER, LOWER, Figure, figures
from tests.test_bench_compare import record as transformer

RESULTS = pathlib.Path(__file__).parent.parent / "benchmarks" / "results"
RECOVERY = RESULTS / "2cpu" / "recovery_20261117T114530Z.json"
SHARDING = RESULTS / "2cpu" / "sharding_20261115T230623Z.json"


def save(folder, name, data, **changes):
    path = folder / f"{name}.json"
    path.write_text(json.dumps(data | changes))
    return path


def compare(capsys, *words, code=0):
    capsys.readouterr()
    assert program.main([str(word) for word in words]) == code
    out, err = capsys.readouterr()
    return err if code == 2 else out


def scaled(path, factor):
    """The same run, in which every ratio is this many times as large."""
    data = json.loads(path.read_text())
    for part in data["results"].values():
        part["ratios"] = [ratio * factor for ratio in part["ratios"]]
        part["median"] *= factor
    return data


@pytest.fixture
def runs(tmp_path):
    """Three runs each on two machines."""
    folder = tmp_path / "runs"
    folder.mkdir()
    for number, rate in enumerate((990.0, 1000.0, 1010.0)):
        stamp = f"2026-01-0{number + 1}T00:00:00Z"
        for device, gpus, factor in (("NVIDIA H200", 8, 1), ("NVIDIA B200", 4, 2)):
            data = transformer(device, gpus, rate * factor, batch_size=256 // gpus)
            data["environment"]["gpus"] = [
                {"name": device, "uuid": f"{device}-{n}", "memory_bytes": 1} for n in range(gpus)
            ]
            save(folder, f"{device.split()[1]}_{number}", data, timestamp=stamp, ended=stamp)
    return folder


def groups(*paths):
    records, _ = program.usable([pathlib.Path(path) for path in paths])
    return comparing.runs(records, "kind")


def test_machines_and_runs(runs, capsys):
    h200, b200 = sorted(groups(runs), key=lambda group: -group.gpus)
    value = h200.values["throughput"]
    assert len(h200.records) == len(b200.records) == 3
    assert (value.value, value.between, value.interval) == (1000.0, True, timing.runs_interval([990, 1000, 1010]))
    out = compare(capsys, runs)
    assert "8 x NVIDIA H200" in out
    assert "4 x NVIDIA B200" in out


def test_a_copy_is_no_other_run(tmp_path, capsys):
    """Whatever time it claims to be of: its samples are those of the first."""
    data = json.loads(RECOVERY.read_text())
    paths = [save(tmp_path, str(n), data, timestamp=f"2026-01-0{n}T00:00:00Z", ended=None) for n in (1, 2, 3)]
    assert f"left out: {paths[1]}: a copy of {paths[0]}" in compare(capsys, *paths)
    assert len(reading.gather(paths)[0]) == 1


@pytest.mark.parametrize("change", [
    lambda data: data["config"].update(seed=7), lambda data: data["results"].update(note="another run"),
    lambda data: data["config"].update(device="another GPU"),
])  # fmt: skip
def test_a_copy_is_known_by_its_samples(tmp_path, change):
    """Copies would make the interval between runs as narrow as anyone likes."""
    data = json.loads(RECOVERY.read_text())
    first = save(tmp_path, "1", data)
    change(data)
    assert len(reading.gather([first, save(tmp_path, "2", data)])[0]) == 1


@pytest.mark.parametrize("share", ["nan", "-1", "1", "x"])
def test_a_variation_that_hides_every_regression_is_refused(tmp_path, share):
    path = save(tmp_path, "new", scaled(RECOVERY, 2.0))
    with pytest.raises(SystemExit, match="2"):
        program.main([str(path), "--baseline", str(RECOVERY), "--variation", share])


def test_fewer_runs_have_the_interval_within(runs):
    (value,) = [group.values["throughput"] for group in groups(runs / "H200_0.json", runs / "H200_1.json")]
    assert not value.between
    assert value.interval[0] < 990 < 1000 < value.interval[1]


def test_cost_and_energy_by_the_name_of_the_gpu(runs):
    records, _ = program.usable([runs])
    prices = program.costs(records, ["H200=3", "B200=5"])
    assert prices == {"NVIDIA H200": 3.0, "NVIDIA B200": 5.0}
    rows = {
        row[1]: dict(zip(comparing.COSTS, row, strict=True))
        for row in comparing.cost_rows(comparing.runs(records, "kind", prices))
    }
    (h200,) = [row for name, row in rows.items() if "H200" in name]
    (b200,) = [row for name, row in rows.items() if "B200" in name]
    assert h200["$/1M samples"] == pytest.approx(8 * 3 / 3600 / 1000 * 1e6)
    assert b200["$/1M samples"] == pytest.approx(4 * 5 / 3600 / 2000 * 1e6)
    tokens = h200["tokens/s"] / h200["samples/s"]
    assert h200["$/1M tokens"] == pytest.approx(h200["$/1M samples"] / tokens)
    assert (h200["J/sample"], h200["J/token"]) == (pytest.approx(0.5), pytest.approx(0.5 / tokens))
    assert rows[next(iter(rows))]["break-even $/GPU-h"] in (3.0, 5.0)


def test_prices_that_fit_nothing(runs, capsys):
    assert "NAME=PRICE" in compare(capsys, runs, "--cost", "3.0", code=2)
    assert "none of the names" in compare(capsys, runs, "--cost", "A100=3", code=2)


def test_the_history_is_by_time(runs, capsys):
    (h200,) = groups(*(runs / f"H200_{n}.json" for n in (2, 0, 1)))
    rows = [row for row in comparing.history_rows([h200]) if row[0] == "throughput"]
    assert [row[2][:10] for row in rows] == ["2026-01-01", "2026-01-02", "2026-01-03"]
    assert [row[-1].split()[0] if row[-1] else "" for row in rows] == ["", "1.010", "1.010"]
    assert "History" in compare(capsys, runs, "--history")


def test_one_run_has_no_history(runs, capsys):
    words = compare(capsys, runs / "H200_0.json", "--history")
    assert "History" not in words
    assert re.search(r"^only one run of transformer.*: nothing to compare$", words, re.M)


@pytest.mark.parametrize(("factor", "code"), [(1.0, 0), (1.01, 0), (0.5, 0), (2.0, 1)])
def test_a_regression_is_found_or_not(tmp_path, capsys, factor, code):
    """The ratios are costs: twice as large is worse, half is better, and 1 % is within the interval."""
    new = save(tmp_path, "new", scaled(RECOVERY, factor))
    out = compare(capsys, new, "--baseline", RECOVERY, code=code)
    assert (comparing.REGRESSION in out) == bool(code)
    assert (" better " in out) == (factor == 0.5)


def figure(value, better, interval=None, valid=True):
    return comparing.value_of([Figure((), "x", "s", value, interval, better, True, valid)])


@pytest.mark.parametrize(
    ("old", "new", "better", "expected"),
    [
        (100.0, 90.0, HIGHER, comparing.REGRESSION),
        (100.0, 110.0, HIGHER, comparing.BETTER),
        (100.0, 110.0, LOWER, comparing.REGRESSION),
        (100.0, 97.0, HIGHER, comparing.SAME),  # one run each, which may differ by 2 %
    ],
)
def test_the_direction_of_a_change(old, new, better, expected):
    assert comparing.change(figure(new, better), figure(old, better), 0.02) == expected
    assert comparing.change(figure(new, better, valid=False), figure(old, better), 0.02) == comparing.UNJUDGED


def test_three_runs_need_no_assumed_variation(runs):
    (old,) = groups(*(runs / f"H200_{n}.json" for n in range(3)))
    value = old.values["throughput"]
    assert value.wide(0.5) == value.interval


def test_a_baseline_of_other_work(capsys):
    assert "no record is of the same work" in compare(capsys, SHARDING, "--baseline", RECOVERY, code=2)


def test_the_baseline_is_not_compared_with_itself(tmp_path, capsys):
    save(tmp_path, "old", scaled(RECOVERY, 1.0))
    save(tmp_path, "new", scaled(RECOVERY, 2.0))
    assert "REGRESSION" in compare(capsys, tmp_path, "--baseline", tmp_path / "old.json", code=1)
    assert "no record to compare" in compare(capsys, RECOVERY, "--baseline", RECOVERY, code=2)


def busy(record, share=0.45):
    """The same training, on a machine whose processors other programs used."""
    judged = verdict.judge({"cpu_others": share}, verdict.MACHINE["cpu"], "training")
    part = {"ddp": dict(record), "processor": {"others": share, "steal": 0.0}, "verdict": judged}
    return {"training": part}


def test_figures_beside_a_busy_neighbour_are_not_valid():
    """Each part is valid by itself; the reason is the machine, around all of them."""
    fine = {"timing": timing.summary([1.0, 1.0, 1.0]), "verdict": {"valid": True, "reasons": [], "unchecked": []}}
    assert [figure.valid for figure in figures(busy(fine))] == [False]
    assert [figure.valid for figure in figures(busy(fine, 0.05))] == [True]
    other = {"a": fine, "b": fine, "verdict": {"valid": False, "reasons": [{"code": "cv"}], "unchecked": []}}
    assert [figure.valid for figure in figures({"training": other})] == [True, True]  # a third one varies too much


def test_nothing_to_judge_is_no_pass(tmp_path, capsys):
    data = scaled(RECOVERY, 2.0)
    for part in data["results"].values():
        part["verdict"] = {"valid": False, "reasons": [{"code": "cv", "message": "", "where": ""}], "unchecked": []}
    data["verdict"] = {"valid": False, "reasons": [{"code": "cv", "message": "", "where": ""}], "unchecked": []}
    new = save(tmp_path, "new", data)
    assert "nothing was judged" in compare(capsys, new, "--baseline", RECOVERY, code=2)


def test_a_figure_that_is_missing_now_is_named(tmp_path, capsys):
    data = json.loads(RECOVERY.read_text())
    del data["results"]["on"]
    assert comparing.MISSING in compare(capsys, save(tmp_path, "new", data), "--baseline", RECOVERY)


def test_a_record_without_figures_is_no_comparison(tmp_path, capsys):
    empty = save(tmp_path, "empty", json.loads(RECOVERY.read_text()), results={})
    for words in ((empty, "--baseline", RECOVERY), (RECOVERY, "--baseline", empty)):
        assert "nothing was compared" in compare(capsys, *words, code=2)


def test_bad_input(tmp_path, capsys):
    assert "no record in" in compare(capsys, tmp_path, code=2)
    running = save(tmp_path, "running", json.loads(RECOVERY.read_text()), status="interrupted")
    assert "is interrupted, not complete" in compare(capsys, running, code=2)
    (tmp_path / "broken.json").write_text("{")
    assert "not JSON" in compare(capsys, tmp_path / "broken.json", code=2)


def test_an_unused_option_is_one_that_older_records_do_not_have(tmp_path, capsys):
    data = json.loads(sorted((RESULTS / "h200").glob("benchmark_1gpu_*.json"))[0].read_text())
    assert {data["config"]["cuda_graphs"], data["config"]["replay"]} == {False, None}
    old = save(tmp_path, "old", data)
    for key in ("cuda_graphs", "replay"):
        del data["config"][key]
    assert "0 regressions" in compare(capsys, save(tmp_path, "new", data), "--baseline", old)
    zero, absent = (
        reading.Read(old, data | {"config": {"device": "cpu", **more}}) for more in ({"warmup_iters": 0}, {})
    )
    assert works.work(zero) != works.work(absent)


def test_captured_collectives_stand_beside_those_that_are_not(tmp_path, capsys):
    data = json.loads(sorted((RESULTS / "h200").glob("benchmark_2gpu_*.json"))[0].read_text())
    usual = save(tmp_path, "usual", data)
    data["config"]["cuda_graphs"] = True
    captured = save(tmp_path, "captured", data)
    assert "cuda graphs true" in compare(capsys, usual, captured)
    assert len(works.by_work([reading.read(usual), reading.read(captured)])) == 1


def test_other_programs_are_other_work():
    paths = [RESULTS / "h200" / f"compilation_{name}_plain.json" for name in ("bert", "vit")]
    bert, vit = (reading.read(path) for path in paths)
    assert works.work(bert) != works.work(vit)
    assert works.title(bert).startswith("compilation_benchmark, bert")


def test_the_title_of_a_work_leaves_out_what_differs():
    paths = sorted((RESULTS / "h200").glob("bench_H200_*.json"))
    ddp, gt = next(group for group in works.by_work([reading.read(path) for path in paths]) if len(group) == 2)
    assert {ddp.config["engine"], gt.config["engine"]} == {"ddp", "gt"}
    assert works.common_title([ddp, gt]) == works.title(ddp).replace(", ddp", "")


def test_the_title_of_a_replay_names_its_file():
    titles = [works.title(reading.read(path)) for path in sorted((RESULTS / "h200/replay").glob("*.json"))]
    assert titles[1:] == [
        "distributed, replay, step2.json, 2 ranks", "distributed, replay, step2.json, CUDA graphs, 2 ranks",
        "distributed, replay, groups.json, CUDA graphs, 2 ranks",
    ]  # fmt: skip


SHAPES = {
    "ranks that are no list": lambda d: d["environment"].update(ranks="x"),
    "memory that is no number": lambda d: d["environment"]["cpu"].update(memory_bytes=None),
    "a GPU without a size": lambda d: d["environment"]["gpus"][0].update(memory_bytes="80 GB"),
    "parts that are no list": lambda d: d["config"].update(benchmarks=-1),
    "a model without a name": lambda d: d["config"].update(model={}),
    "a month that there is not": lambda d: d.update(ended="2026-13-01T00:00:00Z"),
}


@pytest.mark.parametrize("change", SHAPES.values(), ids=SHAPES)
def test_a_damaged_environment_is_named_and_the_rest_compared(tmp_path, capsys, change):
    data = json.loads(sorted((RESULTS / "h200").glob("bench_H200_*.json"))[0].read_text())
    save(tmp_path, "good", data)
    change(data)
    path = save(tmp_path, "damaged", data)
    assert f"left out: {path}" in compare(capsys, tmp_path)
    assert f"{path}: $." in compare(capsys, path, code=2)


def test_every_suite_of_the_repository(tmp_path, capsys):
    """Different work is never beside each other."""
    out = compare(capsys, RESULTS / "2cpu", "--csv", tmp_path / "all.csv")
    records, _ = reading.gather([RESULTS / "2cpu"])
    for suite in {record.suite for record in records if comparing.refused(record) is None}:
        assert f"\n{suite}" in out
    rows = list(csv.DictReader((tmp_path / "all.csv").read_text().splitlines()))
    assert {row["runs"] for row in rows} <= {"1", "2", "3"}
    assert len(rows) > 30
