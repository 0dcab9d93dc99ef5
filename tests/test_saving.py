"""Files: the same tensors come back, other programs read them, and a bad one does no harm."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
import torch

import gt
from gt.client.tensor.emit import call_with
from gt.ops import OPS
from gt.ops.system.files import MARK, bytes_torch
from gt.saving import stored, writing
from gt.testing import Cluster

safetensors = pytest.importorskip("safetensors.torch")


@pytest.fixture(params=["torch", "numpy"])
def session(request):
    with Cluster(backend=request.param).client() as session:
        yield session


@pytest.fixture
def model():
    with Cluster().client():
        yield lambda nn: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))


def test_a_state_dict_is_exchanged_with_torch(model, tmp_path):
    theirs, ours = model(torch.nn), model(gt.nn)
    safetensors.save_file(theirs.state_dict(), tmp_path / "a.safetensors")
    ours.load_state_dict(gt.load(tmp_path / "a.safetensors"))
    x = np.random.default_rng(0).random((5, 3), dtype=np.float32)
    np.testing.assert_allclose(ours(gt.tensor(x)).detach().numpy(), theirs(torch.tensor(x)).detach().numpy(), rtol=1e-5)
    gt.save(ours.state_dict(), tmp_path / "b.safetensors")
    again = safetensors.load_file(tmp_path / "b.safetensors")
    for key, value in theirs.state_dict().items():
        if "running" not in key and "tracked" not in key:  # both have seen a batch since
            assert torch.equal(again[key], value)
    theirs.load_state_dict(again)


def test_the_bytes_of_one_element_with_a_stride():
    """torch reports it as contiguous, but cannot view it as bytes."""
    x = torch.arange(6.0)[2::2][:1]
    assert x.stride() == (2,)
    assert bytes(bytes_torch(torch, x)) == np.float32(2).tobytes()


@pytest.mark.parametrize(
    "dtype",
    ["float64", "float32", "float16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64", "complex128"],
)
@pytest.mark.parametrize("streamed", [False, True])
def test_every_dtype_and_shape(session, tmp_path, monkeypatch, dtype, streamed):
    if streamed:
        monkeypatch.setattr(writing, "_write_on_workers", lambda *args: False)
        monkeypatch.setattr(stored, "read_on_workers", lambda *args: None)
    saved = {f"x{k}": gt.ones(shape).to(getattr(gt, dtype)) for k, shape in enumerate([(2, 3), (), (0, 4), (7,)])}
    saved["view"] = gt.arange(6).reshape(2, 3).t()
    gt.save(saved, tmp_path / "x")
    back = gt.load(tmp_path / "x")
    assert list(back) == list(saved)
    for key, x in saved.items():
        assert back[key].dtype is x.dtype
        assert back[key].shape == x.shape
        assert (back[key] == x).all()
    theirs = safetensors.load_file(tmp_path / "x")
    assert torch.is_complex(theirs["x0"]) == (dtype == "complex64")  # the format has no complex128: saved as pairs
    assert torch.equal(theirs["view"], torch.arange(6).reshape(2, 3).t())
    assert os.listdir(tmp_path) == ["x"]


def test_bfloat16(tmp_path):
    with Cluster().client():
        x = gt.tensor([1.5, -2.0, 3e38]).bfloat16()
        gt.save({"x": x}, tmp_path / "x")
        assert torch.equal(safetensors.load_file(tmp_path / "x")["x"], torch.tensor([1.5, -2.0, 3e38]).bfloat16())
        assert gt.load(tmp_path / "x")["x"].dtype is gt.bfloat16


def test_nested(tmp_path):
    with Cluster().client():
        net = gt.nn.Linear(2, 2)
        opt = gt.optim.AdamW(net.parameters(), lr=0.1)
        net(gt.ones(1, 2)).sum().backward()
        opt.step()
        everything = {
            "model": net.state_dict(), "optimizer": opt.state_dict(), "epoch": 3, "name": "run",
            "history": [1.0, None, (True, gt.float32)], 5: gt.ones(1),
        }  # fmt: skip
        gt.save(everything, tmp_path / "x")
        back = gt.load(tmp_path / "x")
        assert back["epoch"] == 3
        assert back["history"] == [1.0, None, (True, gt.float32)]
        assert back[5].item() == 1
        assert back["optimizer"]["param_groups"] == opt.state_dict()["param_groups"]
        fresh = gt.optim.AdamW(net.parameters())
        fresh.load_state_dict(back["optimizer"])
        state = fresh.state[net.weight]
        assert state["step"] == 1
        assert (state["exp_avg"] == opt.state[net.weight]["exp_avg"]).all()
        assert "model.weight" in safetensors.load_file(tmp_path / "x")
        gt.save(gt.arange(3), tmp_path / "y")
        assert gt.load(tmp_path / "y").tolist() == [0, 1, 2]
        with pytest.raises(TypeError, match=r"model\.f is a function"):
            gt.save({"model": {"f": lambda: 1}}, tmp_path / "z")
        assert not (tmp_path / "z").exists()


def test_values_do_not_pass_through_the_client(session, tmp_path, monkeypatch):
    x = gt.ones(1000, 100)
    sizes = []
    plain = session.read
    monkeypatch.setattr(session, "read", lambda n, kind: sizes.append(kind.nbytes) or plain(n, kind))
    gt.save({"x": x, "y": x * 2}, tmp_path / "x")
    assert sizes == [8]
    assert gt.load(tmp_path / "x")["y"].sum().item() == 200_000


def test_many_tensors(tmp_path):
    with Cluster(backend="numpy").client():
        gt.save({f"{k}": gt.full((2,), k) for k in range(2500)}, tmp_path / "x")
        assert gt.load(tmp_path / "x")["2499"].tolist() == [2499, 2499]


def test_a_save_that_fails_leaves_the_old_file(session, tmp_path, monkeypatch):
    gt.save({"x": gt.ones(1)}, tmp_path / "x")
    monkeypatch.setattr(writing.os, "replace", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        gt.save({"x": gt.zeros(1)}, tmp_path / "x")
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["x"]
    assert gt.load(tmp_path / "x")["x"].item() == 1


def test_a_worker_writes_only_where_the_client_could(session, tmp_path):
    """The file must have the right name and secret: a path alone is no permission."""
    secret = "0" * 32
    for name, content in (("plain", b"keep me"), (MARK + secret, b"keep me"), (MARK + "1" * 32, MARK.encode())):
        target = tmp_path / name
        target.write_bytes(content)
        request = json.dumps({"path": str(target), "secret": secret, "offset": 0}).encode()
        (status,) = call_with(OPS["save_file"], request, (gt.ones(4),), (), session)
        with pytest.raises(gt.RemoteError):
            status.item()
        assert target.read_bytes() == content


def test_a_worker_reads_only_what_the_client_could(session, tmp_path):
    target = tmp_path / "secret"
    target.write_bytes(b"x" * 64)
    stamp = {"size": 64, "changed_ns": target.stat().st_mtime_ns}
    request = json.dumps({"path": str(target), "head": 8, "proof": "0" * 64, "offsets": [0], **stamp}).encode()
    value, status = call_with(OPS["load_file"], request, (), (("types", (((4,), "uint8"),)),), session)
    for x in (value, status):
        with pytest.raises(gt.RemoteError, match="is not the file that the client sees"):
            x.numpy()


BAD = {
    "empty": b"",
    "short": b"\x10",
    "no json": (4).to_bytes(8, "little") + b"nope",
    "long": (1 << 60).to_bytes(8, "little"),
    "list": (2).to_bytes(8, "little") + b"[]",
}
ENTRIES = {
    "dtype": {"dtype": "F4", "shape": [1], "data_offsets": [0, 4]},
    "size": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]},
    "negative": {"dtype": "F32", "shape": [1], "data_offsets": [-4, 0]},
    "beyond": {"dtype": "F32", "shape": [4], "data_offsets": [0, 16]},
    "none": None,
}


@pytest.mark.parametrize("name", [*BAD, *ENTRIES])
def test_bad_files(session, tmp_path, name):
    data = BAD.get(name)
    if data is None:
        head = json.dumps({"x": ENTRIES[name]}).encode()
        data = len(head).to_bytes(8, "little") + head + b"1234"
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(ValueError, match=str(tmp_path)):
        gt.load(tmp_path / "x")
    with pytest.raises(FileNotFoundError):
        gt.load(tmp_path / "y")
