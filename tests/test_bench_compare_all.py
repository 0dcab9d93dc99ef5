"""gt bench compare: runs and machines of every suite, regressions, history, cost, and what it refuses."""

from __future__ import annotations

import csv
import json
import pathlib

import pytest

from benchmarks import compare as program
from benchmarks.core import audit, timing, verdict
from benchmarks.reports import comparing, reading
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


def edited(key):
    data = json.loads((SHARDING if key == "value" else RECOVERY).read_text())
    place = data["results"]["plan"]["0"] if key == "value" else data["results"]["on"]
    place[key] *= 0.9
    return data


@pytest.mark.parametrize("key", ["value", "median"])
def test_an_edited_record_is_refused(tmp_path, capsys, key):
    path = save(tmp_path, "edited", edited(key))
    assert f".{key} is" in compare(capsys, path, code=2)
    assert "follows from its samples" in audit.problems(json.loads(path.read_text()))[0]
    save(tmp_path, "good", json.loads(RECOVERY.read_text()))
    assert f"left out: {path}" in compare(capsys, tmp_path)


def test_an_edited_transformer_record_is_refused(tmp_path, capsys):
    data = transformer()
    data["results"]["summary"]["joules_per_sample"] = 0.1
    assert "joules_per_sample is 0.1" in compare(capsys, save(tmp_path, "a", data), code=2)


MACHINE = RESULTS / "h200" / "machine"
#: a kept record, and figures in it that were edited; "[-1]" is the last of a list
EDITS = [
    ("benchmark_2gpu", "communication allreduce rows [-1] busbw_gb_per_s"),
    ("benchmark_2gpu", "communication allgather rows [0] single_us"),
    ("benchmark_2gpu", "communication alltoall rows [0] latency_us"),
    ("benchmark_2gpu", "communication broadcast fit beta_bytes_per_s"),
    ("benchmark_2gpu", "communication p2p rows [-1] wrong_elements"),
    ("machine/benchmark_1gpu_20261118T093113Z", "training ddp samples", "training ddp samples_per_s"),
    ("machine/benchmark_1gpu_20261118T093113Z", "training ddp tokens_per_s", "training ddp tokens_per_s_per_rank"),
    ("machine/benchmark_1gpu_20261118T093113Z", "training fsdp mfu numerator_flops_per_s", "training fsdp mfu mfu"),
    ("machine/benchmark_1gpu_20261118T093113Z", "training doubling ratio"),
    ("machine/benchmark_1gpu_20261118T093113Z", "training gpu [0] neighbours"),
    ("machine/products", "products bf16 best tflop_per_s", "products bf16 mfu numerator_flops_per_s"),
    ("machine/products", "products bf16 rows [0] value", "products bf16 rows [0] samples"),
    ("machine/sustained", "sustained end_over_beginning"),
]


def multiplied(value):
    return [multiplied(each) for each in value] if isinstance(value, list) else value * 1.5 + 1


@pytest.mark.parametrize(
    ("name", "paths"), [(name, paths) for name, *paths in EDITS], ids=lambda v: v[0] if isinstance(v, list) else ""
)
def test_no_figure_of_a_kept_record_can_be_edited(name, paths):
    record = json.loads(sorted((RESULTS / "h200").glob(f"{name}*.json"))[0].read_text())
    assert audit.problems(record) == []
    for path in paths:
        *keys, last = [int(word[1:-1]) if word[0] == "[" else word for word in path.split()]
        place = record["results"]
        for key in keys:
            place = place[key]
        place[last] = multiplied(place[last])
    assert audit.problems(record)


def test_every_kept_record_follows_from_its_samples():
    records, _ = reading.gather(
        [path for path in (RESULTS, *RESULTS.rglob("*")) if path.is_dir() and any(path.glob("*.json"))]
    )
    assert {record.name: record.wrong for record in records if record.wrong} == {}


def test_a_valid_verdict_over_what_is_not_valid_is_found(tmp_path):
    record = json.loads(sorted((RESULTS / "h200").glob("benchmark_2gpu_*.json"))[0].read_text())
    record["results"]["communication"]["verdict"] = record["verdict"] = {"valid": True, "reasons": [], "unchecked": []}
    assert "verdict does not have what follows" in audit.problems(record)[0]


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


def test_every_suite_of_the_repository(tmp_path, capsys):
    """Different work is never beside each other."""
    out = compare(capsys, RESULTS / "2cpu", "--csv", tmp_path / "all.csv")
    records, _ = reading.gather([RESULTS / "2cpu"])
    for suite in {record.suite for record in records if comparing.refused(record) is None}:
        assert f"\n{suite}" in out
    rows = list(csv.DictReader((tmp_path / "all.csv").read_text().splitlines()))
    assert {row["runs"] for row in rows} <= {"1", "2", "3"}
    assert len(rows) > 30
