"""Records edited by hand: a figure that does not follow from its samples, a verdict that contradicts its part."""

from __future__ import annotations

import json

import pytest

from benchmarks.core import audit, derived, timing, verdict
from benchmarks.reports import reading
from tests.test_bench_compare import record as transformer
from tests.test_bench_compare_all import RECOVERY, RESULTS, SHARDING, compare, save


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
    ("benchmark_1gpu", "training ddp joules_per_sample"),
    ("benchmark_1gpu", "communication alltoall rows [0] size_bytes"),
    ("benchmark_1gpu", "communication alltoall rows [0] size_bytes", "communication alltoall rows [0] asked_bytes"),
    ("bench_H200", "summary joules_per_sample"),
    ("compilation_mlp", "mlp torch ratio decorated"),
    ("compilation_mlp", "mlp goals [0] value"),
    ("compilation_resnet18_forward", "resnet18-forward goals [-1] value"),
    ("quick_benchmark", "square 4096x4096 1 flops"),
    ("../2cpu/checkpoints", "disk write mb_per_s"),
    ("benchmark_1gpu", "training ddp mfu denominator_flops_per_s", "training ddp mfu mfu"),
    ("benchmark_1gpu", "memory largest_batch predicted"),
    ("benchmark_1gpu", "memory largest_batch fit bytes_per_sample"),
    ("benchmark_1gpu", "scaling weak rows [0] samples_per_s"),
    ("../2cpu/benchmark_2cpu", "communication allreduce rows [-1] busbw_gb_per_s"),
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


def kept(name):
    return json.loads(sorted((RESULTS / "h200").glob(f"{name}_*.json"))[0].read_text())


def faster(record, engine="ddp", factor=2):
    """A shorter wall time, and everything that is computed from it."""
    part = record["results"]["training"][engine]
    part["wall_s"] /= factor
    for key in ("samples_per_s", "samples_per_s_per_rank", "tokens_per_s", "tokens_per_s_per_rank"):
        part[key] *= factor
    for key in ("numerator_flops_per_s", "mfu"):
        part["mfu"][key] *= factor


@pytest.mark.parametrize("factor", [0.5, 1.1, 2])
def test_a_wall_time_is_that_of_its_samples(factor):
    record = kept("benchmark_1gpu")
    faster(record, factor=factor)
    (line,) = audit.problems(record)
    assert "results.training.ddp.wall_s is" in line


def test_the_slowest_samples_cannot_be_left_out():
    record = kept("benchmark_1gpu")
    row = record["results"]["communication"]["alltoall"]["rows"][0]
    for part in (row, row["single"]):
        best = sorted(part["timing"]["samples_s"])[:50]
        part["timing"] |= timing.summary(best)
    row["latency_us"], row["single_us"] = (part["timing"]["p50_s"] * 1e6 for part in (row, row["single"]))
    lines = audit.problems(record)
    assert len(lines) == 2
    assert "has 50 samples, and the run had 100 iterations" in lines[0]


def cleaned(value):
    """Without a trace of a verdict that is not valid."""
    if isinstance(value, list):
        return [cleaned(each) for each in value]
    if not isinstance(value, dict):
        return value
    fine = {"valid": True, "reasons": [], "unchecked": []}
    return {key: fine if key == "verdict" else cleaned(each) for key, each in value.items()}


def test_energy_is_power_over_time():
    record = kept("benchmark_1gpu")
    part = record["results"]["training"]["ddp"]
    part["joules_per_sample"] /= 2
    for card in part["gpu"]:
        card["energy_j"] /= 2
    assert [line.split(" is ")[0] for line in audit.problems(record)] == ["results.training.ddp.gpu[0].mean_power_w"]


def test_no_energy_without_a_counter():
    record = kept("benchmark_1gpu")
    record["results"]["training"]["ddp"]["gpu"] = None
    (line,) = audit.problems(record)
    assert "joules_per_sample is 2." in line
    assert line.endswith("and None follows from its samples")


VERDICTS = [
    *("benchmark_2gpu", "replay/benchmark_2gpu", "captured/benchmark_2gpu", "machine/benchmark_1gpu"),
    # those over the variation of rows, of two timings, and of programs
    *("../2cpu/sharding", "../2cpu/pipeline", "../2cpu/checkpoints", "compilation_mlp", "compilation_bert"),
]


@pytest.mark.parametrize("name", VERDICTS)
def test_no_verdict_of_a_kept_record_can_be_removed_everywhere(name):
    for path in sorted((RESULTS / "h200").glob(f"{name}*.json")):
        record = json.loads(path.read_text())
        assert audit.problems(record) == []
        assert bool(audit.problems(cleaned(record))) is not record["verdict"]["valid"]


def test_a_launch_bound_run_and_a_loss_that_is_no_number_are_not_valid():
    path = next(path for path in (RESULTS / "h200/replay").glob("*.json") if '"launch_bound"' in path.read_text())
    record = cleaned(json.loads(path.read_text()))
    record["config"]["ranks_per_gpu"] = 1
    for engine in ("ddp", "fsdp"):
        record["results"]["training"][engine]["timing"] = timing.summary([1.0] * 10)
    doubling = record["results"]["training"]["doubling"]
    doubling["twice"]["timing"] = timing.summary([1.01 * s for s in doubling["once"]["timing"]["samples_s"]])
    assert any("launch-bound" in line for line in audit.problems(record))
    doubling["interval_95"] = [1.9, 2.0]
    assert any("launch-bound" in line for line in audit.problems(record))
    doubling["twice"]["timing"] = timing.summary([2 * s for s in doubling["once"]["timing"]["samples_s"]])
    assert not any("verdict" in line for line in audit.problems(record))
    record["results"]["training"]["ddp"]["loss"] = float("nan")
    assert any("the loss is nan" in line for line in audit.problems(record))


HOSTS = [{"host": "a", "gpu": None}] * 4
PLACE = derived.Place("results.x", {"suite": "x", "world_size": 4, "config": {}, "environment": {"ranks": HOSTS}})
SLOW_RANK = {"rank": 3, "host": "a", "gpu": None, "p50_s": 0.08, "others_s": 0.02, "ratio": 4.0, "node": False}
FACTS = {
    "efficiency": {"efficiency": 1.06},
    "slow": {"exposed": {"slow": [SLOW_RANK]}},
    "cv": {"unit": "ms", "samples": [1.0, 2.0, 3.0]},
}


@pytest.mark.parametrize("code", FACTS)
def test_a_verdict_has_the_reasons_of_its_part(code):
    part = FACTS[code] | {"verdict": {"valid": True, "reasons": [], "unchecked": []}}
    (line,) = audit.contradicted(part, PLACE)
    (reason,) = verdict.judge(*derived.facts(part, PLACE))["reasons"]
    assert reason["code"] == code
    assert reason["message"] in line


def test_a_slow_pair_cannot_be_removed():
    samples = [[None if a == b else [0.005 if (a, b) == (1, 2) else 0.001] for b in range(4)] for a in range(4)]
    part = {"size_bytes": 1000, "samples_s": samples, "gb_per_s": [], "slow": {"pairs": [], "ranks": []}}
    assert [(pair["from"], pair["to"]) for pair in derived.pairs(part, PLACE)["slow"]["pairs"]] == [(1, 2)]


@pytest.mark.parametrize("valid", [True, False])
def test_a_verdict_follows_from_its_reasons(valid):
    reasons = [{"code": "cv", "message": "", "where": ""}] if valid else []
    part = {"verdict": {"valid": valid, "reasons": reasons, "unchecked": []}}
    record = json.loads(RECOVERY.read_text())
    record["results"]["on"] |= part
    assert f"verdict.valid is {valid}" in audit.problems(record)[0]


def test_a_report_marks_an_edited_transformer_record(tmp_path):
    """Its FLOPs follow from its sizes, which only its own suite knows."""
    data = transformer()
    for key, part in (
        ("numerator_flops_per_s", data["results"]["summary"]["mfu"]),
        ("mfu", data["results"]["summary"]["mfu"]),
    ):
        part[key] *= 1.5
    read = reading.read(save(tmp_path, "a", data))
    assert read.data["verdict"]["valid"]
    assert not read.valid
