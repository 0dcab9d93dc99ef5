"""compare_results.py: its tables, its warnings, and what it refuses."""

from __future__ import annotations

import copy
import csv
import json

import pytest

from benchmarks.core import results, timing, verdict
from benchmarks.transformer import compare_results, comparing, measuring, model
from benchmarks.transformer.options import parser, resolve

TORCH = "2.13.0"


def record(device="NVIDIA H200", gpus=8, rate=1000.0, engine="ddp", joules=0.5, **config):
    """A record of benchmark.py with these figures."""
    batch = config.pop("batch_size", 32)
    sizes = resolve(parser().parse_args([]), True).sizes
    plain = vars(sizes) | {name: config[name] for name in vars(sizes) if name in config}
    samples = [seconds * 1000 / rate for seconds in (0.25, 0.26, 0.25, 0.24, 0.25)]
    steps = {**timing.summary(samples), "steps_per_sample": 1}
    epoch = {
        "wall_s": 10.0, "samples": round(10 * rate), "samples_per_s": rate, "tokens_per_s": rate * 2 * plain["seq_len"],
        "timing": steps, "data_wait_share": 0.01, "skipped_steps": 0, "losses": [9.0] * 5, "steps": 5,
    }  # fmt: skip
    flops = model.training_flops(model.Sizes(**plain))
    summary = {
        **measuring.totals([epoch], plain["seq_len"], gpus),
        "mfu": {"mfu": 0.4, "numerator_flops_per_s": flops * rate},
        "energy_j": None if joules is None else joules * 10 * rate,
        "joules_per_sample": joules,
        "kernel_resident_percent": 97.0,
        "peak_memory_bytes": 2**31,
        "verdict": verdict.judge({"cv": 0.01}, ["cv"]),
    }
    memory = {"worst_rank": 0, "ranks": [{"peak_bytes": 2**31}]}
    return {
        "schema_version": results.VERSION,
        "suite": "transformer",
        "name": "bench",
        "world_size": gpus,
        "timestamp": "2026-01-01T00:00:00Z",
        "ended": "2026-01-01T00:01:00Z",
        "status": "complete",
        "error": None,
        "config": {
            "device": device, "engine": engine, **plain, "precision": "fp16", "compile": False, "batch_size": batch,
            "global_batch_size": batch * gpus, "num_samples": 50_000, "data": "memory", "page_cache": "drop",
            "epochs": 3, "warmup_epochs": 1, "warmup_steps": 10, "seed": 0, "num_shards": None, "nodes": 1, **config,
        },
        "environment": {
            "git": {"commit": "a" * 40, "dirty": False}, "argv": ["benchmark.py"], "platform": "x", "python": "3.12",
            "torch": TORCH, "cuda": "12.8", "nccl": None, "driver": "570.1",
            "cpu": {"model": "x", "cores": 1, "memory_bytes": 1}, "gpus": [], "variables": {}, "seeds": {"weights": 0},
        },
        "results": {"summary": summary, "epochs": {"1": epoch}, "memory": memory},
        "verdict": {"valid": True, "reasons": [], "unchecked": []},
    }  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    """Two results of the same work: 8 GPUs of one kind, 4 of another with twice the batch each."""
    save(tmp_path, "bench_A_8gpu", record())
    save(tmp_path, "bench_B_4gpu", record("NVIDIA B200", 4, 800.0, batch_size=64, joules=None))
    return tmp_path


def save(folder, name, data):
    (folder / f"{name}.json").write_text(data if isinstance(data, str) else json.dumps(data))
    return folder / f"{name}.json"


def compare(capsys, *words, code=0):
    capsys.readouterr()
    assert compare_results.main([str(word) for word in words]) == code
    out, err = capsys.readouterr()
    return out if code == 0 else err


def column(records, title):
    return [row[[c.title for c in comparing.COLUMNS].index(title)] for row in comparing.table(records)]


def test_the_sample_is_what_the_schema_says():
    assert not results.problems(record())


def test_throughput_in_all_and_a_gpu(folder, capsys):
    out = compare(capsys, folder)
    assert "bench_A_8gpu" in out
    records, skipped = comparing.gather([folder])
    assert skipped == []
    assert column(records, "samples/s") == [1000.0, 800.0]
    assert column(records, "samples/s a GPU") == [125.0, 200.0]
    assert column(records, "against the first") == ["1.000", "0.800"]
    assert column(records, "J a sample") == [0.5, None]
    assert column(records, "$ a million samples") == [None, None]
    assert "Cost" not in out


def test_intervals_that_overlap_are_marked(folder, capsys):
    save(folder, "bench_C_8gpu", record(rate=1010.0))
    assert "1.010 ~" in compare(capsys, folder)


def test_repeated_runs_give_the_interval(folder):
    """Runs that vary by 5 % between each other, and hardly within."""
    for name, rate in (("C", 1050.0), ("D", 950.0)):
        save(folder, f"bench_{name}_8gpu", record(rate=rate))
    records, _ = comparing.gather([folder])
    assert column(records, "runs") == [3, 1, 3, 3]
    low, high = records[0].interval
    assert (low, high) == pytest.approx((1000 - 124, 1000 + 124), abs=5)
    within = comparing.Result("a", record()).interval
    assert high - low > within[1] - within[0]


def test_wall_time_and_utilisation_are_in_the_table(folder, capsys):
    out = compare(capsys, folder)
    assert "wall s" in out
    assert "kernel resident %" in out
    records, _ = comparing.gather([folder])
    assert (column(records, "wall s"), column(records, "kernel resident %")) == ([10.0, 10.0], [97.0, 97.0])


def changed(*keys, value):
    data = record()
    place = data["results"]
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value
    return data


EDITED = {
    "the throughput": (
        changed("summary", "samples_per_s", value=1100.0),
        "summary.samples_per_s is 1100.0, and 1000.0",
    ),
    "the throughput of an epoch": (changed("epochs", "1", "samples_per_s", value=1100.0), "epochs.1.samples_per_s is"),
    "the wall time": (changed("summary", "wall_s", value=9.0), "summary.wall_s is 9.0, and 10.0 follows"),
    "a percentile": (changed("summary", "timing", "p50_s", value=0.2), "timing.p50_s is 0.2, and 0.25 follows"),
    "a sample": (changed("epochs", "1", "timing", "samples_s", value=[0.1] * 5), "timing.mean_s is"),
    "the energy": (changed("summary", "joules_per_sample", value=0.1), "summary.joules_per_sample is 0.1, and 0.5"),
    "the memory": (changed("summary", "peak_memory_bytes", value=1), "summary.peak_memory_bytes is 1"),
    "the FLOPs": (changed("summary", "mfu", "numerator_flops_per_s", value=1.0), "mfu.numerator_flops_per_s is 1.0"),
    "the verdict": (
        changed("summary", "verdict", value=verdict.judge({"cv": 0.5}, ["cv"])),
        "verdict.valid is true, and a part is not valid: samples vary by 50.0%",
    ),
}


@pytest.mark.parametrize("what", EDITED)
def test_a_record_whose_figures_do_not_follow_from_its_samples_is_refused(what, folder, capsys):
    data, why = EDITED[what]
    err = compare(capsys, folder / "bench_A_8gpu.json", save(folder, "x", data), code=2)
    assert "its figures do not follow from its samples" in err
    assert why in err


def test_the_interval_is_around_the_throughput_it_is_of():
    data = record(rate=1000.0)
    # every tenth step takes twice as long: it counts, and the median would ignore it
    data["results"]["summary"]["timing"] = timing.summary(([0.25] * 9 + [0.5]) * 10)
    low, high = comparing.Result("a", data).interval
    assert 900 < low < 1000 < high < 1100


@pytest.mark.parametrize(
    "costs", [["3.00", "5.50"], ["B=5.50", "A_8gpu=3"], ["b200=5.50", "H200=3"], ["NVIDIA H200=3", "NVIDIA B200=5.5"]]
)
def test_prices_are_paired_and_the_pairing_printed(costs, folder, capsys):
    out = compare(capsys, folder, "--cost", *costs)
    assert "price: bench_A_8gpu (NVIDIA H200) = $3.00 a GPU-hour" in out
    assert "price: bench_B_4gpu (NVIDIA B200) = $5.50 a GPU-hour" in out
    records = comparing.priced(comparing.gather([folder])[0], costs)
    # $/h of all GPUs divided by samples per hour; and A's price times B's rate per GPU divided by A's
    assert column(records, "$ a million samples") == pytest.approx([24 / 3.6e6 * 1e6, 22 / (3600 * 800) * 1e6])
    assert column(records, "break-even $ a GPU-hour") == pytest.approx([3.0, 3.0 * 200 / 125])


def test_a_name_may_price_one_or_many(folder, capsys):
    assert "price: bench_B_4gpu (NVIDIA B200) = none" in compare(capsys, folder, "--cost", "A=3")
    assert "price: bench_B_4gpu (NVIDIA B200) = $2.00" in compare(capsys, folder, "--cost", "bench=2")


BAD_COSTS = {
    "3.00": "1 price(s) for 2 result(s), which are in this order:\n  bench_A_8gpu\n  bench_B_4gpu",
    "3 5 8": "3 price(s) for 2 result(s)",
    "3 B=5": "not both",
    "C=5": "'C' is in none of the names: bench_A_8gpu (NVIDIA H200), bench_B_4gpu (NVIDIA B200)",
    "=5": "'' is in none of the names",
    "A=3 bench=2": "bench_A_8gpu has a price already",
    "3 cheap": "'cheap' is no price",
    "3 0": "'0' is no price",
    "3 inf": "'inf' is no price",
}


@pytest.mark.parametrize("costs", BAD_COSTS)
def test_prices_that_pair_with_nothing_are_refused(costs, folder, capsys):
    assert BAD_COSTS[costs] in compare(capsys, folder, "--cost", *costs.split(), code=2)


def test_unequal_work_is_refused_unless_allowed(folder, capsys):
    save(folder, "bench_C_8gpu", record(seq_len=512))
    err = compare(capsys, folder, code=3)
    assert "seq_len differs: 256 (bench_A_8gpu); 256 (bench_B_4gpu); 512 (bench_C_8gpu)" in err
    assert "--allow-different" in err
    assert "NOT THE SAME WORK: seq_len differs" in compare(capsys, folder, "--allow-different")


@pytest.mark.parametrize(
    "other", [{"precision": "bf16"}, {"batch_size": 33}, {"d_model": 256}, {"data": "disk"}, {"compile": True}]
)
def test_every_part_of_the_work_counts(other, folder, capsys):
    save(folder, "bench_C_8gpu", record(**other))
    compare(capsys, folder, code=3)


def test_gt_against_ddp_is_one_table(folder, capsys):
    save(folder, "bench_C_8gpu", record(engine="gt"))
    assert " gt " in compare(capsys, folder)


@pytest.mark.parametrize(
    ("key", "value"), [("torch", "2.11.0"), ("cuda", "13.0"), ("driver", "580.2"), ("nccl", "2.27")]
)
def test_other_versions_are_warned_of(key, value, folder, capsys):
    other = record(rate=990.0)
    other["environment"][key] = value
    save(folder, "bench_C_8gpu", other)
    assert f"warning: {key} differs" in compare(capsys, folder)


def test_another_commit_and_other_warm_up_are_warned_of(folder, capsys):
    other = record(warmup_steps=3)
    other["environment"]["git"] = {"commit": "b" * 40, "dirty": True}
    other["verdict"] = verdict.ended("complete", None, other["environment"]["git"])
    save(folder, "bench_C_8gpu", other)
    out = compare(capsys, folder)
    assert "bbbbbbbbbb and changes (bench_C_8gpu)" in out
    assert "warning: warmup_steps differs" in out


def test_the_verdict_is_shown(folder, capsys):
    other = record(rate=990.0)
    other["verdict"] = verdict.judge({"cv": 0.5}, ["cv", "mfu"], "results.summary")
    save(folder, "bench_C_8gpu", other)
    out = compare(capsys, folder)
    assert "bench_A_8gpu: verdict: valid" in out
    assert "bench_C_8gpu: verdict: NOT VALID as a measurement" in out
    assert "bench_C_8gpu:   cv: samples vary by 50.0%" in out


def without(*keys):
    data = copy.deepcopy(record())
    place = data
    for key in keys[:-1]:
        place = place[key]
    del place[keys[-1]]
    return data


FOREIGN = {
    "not JSON": ("{", "not JSON"),
    "no record": ('{"a": 1}', "no schema_version"),
    "a list": ("[1]", "no schema_version"),
    "another version": (record() | {"schema_version": "9.0"}, "schema_version 9.0"),
    "another suite": (record() | {"suite": "distributed"}, "a result of the suite 'distributed'"),
    "interrupted": (
        record() | {"status": "interrupted", "error": "SIGINT"},
        "the run is interrupted, not complete: SIGINT",
    ),
    "no summary": (without("results", "summary"), "not what benchmark.py writes: KeyError: 'summary'"),
    "no throughput": (without("results", "summary", "samples_per_s"), "not what benchmark.py writes"),
    "no vocabulary": (without("config", "vocab_size"), "not what benchmark.py writes"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_file_that_is_no_result_is_refused_by_name_and_left_out_of_a_folder(kind, folder, capsys):
    data, why = FOREIGN[kind]
    path = save(folder, "x", data)
    assert why in compare(capsys, folder / "bench_A_8gpu.json", path, code=2)
    out = compare(capsys, folder)
    assert f"left out: {path}: " in out
    assert why in out


def test_a_copy_is_no_other_run(folder, capsys):
    save(folder, "bench_C_8gpu", record() | {"timestamp": "2026-02-01T00:00:00Z", "ended": "2026-02-01T00:01:00Z"})
    assert "bench_C_8gpu.json is a copy of bench_A_8gpu.json" in compare(capsys, folder, code=2)


def test_nothing_to_compare_is_reported(tmp_path, folder, capsys):
    (tmp_path / "empty").mkdir()
    assert "no finished result of benchmark.py in" in compare(capsys, tmp_path / "empty", code=2)
    assert "no such file or folder" in compare(capsys, tmp_path / "missing", code=2)
    assert "is given twice" in compare(capsys, folder, folder / "bench_A_8gpu.json", code=2)


def test_one_result_alone_is_a_table_too(folder, capsys):
    assert "bench_A_8gpu" in compare(capsys, folder / "bench_A_8gpu.json", "--cost", "3")


def test_csv_markdown_and_html(folder, capsys, tmp_path):
    save(folder, "bench_C_8gpu", record("<b>GPU|x</b>", seq_len=512))
    files = {name: tmp_path / f"out.{name}" for name in ("csv", "markdown", "html")}
    words = [word for name, path in files.items() for word in (f"--{name}", path)]
    compare(capsys, folder, "--allow-different", "--cost", "3", "4", "5", *words)
    with open(files["csv"], newline="") as file:
        rows = list(csv.DictReader(file))
    assert [float(row["samples/s"]) for row in rows] == [1000.0, 800.0, 1000.0]
    assert [row["$ a GPU-hour"] for row in rows] == ["3.0", "4.0", "5.0"]
    lines = files["markdown"].read_text().splitlines()
    assert lines[0].startswith("| result | device |")
    assert "<b>GPU\\|x</b>" in lines[4]
    assert "- NOT THE SAME WORK: seq_len" in files["markdown"].read_text()
    page = files["html"].read_text()
    assert "&lt;b&gt;GPU|x&lt;/b&gt;" in page
    assert page.count("<img ") == 5
    assert "NOT THE SAME WORK" in page


def test_html_without_matplotlib_says_so(folder, capsys, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    compare(capsys, folder, "--html", tmp_path / "out.html")
    assert "matplotlib is not installed" in (tmp_path / "out.html").read_text()


def test_a_file_that_cannot_be_written_is_reported(folder, capsys):
    assert "cannot be written" in compare(capsys, folder, "--csv", folder / "no" / "out.csv", code=2)
