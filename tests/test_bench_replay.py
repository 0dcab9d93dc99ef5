"""The collectives of a training step: recorded, written to a file, and run again on real ranks."""

from __future__ import annotations

import json

import pytest

from benchmarks.core import audit, results
from benchmarks.core.ranks import DONE, BadInput
from benchmarks.distributed import models, recording, replay
from tests.support.launches import launcher, only_record


def entry(op="allreduce", size=1024, dtype="fp32", group=(0, 1)):
    return {"op": op, "bytes": size, "dtype": dtype, "group": list(group)}


def test_one_order_contains_that_of_every_rank():
    across, left, right, last = (
        entry(size=8),
        entry(size=16, group=[0, 1]),
        entry(size=24, group=[2, 3]),
        entry(size=32, group=[0, 1, 2, 3]),
    )
    across["group"] = [1, 2]
    by_rank = [[left, last], [across, left, last], [across, right, last], [right, last]]
    order = recording.merged(by_rank)
    assert len(order) == 4
    for rank, own in enumerate(by_rank):
        assert [each for each in order if rank in each["group"]] == own


def test_ranks_that_do_not_agree_are_an_error():
    with pytest.raises(AssertionError, match="do not agree on the next collective"):
        recording.merged([[entry(size=8)], [entry(size=16)]])
    with pytest.raises(AssertionError, match="do not agree"):
        recording.merged([[entry()], []])


def test_a_file_is_read_as_it_was_written(tmp_path):
    path = str(tmp_path / "step.json")
    steps = {
        "ddp": {"left_out": {"barrier": 1}, "collectives": [entry(), entry("allgather")]},
        "none": {"left_out": {}, "collectives": []},
    }
    recording.write(path, 2, "a test", steps)
    assert recording.read(path, 2)["steps"] == steps
    with pytest.raises(BadInput, match="File exists"):
        recording.write(path, 2, "a test", steps)
    with pytest.raises(BadInput, match="recorded on 2 ranks, and this run has 4"):
        recording.read(path, 4)


def described(**changes):
    return json.dumps({"format": recording.FORMAT, "ranks": 2, "source": "", "steps": {}} | changes)


def of(**changes):
    return described(steps={"ddp": {"left_out": {}, "collectives": [entry() | changes]}})


BAD = {
    "no JSON": ("{", "not JSON"),
    "something else": ("{}", "no file of collectives"),
    "a list": ("[]", "no file of collectives"),
    "no steps": (described(steps=None), "AttributeError"),
    "no collectives": (described(steps={"ddp": {}}), "KeyError: 'collectives'"),
    "an unknown op": (of(op="sum"), r"steps.ddp.collectives\[0\]: op 'sum': one of allreduce, allgather"),
    "an unknown dtype": (of(dtype="fp4"), "dtype 'fp4': one of fp32"),
    "a rank too many": (of(group=[0, 2]), r"group \[0, 2\]: different ranks from 0 to 1"),
    "a rank twice": (of(group=[0, 0]), "different ranks"),
    "half an element": (of(bytes=1026), "bytes 1026: a multiple of 4"),
    "no even parts": (of(op="allgather", bytes=1028), "bytes 1028: a multiple of 8"),
}


@pytest.mark.parametrize(("text", "message"), BAD.values(), ids=BAD)
def test_a_bad_file_is_refused(text, message, tmp_path):
    (tmp_path / "step").write_text(text)
    with pytest.raises(BadInput, match=message):
        recording.read(str(tmp_path / "step"), 2)


def test_operations_are_counted():
    entries = [entry(), entry(size=512), entry("allgather", group=[0])]
    assert [(row["op"], row["ranks"], row["count"], row["bytes"]) for row in replay.by_operation(entries)] == [
        ("allreduce", 2, 2, 1536),
        ("allgather", 1, 1, 1024),
    ]


@pytest.mark.long
def test_a_training_step_is_recorded_and_replayed(stack, tmp_path):
    launch, path = launcher(stack), tmp_path / "step.json"
    words = ["--iters", 3, "--warmup", 1]
    process = launch("--benchmark", "training", *words, "--record", path, "--output-dir", tmp_path / "training")
    assert process.end() == DONE, process.output
    recorded = json.loads(path.read_text())
    steps = recorded["steps"]
    gradients = 4 * models.SHAPES["tiny"].parameters()
    assert (recorded["ranks"], recorded["source"]) == (2, "tiny, fp32, 8 samples a rank")
    assert steps["ddp"]["collectives"] == [entry(size=gradients)]
    sizes = {
        op: [e["bytes"] for e in steps["fsdp"]["collectives"] if e["op"] == op] for op in ("allgather", "reducescatter")
    }
    assert sum(sizes["reducescatter"]) == gradients  # one per block, and one for the rest
    assert (len(sizes["reducescatter"]), max(sizes["allgather"])) == (3, max(sizes["reducescatter"]))

    # every kind of collective, and a group of one rank, at the end of a step of FSDP
    more = [entry("broadcast", dtype="bf16"), entry("alltoall", dtype="int64"), entry("allreduce", group=[1])]
    steps["fsdp"]["collectives"] += more
    path.write_text(json.dumps(recorded))
    process = launch("--benchmark", "replay", *words, "--replay", path, "--output-dir", tmp_path / "replay")
    assert process.end() == DONE, process.output
    data = only_record(tmp_path / "replay")[1]
    assert results.problems(data) == []
    assert audit.problems(data) == []
    part = data["results"]["replay"]
    assert (part["ddp"]["bytes"], part["ddp"]["timing"]["count"]) == (gradients, 3)
    assert part["fsdp"]["collectives"] == len(steps["fsdp"]["collectives"])
    assert [part[name]["wrong_elements"] for name in ("ddp", "fsdp")] == [0, 0]
    assert "Replay of the collectives of a step (tiny, fp32, 8 samples a rank)" in process.output


def test_each_collective_runs_in_its_own_group(monkeypatch):
    """A rank in two groups, and one group that it is not in."""
    worlds = {(0, 1): "pair", (0, 2): "other", (1, 2): None}
    make_operation = lambda world, count, dtype, number: (world, number)
    monkeypatch.setattr(replay, "groups", lambda world, entries: worlds)
    monkeypatch.setattr(replay, "COLLECTIVES", {"allreduce": {"in place": make_operation}})
    entries = [{"op": "allreduce", "bytes": 8, "dtype": "fp32", "group": [*ranks]} for ranks in worlds]
    assert replay.prepare(None, entries) == [("pair", 0), ("other", 1)]
