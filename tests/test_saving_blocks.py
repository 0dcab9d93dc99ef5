"""Files of sharded tensors: each worker writes and reads its own blocks, and the values are the same in any layout."""

from __future__ import annotations

import io
import json
import os

import numpy as np
import pytest
import torch

import gt
from gt.ops.system.file_blocks import runs
from gt.saving import folders, stored, writing
from gt.testing import Cluster
from tests.test_cluster import seeds
from tests.test_sharding import signals

__all__ = ["signals"]

safetensors = pytest.importorskip("safetensors.torch")
pytestmark = pytest.mark.filterwarnings("ignore")

#: shapes whose blocks are rows, columns of any width, empty, and uneven
SHAPES = [(300, 130), (7, 5000), (1, 20_000), (3, 4096, 2), (20_001,), (0, 5), (5,), ()]
DTYPES = ["float32", "int16", "bool", "float64", "complex64", "uint8"]


def test_runs_are_the_bytes_of_a_block():
    for seed in range(300):
        check_runs(np.random.default_rng(seed))


def check_runs(rng):
    whole = tuple(map(int, rng.integers(1, 6, size=rng.integers(1, 5))))
    starts = tuple(int(rng.integers(0, n)) for n in whole)
    sizes = tuple(int(rng.integers(0, n - s + 1)) for n, s in zip(whole, starts, strict=True))
    x = np.arange(np.prod(whole), dtype=np.int32).reshape(whole)
    block = np.ascontiguousarray(x[tuple(slice(s, s + n) for s, n in zip(starts, sizes, strict=True))])
    found = bytearray(block.nbytes)
    covered = 0
    for at, begin, length in runs(starts, sizes, whole, 4):
        found[begin : begin + length] = x.tobytes()[at : at + length]
        covered += length
    assert (bytes(found), covered) == (block.tobytes(), block.nbytes)


def values(seed):
    rng = np.random.default_rng(seed)
    made = {}
    for k, shape in enumerate(SHAPES):
        dtype = DTYPES[(k + seed) % len(DTYPES)]
        made[f"x{k}"] = (rng.standard_normal(shape) * 100).astype(dtype)
    return made


def placed(arrays, names, rng):
    """Tensors of these values, each in the layout of some signal."""
    result = {}
    for key, array in arrays.items():
        name = names[rng.integers(len(names) + 1) - 1]
        x = gt.tensor(array)
        result[key] = gt.signal.tensor(x, name).clone() if rng.integers(4) else x
    return result


@seeds(12)
def test_any_layout_gives_the_same_file(signals, tmp_path, seed):
    rng = np.random.default_rng(seed)
    arrays = values(seed)
    with Cluster(workers=4, seed=seed, backend=("torch", "numpy")[seed % 2]).client():
        gt.save(placed(arrays, signals, rng), tmp_path / "x")
        gt.save(placed(arrays, signals, rng), f"{tmp_path}/folder/", max_shard_size=100_000)
        into = {key: x.zero_() for key, x in placed(arrays, signals, rng).items()}
        before = {key: repr(x.layout) for key, x in into.items()}
        again = gt.load(tmp_path / "x", into=into)
        for key, array in arrays.items():
            assert into[key].numpy().tobytes() == array.tobytes(), key
            assert again[key].numpy().tobytes() == array.tobytes(), key
            assert repr(into[key].layout) == before[key] or "P(" in before[key]
    theirs = safetensors.load_file(tmp_path / "x")
    assert {key: x.numpy().tobytes() for key, x in theirs.items()} == {k: a.tobytes() for k, a in arrays.items()}
    with Cluster(workers=3, seed=seed, backend="numpy").client():
        for key, x in [*gt.load(tmp_path / "x").items(), *gt.load(tmp_path / "folder").items()]:
            assert x.numpy().tobytes() == arrays[key].tobytes()


def test_no_worker_gets_more_than_its_block(signals, tmp_path):
    """A tensor may be larger than the memory of one worker: neither saving nor loading gathers it."""
    with Cluster(workers=4).client():
        with gt.signal.context("all"):
            x, into = gt.ones(4096, 64), gt.zeros(4096, 64)
            gt.save({"x": x}, tmp_path / "x")
            gt.load(tmp_path / "x", into={"x": into})
            loaded = gt.load(tmp_path / "x")["x"]
        for y in (x, into, loaded):
            assert "a copy is kept" not in str(gt.debug.explain(y))
        assert into.sum().item() == loaded.sum().item() == x.numel()


def test_terms_of_a_sum_are_saved_as_their_sum(signals, tmp_path):
    with Cluster(workers=4, backend="numpy").client():
        a = gt.signal.tensor(gt.ones(300, 400), "tp").clone()
        b = gt.signal.tensor(gt.ones(400, 200), "dp").clone()
        product = a @ b
        assert "P(sum)" in repr(product.layout)
        gt.save({"x": product}, tmp_path / "x")
        assert "P(sum)" in repr(product.layout)
        assert (product == 400).all()
    assert (safetensors.load_file(tmp_path / "x")["x"] == 400).all()


def spans(monkeypatch, module, name):
    """(offset, length) of every call of os.pwrite or of a read."""
    seen = []
    plain = getattr(module, name)

    def noted(fd, data, at):
        seen.append((at, len(data)))
        return plain(fd, data, at)

    monkeypatch.setattr(module, name, noted)
    return seen


@pytest.mark.parametrize("signal", ["all", "copies", "grid", "nested", "column", "alone", "tp"])
def test_every_byte_is_written_once(signals, tmp_path, monkeypatch, signal):
    with Cluster(workers=4, backend="numpy").client():
        x = gt.signal.tensor(gt.arange(400_000).reshape(400, 1000), signal).clone()
        written = spans(monkeypatch, os, "pwrite")
        gt.save({"x": x}, tmp_path / "x")
        monkeypatch.undo()
        workers = len(x.layout.workers)
        assert (gt.load(tmp_path / "x")["x"] == x).all()
    begin = min(at for at, _ in written)
    assert sum(length for _, length in written) == x.nbytes
    covered = np.zeros(x.nbytes, bool)
    for at, length in written:
        covered[at - begin : at - begin + length] = True
    assert covered.all()
    assert workers == 1 or max(length for _, length in written) <= x.nbytes // workers


@pytest.mark.parametrize(("signal", "share"), [("all", 4), ("dp", 2), ("grid", 4), ("tp", 2)])
def test_a_worker_reads_only_its_block(signals, tmp_path, monkeypatch, signal, share):
    from gt.ops.system import file_blocks

    with Cluster(workers=4, backend="numpy").client():
        x = gt.arange(2_000_000).reshape(200, 10_000)
        gt.save({"x": x}, tmp_path / "x")
        target = gt.signal.tensor(gt.zeros(200, 10_000, dtype=gt.int64), signal).clone()
        sizes = []
        plain = file_blocks._read_exactly
        monkeypatch.setattr(file_blocks, "_read_exactly", lambda f, at, b: sizes.append(len(b)) or plain(f, at, b))
        gt.load(tmp_path / "x", into={"x": target})
        assert (target == x).all()
        assert target.layout.placements != ("R",)
    assert sum(sizes) == x.nbytes
    assert max(sizes) <= x.nbytes // share


def test_auto_sharded_files_are_read_in_blocks(tmp_path):
    with Cluster(workers=2, backend="numpy").client():
        gt.save({"x": gt.arange(100_000).reshape(1000, 100)}, tmp_path / "x")
        gt.auto_shard()
        try:
            x = gt.load(tmp_path / "x")["x"]
            assert x.layout.placements == ("S(0)",)
            assert (x == gt.arange(100_000).reshape(1000, 100)).all()
        finally:
            gt.auto_shard(False)


def test_a_save_keeps_no_copies(signals, tmp_path):
    cluster = Cluster(workers=4, backend="numpy")
    with cluster.client():
        x = gt.signal.tensor(gt.ones(400, 1000), "copies").clone()
        (client,) = cluster.dispatcher.clients.values()
        gt.save({"x": x}, tmp_path / "x")
        assert not any(client.copies.values())


def test_loading_into_a_model_and_its_optimizer(tmp_path):
    def model():
        gt.manual_seed(3)
        net = gt.nn.Linear(200, 300)
        opt = gt.optim.AdamW(net.parameters(), lr=0.1)
        net(gt.randn(4, 200)).sum().backward()
        opt.step()
        return net, opt

    with Cluster(workers=2, backend="numpy").client():
        net, opt = model()
        state = {"model": net.state_dict(), "optimizer": opt.state_dict(), "step": 7}
        gt.save(state, f"{tmp_path}/x/")
        kept = net.weight.detach().numpy().copy(), opt.state[net.weight]["exp_avg"].numpy().copy()
        with gt.no_grad():
            net.weight.zero_()
            opt.state[net.weight]["exp_avg"].zero_()
        loaded = gt.load(tmp_path / "x", into={"model": net.state_dict(), "optimizer": opt.state_dict()})
        assert loaded["step"] == 7
        assert (net.weight.detach().numpy() == kept[0]).all()
        assert (opt.state[net.weight]["exp_avg"].numpy() == kept[1]).all()
        assert net.weight.requires_grad


@pytest.mark.parametrize("streamed", [False, True])
def test_into_refuses_what_does_not_fit(tmp_path, monkeypatch, streamed):
    with Cluster(backend="numpy").client():
        if streamed:
            monkeypatch.setattr(stored, "read_on_workers", lambda *args: None)
        gt.save({"x": gt.ones(2, 3), "y": gt.ones(3)}, tmp_path / "x")
        with pytest.raises(KeyError, match=r"has no tensor 'z'; it has x, y"):
            gt.load(tmp_path / "x", into={"z": gt.ones(2)})
        with pytest.raises(gt.ShapeError, match=r"'x' is float32\[2,3\] in the file, and float32\[3,2\]"):
            gt.load(tmp_path / "x", into={"x": gt.ones(3, 2)})
        with pytest.raises(TypeError, match="is complex128"):
            gt.load(tmp_path / "x", into={"x": gt.ones(2, 3, dtype=gt.complex128)})
        with pytest.raises(TypeError, match="takes a path"):
            gt.load(io.BytesIO((tmp_path / "x").read_bytes()), into={"x": gt.ones(2, 3)})
        torch.save({"x": torch.ones(2)}, tmp_path / "y.pt")
        with pytest.raises(ValueError, match="reads safetensors and folders"):
            gt.load(tmp_path / "y.pt", into={"x": gt.ones(2)})
        assert list(gt.load(tmp_path / "x", into={"y": gt.zeros(3)})) == ["y"]
        base = gt.zeros(2, 2, 3)
        gt.load(tmp_path / "x", into={"x": base[1], "y": base[0, 0]})  # views: the base is written
        assert base.tolist() == [[[1, 1, 1], [0, 0, 0]], [[1, 1, 1], [1, 1, 1]]]


# -- folders ---------------------------------------------------------------------------------


def test_a_folder_is_what_other_tools_read(tmp_path):
    with Cluster(workers=2, backend="numpy").client():
        state = {f"layer{k}.weight": gt.full((100, 100), k) for k in range(5)}
        gt.save(state, f"{tmp_path}/new/", max_shard_size="100KB")
        again = gt.load(tmp_path / "new")
        assert list(again) == list(state)
        assert all((again[key] == x).all() for key, x in state.items())
        gt.save({"a": gt.ones(1), "nested": [gt.ones(2), 3]}, tmp_path / "new")
        assert gt.load(tmp_path / "new")["nested"][1] == 3
        assert sorted(os.listdir(tmp_path / "new"))[1:] == [folders.INDEX]  # the old files are gone
        gt.save(state, tmp_path / "new", max_shard_size=2 << 16)
    index = json.loads((tmp_path / "new" / folders.INDEX).read_text())
    assert index["metadata"]["total_size"] == 5 * 80_000
    files = sorted(set(index["weight_map"].values()))
    assert len(files) == 5
    for name, file in index["weight_map"].items():
        assert (safetensors.load_file(tmp_path / "new" / file)[name] == int(name[5])).all()
    assert {*os.listdir(tmp_path / "new")} == {*files, folders.INDEX}


def test_the_hub_library_reads_a_folder_and_writes_one(tmp_path):
    hub = pytest.importorskip("huggingface_hub")
    theirs = torch.nn.Sequential(*(torch.nn.Linear(100, 100) for _ in range(4)))
    (tmp_path / "theirs").mkdir()
    hub.save_torch_model(theirs, tmp_path / "theirs", max_shard_size="50KB")
    assert len(os.listdir(tmp_path / "theirs")) == 5
    with Cluster(workers=2, backend="numpy").client():
        gt.save(gt.load(tmp_path / "theirs"), f"{tmp_path}/ours/", max_shard_size="50KB")
    again = torch.nn.Sequential(*(torch.nn.Linear(100, 100) for _ in range(4)))
    hub.load_torch_model(again, tmp_path / "ours")
    for key, value in theirs.state_dict().items():
        assert torch.equal(again.state_dict()[key], value), key


def test_a_folder_of_one_file(tmp_path):
    with Cluster(backend="numpy").client():
        gt.save({"x": gt.ones(3)}, tmp_path / "model.safetensors")
        assert gt.load(tmp_path)["x"].tolist() == [1, 1, 1]


INDEXES = {
    "no json": "nope",
    "list": "[]",
    "no map": "{}",
    "outside": '{"weight_map": {"x": "../x"}}',
    "other tensor": '{"weight_map": {"z": "model.safetensors"}}',
}


@pytest.mark.parametrize("name", INDEXES)
def test_bad_indexes(tmp_path, name):
    with Cluster(backend="numpy").client():
        gt.save({"x": gt.ones(3)}, tmp_path / "model.safetensors")
        (tmp_path / folders.INDEX).write_text(INDEXES[name])
        with pytest.raises(ValueError, match=str(tmp_path)):
            gt.load(tmp_path)


def test_bad_folders(tmp_path):
    with Cluster(backend="numpy").client():
        with pytest.raises(FileNotFoundError, match=r"is a folder without model\.safetensors\.index\.json"):
            gt.load(tmp_path)
        (tmp_path / folders.INDEX).write_text('{"weight_map": {"x": "gone.safetensors"}}')
        with pytest.raises(FileNotFoundError, match="gone"):
            gt.load(tmp_path)
        with pytest.raises(ValueError, match="this format is one file"):
            gt.save({}, tmp_path, format="torch")
        for name in ("model.safetensors", ".metadata"):
            (tmp_path / "other").mkdir()
            (tmp_path / "other" / name).touch()
            with pytest.raises(FileExistsError, match=f"has {name}, which readers would take instead"):
                gt.save({}, tmp_path / "other")
            (tmp_path / "other" / name).unlink()
            (tmp_path / "other").rmdir()
        for size in ("much", 0, "5 lightyears"):
            with pytest.raises(ValueError, match=r"save\(max_shard_size="):
                gt.save({}, tmp_path, max_shard_size=size)


def test_a_save_into_a_folder_that_fails_leaves_the_old_one(tmp_path, monkeypatch):
    with Cluster(backend="numpy").client():
        gt.save({"x": gt.ones(100), "y": gt.ones(100)}, tmp_path, max_shard_size=400)
        before = sorted(os.listdir(tmp_path))
        plain = os.replace
        for last in range(3):
            calls = []
            monkeypatch.setattr(
                writing.os, "replace", lambda *a, c=calls, n=last: c.append(1) or (1 / 0 if len(c) > n else plain(*a))
            )
            with pytest.raises(ZeroDivisionError):
                gt.save({"x": gt.zeros(100), "y": gt.zeros(100)}, tmp_path, max_shard_size=400)
            monkeypatch.undo()
            assert sorted(os.listdir(tmp_path)) == before
            assert gt.load(tmp_path)["x"].sum().item() == 100


def test_a_reader_whose_files_are_replaced_reads_the_new_index(tmp_path, monkeypatch):
    with Cluster(backend="numpy").client():
        gt.save({"x": gt.zeros(10)}, f"{tmp_path}/a/")
        plain, left = folders._read_index, [2]

        def read_index(path):
            index = plain(path)
            if left[0]:
                left[0] -= 1
                gt.save({"x": gt.full((10,), 7 - left[0])}, f"{tmp_path}/a/")
            return index

        monkeypatch.setattr(folders, "_read_index", read_index)
        assert gt.load(tmp_path / "a")["x"].tolist() == [7] * 10


# -- replaced files and leftovers -------------------------------------------------------------


def test_a_file_that_is_replaced_while_it_is_read(tmp_path, monkeypatch):
    """The workers refuse the new one, and the client reads the old one, which it has open."""
    with Cluster(backend="numpy").client():
        x = gt.ones(100, 1000)
        gt.save({"x": x}, tmp_path / "x")
        gt.save({"x": x * 2}, tmp_path / "new")
        plain = stored.read_on_workers

        def replaced(*args):
            os.replace(tmp_path / "new", tmp_path / "x")
            return plain(*args)

        monkeypatch.setattr(stored, "read_on_workers", replaced)
        assert (gt.load(tmp_path / "x")["x"] == 1).all()


def test_leftovers_of_a_killed_process_are_removed(tmp_path):
    with Cluster(backend="numpy").client():
        old, new, locked = (tmp_path / (writing.MARK + str(k) * 32) for k in range(3))
        for path in (old, new, locked):
            path.write_bytes(b"x")
        for path in (old, locked):
            os.utime(path, (1, 1))
        import fcntl

        with open(locked, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            gt.save({"x": gt.ones(1)}, tmp_path / "x")
        assert (old.exists(), new.exists(), locked.exists()) == (False, True, True)
