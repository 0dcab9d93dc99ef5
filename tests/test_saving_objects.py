"""What is saved beside tensors: modules, plain objects, file objects, and files for torch.load."""

from __future__ import annotations

import argparse
import dataclasses
import enum
import io
import json
import pathlib
import sys
from collections import OrderedDict

import numpy as np
import pytest
import torch

import gt
from gt.saving import objects
from gt.testing import Cluster


class Color(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    HIGH = 3


@dataclasses.dataclass(frozen=True)
class Options:
    rate: float
    sizes: tuple[int, ...] = (1, 2)


@dataclasses.dataclass(slots=True)
class Slotted:
    name: str


class History:
    def __init__(self):
        raise AssertionError("loading calls no method")


class Closing:
    def __del__(self):
        pass


class Tied(gt.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = gt.nn.Embedding(5, 3)
        self.head = gt.nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight
        self.activation = gt.nn.functional.gelu
        self.register_buffer("scale", gt.full((1,), 2.0))
        self.norm = gt.nn.BatchNorm1d(3)
        self.options = Options(0.5)

    def forward(self, x):
        return self.head(self.activation(self.norm(self.embedding(x)))) * self.scale


@pytest.fixture(autouse=True)
def session():
    with Cluster(backend="numpy").client() as session:
        yield session


def through_a_file(obj):
    file = io.BytesIO()
    gt.save(obj, file)
    file.seek(0)
    return gt.load(file)


def test_plain_objects():
    history = object.__new__(History)
    history.losses, history.itself = [1.5, float("inf")], history
    saved = {
        "args": argparse.Namespace(lr=0.1, layers=[1, 2], device=None),
        "options": Options(0.1), "slotted": Slotted("a"), "color": Color.RED, "level": Level.HIGH,
        "complex": 1 + 2j, "bytes": b"\x00\xff", "path": pathlib.Path("a/b"), "set": {1, "two"},
        "frozen": frozenset({(1, Color.RED)}), "dtype": gt.bfloat16, ("a", 1): None, "layer": gt.nn.Linear,
    }  # fmt: skip
    back = through_a_file({**saved, "history": history})
    restored = back.pop("history")
    assert back == saved
    assert type(back["level"]) is Level
    assert (restored.losses, restored.itself) == (history.losses, restored)


def test_a_module_comes_back_as_it_was(tmp_path):
    model = Tied()
    model.eval()
    model.embedding.weight.requires_grad_(False)
    gt.save(model, tmp_path / "model.safetensors")
    back = gt.load(tmp_path / "model.safetensors")
    assert type(back) is Tied
    assert not back.training
    assert back.head.weight is back.embedding.weight
    assert not back.head.weight.requires_grad
    assert back.norm.weight.requires_grad
    assert list(back.state_dict()) == list(model.state_dict())
    x = gt.tensor([0, 3, 4])
    assert back(x).tolist() == model(x).tolist()


def test_file_objects(tmp_path):
    """Several saves in one file, from its position on; also without seeking."""
    first, second = {"a": gt.arange(5), "empty": gt.zeros(0)}, [gt.ones(2, 2), 7]
    with open(tmp_path / "two", "wb") as file:
        file.write(b"before")
        gt.save(first, file)
        gt.save(second, file)
    with open(tmp_path / "two", "rb") as file:
        assert file.read(6) == b"before"
        assert gt.load(file)["a"].tolist() == [0, 1, 2, 3, 4]
        tensor, seven = gt.load(file)
        assert (tensor.tolist(), seven) == ([[1, 1], [1, 1]], 7)
    file = io.BytesIO()
    gt.save(first, file)
    with pytest.raises(ValueError, match="the file ends before 'a' does"):
        gt.load(io.BytesIO(file.getvalue()[:-8]))
    with pytest.raises(TypeError, match=r"save\(\): the file is open for text"):
        gt.save(first, io.StringIO())
    with pytest.raises(TypeError, match=r"load\(\): the file is open for text"):
        gt.load(io.StringIO())


def test_torch_reads_the_export(tmp_path):
    model = gt.nn.Sequential(gt.nn.Linear(3, 2), gt.nn.BatchNorm1d(2))
    saved = {"model": model.state_dict(), "step": 3, "half": gt.ones(2).bool(), "dtype": gt.float16}
    gt.save(saved, tmp_path / "model.pt", format="torch")
    back = torch.load(tmp_path / "model.pt", weights_only=True)
    assert (back["step"], back["dtype"], back["half"].tolist()) == (3, torch.float16, [True, True])
    theirs = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    theirs.load_state_dict(back["model"])
    np.testing.assert_array_equal(theirs[0].weight.detach().numpy(), model[0].weight.detach().numpy())
    with pytest.raises(TypeError, match=r"save its state_dict\(\)"):
        gt.save(model, tmp_path / "other.pt", format="torch")
    with pytest.raises(ValueError, match='must be "safetensors" or "torch"'):
        gt.save(model, tmp_path / "other.pt", format="pickle")
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


def test_the_export_needs_torch(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(gt.ConfigError, match="torch is not installed; pip install"):
        gt.save({"a": 1}, tmp_path / "a.pt", format="torch")


def test_nothing_is_announced_before_it_has_happened(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("gt.saving.files.os.replace", lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        gt.save({"a": gt.ones(2)}, tmp_path / "a.pt")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (Closing(), "x is a Closing, which cannot be saved, because its class has __del__"),
        (lambda: 1, "x is a function, which cannot be saved, unless it is one of GT's own"),
        (range(3), "x is a range, which cannot be saved, because it has a part that is not in its attributes"),
        (type("Local", (), {})(), "x is a Local, which cannot be saved, because its class cannot be found by its name"),
        ({Options(1.0): 1}, "a key of x is a Options, which cannot be saved there"),
    ],
)
def test_what_cannot_be_saved(value, reason):
    with pytest.raises(TypeError) as caught:
        gt.save({"x": value}, io.BytesIO())
    assert str(caught.value) == f"save(): {reason}"


@pytest.mark.parametrize(
    ("structure", "reason"),
    [
        ({"object": ["a_module:Missing", {"dict": []}]}, "a_module:Missing, which is not imported; import its class"),
        ({"object": ["os:system", {"dict": []}]}, "os:system, which is not imported"),
        ({"object": [f"{__name__}:Closing", {"dict": []}]}, "cannot be restored, because its class has __del__"),
        ({"object": ["builtins:dict", {"dict": []}]}, "cannot be restored, because it has a part"),
        ({"enum": [f"{__name__}:Color", "GREEN"]}, "has no member GREEN"),
        ({"enum": [f"{__name__}:Options", "rate"]}, "has no member rate"),
        ({"name": "os:system"}, "os:system is not a function or a layer of GT"),
        ({"name": "gt.server:main"}, "gt.server:main is not a function or a layer of GT"),
        ({"unknown": 1}, "the structure of the object is malformed"),
        ({"dict": [[{"dict": []}, 1]]}, "the structure of the object is malformed"),
        ({"same": 4}, "the structure of the object is malformed"),
        ({"tensor": "missing"}, "the structure of the object is malformed"),
    ],
)
def test_bad_structures(structure, reason):
    text = json.dumps({"__metadata__": {"gt": json.dumps(structure)}}).encode()
    with pytest.raises(ValueError, match=reason):
        gt.load(io.BytesIO(len(text).to_bytes(8, "little") + text))


def test_every_kind_that_is_written_can_be_read():
    assert set(objects.ENCODERS) - {""} <= set(objects.DECODERS)


def test_arrays_stay_arrays(tmp_path):
    """As with torch: a program that saves an array of numpy expects one back."""
    values = np.arange(6.0).reshape(2, 3)
    with Cluster().client():
        gt.save(values, tmp_path / "array.st")
        gt.save({"x": values, "y": gt.ones(2)}, tmp_path / "both.st")
        loaded, both = gt.load(tmp_path / "array.st"), gt.load(tmp_path / "both.st")
        np.testing.assert_array_equal(gt.from_numpy(loaded).numpy(), values)
        assert type(both["x"]) is np.ndarray
        assert both["y"].tolist() == [1, 1]
        both["x"] += 1  # it can be written


def test_importing_onnx_is_no_error():
    import gt.onnx

    assert not hasattr(gt.onnx, "export")
    with pytest.raises(ImportError, match=r"gt.onnx.export is not there yet \(torch.onnx.export\); GT runs a program"):
        from gt.onnx import export  # noqa: F401


def test_torchs_files_are_read(tmp_path):
    """What torch.save and gt.save(format="torch") write, in the same nesting, from a path or a file object."""
    weight = torch.arange(4.0)
    saved = {"model": OrderedDict(w=weight), "again": weight, "all": [torch.ones(2).bfloat16(), (1, "x", None)],
             "dtype": torch.int8, "parameter": torch.nn.Parameter(torch.ones(1))}  # fmt: skip
    torch.save(saved, tmp_path / "a.pt")
    for back in (
        gt.load(tmp_path / "a.pt", map_location="cuda:0"),
        gt.load(io.BytesIO((tmp_path / "a.pt").read_bytes())),
    ):
        assert type(back["model"]) is OrderedDict
        assert back["model"]["w"].tolist() == [0, 1, 2, 3]
        assert back["again"] is back["model"]["w"]
        assert (back["all"][0].dtype, back["all"][1], back["dtype"]) == (gt.bfloat16, (1, "x", None), gt.int8)
        assert isinstance(back["parameter"], gt.nn.Parameter)
    torch.save({"old": weight}, tmp_path / "old.bin", _use_new_zipfile_serialization=False)
    assert gt.load(tmp_path / "old.bin")["old"].tolist() == [0, 1, 2, 3]
    model = gt.nn.Linear(3, 2)
    optimizer = gt.optim.Adam(model.parameters())
    gt.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "own.pt", format="torch")
    back = gt.load(tmp_path / "own.pt")
    model.load_state_dict(back["model"])
    optimizer.load_state_dict(back["optimizer"])


def test_torchs_files_that_cannot_be_read(tmp_path, monkeypatch):
    torch.save({"options": Options(1.0)}, tmp_path / "a.pt")
    with pytest.raises(
        ValueError, match=r"Options.*load_state_dict\(torch.load\('.*a.pt', weights_only=False\)"
    ) as error:
        gt.load(tmp_path / "a.pt")
    assert "\n" not in str(error.value)
    (tmp_path / "short.pt").write_bytes((tmp_path / "a.pt").read_bytes()[:300])
    with pytest.raises(ValueError, match=r"short.pt: torch.load\(weights_only=True\)"):
        gt.load(tmp_path / "short.pt")
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(gt.ConfigError, match=r"is a file of torch.save, and torch is not installed; pip install"):
        gt.load(tmp_path / "a.pt")
