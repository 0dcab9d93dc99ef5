"""Checkpoints of torch.distributed.checkpoint, written by torch in two processes: the same values, and no code runs."""

from __future__ import annotations

import contextlib
import os
import pathlib
import pickle
import random
import shutil

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

import gt
from gt.ops.system import file_blocks
from gt.saving import distributed, stored
from gt.saving.pickled_data import PickledCall, parse
from gt.testing import Cluster
from tests.support.processes import Process, free_port
from tests.test_sharding import signals

__all__ = ["signals"]

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """(the checkpoint, its tensors by name)"""
    folder = tmp_path_factory.mktemp("distributed")
    settings = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    with contextlib.ExitStack() as stack:
        ranks = []
        for rank in range(2):
            arguments = ("-m", "tests.support.distributed_checkpoint", str(folder))
            ranks.append(Process(*arguments, RANK=str(rank), **settings))
            stack.callback(ranks[-1].close)
        for process in ranks:
            assert process.end() == 0, process.output
    return str(folder / "checkpoint"), torch.load(folder / "whole.pt")


def same(ours, theirs):
    if theirs.dtype is torch.bfloat16:
        ours, theirs = ours.float(), theirs.float()
    return ours.detach().numpy().tobytes() == theirs.contiguous().numpy().tobytes()


def lookup(state, name):
    """The tensor of a nested state; the names of parameters contain dots."""
    for key in state:
        if name == key:
            return state[key]
        if name.startswith(f"{key}."):
            return lookup(state[key], name.removeprefix(f"{key}."))
    raise KeyError(name)


@pytest.mark.parametrize(("backend", "workers"), [("torch", 1), ("torch", 3)])
def test_all_values(written, backend, workers):
    path, whole = written
    with Cluster(workers=workers, backend=backend).client():
        state = gt.load(path)
        for name, value in whole.items():
            assert same(lookup(state, name), value), name
        assert state["step"] == 7
        assert state["names"][0] == "a"
        assert state["names"][1].tolist() == [1, 1]
        assert state["empty"].shape == (0, 3)
        assert state["optimizer"]["param_groups"][0]["lr"] == 0.01
        model = gt.nn.Sequential(gt.nn.Linear(65, 301), gt.nn.GELU(), gt.nn.Linear(301, 7))
        model.load_state_dict(state["model"])


def test_through_the_client(written, monkeypatch):
    monkeypatch.setattr(stored, "read_on_workers", lambda *args: None)
    path, whole = written
    with Cluster().client():
        state = gt.load(path)
        assert all(same(lookup(state, name), value) for name, value in whole.items())


@pytest.mark.parametrize("signal", ["all", "tp", "grid", "three", "copies"])
def test_onto_sharded_tensors(written, signals, monkeypatch, signal):
    """Each worker reads what its block has in common with the chunks, and nothing else."""
    path, whole = written
    read = []
    plain = file_blocks._read_exactly
    monkeypatch.setattr(file_blocks, "_read_exactly", lambda f, at, b: read.append(len(b)) or plain(f, at, b))
    with Cluster(workers=4, backend="numpy").client():
        names = ["rows", "columns", "copies"]
        into = {
            name: gt.signal.tensor(gt.zeros(5, 40_000).to(getattr(gt, str(whole[name].dtype)[6:])), signal).clone()
            for name in names
        }
        before = {name: x.layout for name, x in into.items()}
        loaded = gt.load(path, into=into)
        for name in names:
            assert same(into[name], whole[name]), name
            assert into[name].layout == before[name]
        assert loaded["step"] == 7
        assert "turned" not in loaded
    copies = 2 if signal == "copies" else 1
    assert sum(read) == copies * sum(whole[name].nbytes for name in names)


def test_views_and_scalars_as_targets(written):
    path, whole = written
    with Cluster(workers=2, backend="numpy").client():
        base = gt.zeros(2, 5, 40_000, dtype=gt.int32)
        scalar = gt.zeros(())
        gt.load(path, into={"rows": base[1], "scalar": scalar})
        assert same(base[1], whole["rows"])
        assert base[0].sum().item() == 0
        assert scalar.item() == 2.5
        with pytest.raises(KeyError, match="has no tensor 'other'"):
            gt.load(path, into={"other": gt.zeros(1)})
        with pytest.raises(gt.ShapeError, match="'rows' is"):
            gt.load(path, into={"rows": gt.zeros(1)})


# -- what must not be read --------------------------------------------------------------------


class Malicious:
    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return os.system, (f"touch {self.file}",)


def test_no_code_of_a_pickle_runs(tmp_path):
    evil = tmp_path / "evil"
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        data = pickle.dumps({"x": Malicious(evil)}, protocol)
        found = parse(data)["x"]
        assert isinstance(found, PickledCall)
        assert found.name == "posix.system"
        (tmp_path / ".metadata").write_bytes(data)
        with Cluster(backend="numpy").client(), pytest.raises(ValueError, match="no Metadata where one was expected"):
            gt.load(tmp_path)
    dcp.save({"x": torch.ones(3), "object": Malicious(evil)}, checkpoint_id=str(tmp_path / "checkpoint"))
    with Cluster(backend="numpy").client(), pytest.raises(ValueError, match="runs no code of a file"):
        gt.load(tmp_path / "checkpoint")
    assert not evil.exists()


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_plain_data(protocol):
    data = {
        "a": [1, -5, 2**40, 2**70, 1.5, None, True, False],
        ("b", 2): (1, (2, 3, 4, 5)),
        "long": "x" * 300,
        "y": b"z",
    }
    data["again"] = data["a"]
    if protocol == 2:
        del data["y"]  # there bytes are a call
    assert parse(pickle.dumps(data, protocol)) == data


def test_damaged_descriptions(written, tmp_path):
    """Whatever a description says, the error is a ValueError, or the file that it names does not exist."""
    path, _ = written
    whole = pathlib.Path(path, ".metadata").read_bytes()
    rng = random.Random(0)
    outcomes = set()
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        (tmp_path / ".metadata").write_bytes(data[: rng.randrange(len(data))] if rng.random() < 0.2 else data)
        try:
            distributed.describe(str(tmp_path))
            outcomes.add("read")
        except ValueError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


def damaged(written, tmp_path, change):
    path, _ = written
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    files = sorted(copy.glob("*.distcp"))
    change(files)
    with Cluster(backend="numpy").client():
        return gt.load(copy)


def test_damaged_chunks(written, tmp_path):
    with pytest.raises(ValueError, match="cannot be read"):
        damaged(written, tmp_path / "a", lambda files: files[0].write_bytes(b"x" * 100))
    with pytest.raises(FileNotFoundError):
        damaged(written, tmp_path / "b", lambda files: files[0].unlink())
    with pytest.raises(ValueError, match=r"cannot be read|ends before"):
        damaged(written, tmp_path / "c", lambda files: os.truncate(files[1], files[1].stat().st_size // 2))


def test_chunks_that_overlap_or_leave_gaps():
    item = distributed.Item("", 0, 0)
    grid = [((r, c), (2, 3), item) for r in (0, 2, 4) for c in (0, 3)]
    assert not distributed._overlap(grid)
    assert distributed._overlap([*grid, ((5, 5), (1, 1), item)])
    assert distributed._overlap([((), (), item), ((), (), item)])
    assert not distributed._overlap([((0, n), (np.iinfo(int).max, 1), item) for n in range(2000)])
