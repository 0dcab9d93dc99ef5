"""Models larger than the client on the device ``gtx``: weights in mapped files are read by the workers."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import gt
import gt.torch_device
from gt.testing import Cluster
from gt.torch_device import unwrap
from gt.torch_device.placement import mapped_files
from tests.support.recipes import configured
from tests.support.sizes import ROOT

DEVICE = gt.torch_device.NAME
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is described by Linux only")


class Reads:
    """Whether the workers read the tensors that were copied to the device, or the client uploaded them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.by_workers: list[bool] = []
        original = mapped_files.read_by_workers

        def watched(*arguments: Any) -> Any:
            value = original(*arguments)
            self.by_workers.append(value is not None)
            return value

        monkeypatch.setattr(mapped_files, "read_by_workers", watched)

    def take(self) -> list[bool]:
        result, self.by_workers = self.by_workers, []
        return result


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reads]:
    with Cluster(2).client():
        yield Reads(monkeypatch)


@pytest.fixture
def file(tmp_path: pathlib.Path) -> pathlib.Path:
    torch.manual_seed(0)
    path = tmp_path / "model.safetensors"
    tensors = {"weight": torch.randn(600, 512), "half": torch.randn(700, 800).bfloat16(), "small": torch.randn(3)}
    save_file(tensors, path)
    return path


def test_workers_read_the_tensors_of_a_mapped_file(reads: Reads, file: pathlib.Path) -> None:
    for name, x in load_file(file).items():
        assert torch.equal(x.to(DEVICE).cpu(), x), name
    assert reads.take() == [True, True]  # the small one is uploaded
    x = load_file(file)["weight"]
    assert torch.equal(x.to(DEVICE, torch.float64).cpu(), x.double())
    assert torch.equal(x[50:580].to(DEVICE).cpu(), x[50:580])
    assert torch.equal(torch.empty(600, 512, device=DEVICE).copy_(x).cpu(), x)
    assert reads.take() == [True] * 3
    assert torch.equal(x.t().to(DEVICE).cpu(), x.t())
    assert reads.take() == [False]


def test_a_file_of_torch_is_read_too(reads: Reads, tmp_path: pathlib.Path) -> None:
    torch.save({"weight": torch.arange(400_000)}, tmp_path / "model.pt")
    x = torch.load(tmp_path / "model.pt", mmap=True)["weight"]
    assert torch.equal(x.to(DEVICE).cpu(), torch.arange(400_000))
    assert reads.take() == [True]


def test_a_tensor_that_was_written_is_uploaded(reads: Reads, file: pathlib.Path) -> None:
    for write in (
        lambda x: x[599].mul_(2),
        lambda x: x.data[0].zero_(),
        lambda x: x.numpy().__setitem__((300, 5), 7),
    ):
        x = load_file(file)["weight"]
        write(x)
        assert torch.equal(x.to(DEVICE).cpu(), x)
    assert reads.take() == [False] * 3
    assert torch.equal(load_file(file)["weight"].to(DEVICE).cpu(), load_file(file)["weight"])
    assert reads.take() == [True]


def test_memory_without_a_file_that_can_be_read_is_uploaded(
    reads: Reads, file: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.randn(600, 512)
    assert torch.equal(x.to(DEVICE).cpu(), x)
    mapped = load_file(file)["weight"]
    monkeypatch.setattr(mapped_files, "read_on_workers", lambda *_: None)  # they are on another machine
    assert torch.equal(mapped.to(DEVICE).cpu(), mapped)
    monkeypatch.undo()
    reads = Reads(monkeypatch)
    other = file.with_name("other")
    other.write_bytes(bytes(file.stat().st_size))
    before = mapped.clone()
    os.replace(other, file)
    assert torch.equal(mapped.to(DEVICE).cpu(), before)  # another file has the name
    file.unlink()
    assert torch.equal(mapped.to(DEVICE).cpu(), before)  # none has
    assert reads.take() == [False, False]


def test_what_is_read_is_placed_like_what_is_uploaded(reads: Reads, file: pathlib.Path, tmp_path: pathlib.Path) -> None:
    text = "data: {uploads: true, shard: {axis: 0}}\nwhole: {replicate: true}"
    with configured(tmp_path / "signals.yaml", text):
        x = load_file(file)["weight"]
        y = x.to(DEVICE)
        with gt.signal.context("whole"):
            z = x.to(DEVICE)
        assert (str(unwrap(y).layout), str(unwrap(z).layout)) == ("S(0) on workers 0, 1", "R on workers 0, 1")
        assert torch.equal(y.cpu(), x)
    assert reads.take() == [True, True]


def test_empty_parameters_are_placed_before_they_are_loaded(
    reads: Reads, file: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    with configured(tmp_path / "signals.yaml", 'all: {match: "*", shard: {axis: 0}}'):
        model = torch.nn.Linear(512, 600, bias=False, device="meta").to_empty(device=DEVICE)
        gt.signal.place(model)
        model.load_state_dict({"weight": load_file(file)["weight"]})
        assert str(unwrap(model.weight).layout) == "S(0) on workers 0, 1"
        assert torch.equal(model.weight.detach().cpu(), load_file(file)["weight"])


def test_a_module_is_created_on_the_device(reads: Reads) -> None:
    with torch.device(DEVICE):
        model = torch.nn.Sequential(torch.nn.Linear(512, 1024), torch.nn.LayerNorm(1024))
    assert {p.device.type for p in model.parameters()} == {DEVICE}
    assert 0.9 < model[0].weight.std().item() / (512 * 3) ** -0.5 < 1.1
    assert reads.take() == []  # nothing was uploaded


# -- the memory of the client ------------------------------------------------------------------

#: the most memory that the client may need for a model, compared with the size of the model
PART = 0.1
PEAK = """
    import sys, torch, gt, gt.torch_device
    sys.modules["torchvision"] = None  # Llama needs no images

    def peak():
        return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith("VmHWM"))

    def size(model):
        return sum(p.nbytes for p in model.parameters())

    torch.ones(1, device="gtx").item()  # the system starts
"""


def run(script: str, **environment: str) -> list[float]:
    """The numbers that a program on a system of its own prints in its last line."""
    code = textwrap.dedent(PEAK) + textwrap.dedent(script)
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        env=variables, capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr[-2000:]
    return [float(word) for word in process.stdout.splitlines()[-1].split()]


def test_the_client_never_holds_the_weights(tmp_path: pathlib.Path) -> None:
    """192 MB in three files, read into a model that was created without values; one more is created on the device."""
    for part in range(3):
        weights = {f"{4 * part + i}.weight": torch.full((2048, 2048), 1 / 2048) for i in range(4)}
        save_file(weights, tmp_path / f"model-{part}.safetensors")
    del weights
    result = run(
        """
        import os, pathlib
        from safetensors.torch import load_file

        def layers(device, count, width):
            with torch.device(device):
                return torch.nn.Sequential(*[torch.nn.Linear(width, width, bias=False) for _ in range(count)])

        layers("meta", 1, 2).to_empty(device="gtx")  # imports what torch needs for it
        open("/proc/self/clear_refs", "w").write("5")  # the peak counts from here
        before = peak()
        model = layers("meta", 12, 2048).to_empty(device="gtx")
        for file in pathlib.Path(os.environ["FOLDER"]).iterdir():
            model.load_state_dict(load_file(file), strict=False)
        mean = model(torch.ones(2, 2048, device="gtx")).mean().item()
        layers("gtx", 4, 2048)(torch.ones(2, 2048, device="gtx")).sum().item()
        print(size(model), peak() - before, mean)
        """,
        FOLDER=str(tmp_path),
    )
    nbytes, more, mean = result
    assert nbytes == 12 * 2048 * 2048 * 4
    assert more < PART * nbytes
    assert mean == pytest.approx(1, rel=1e-4)


@pytest.mark.long
@pytest.mark.skipif(
    find_spec("transformers") is None or find_spec("accelerate") is None, reason="needs transformers and accelerate"
)
def test_from_pretrained_reads_on_the_workers(tmp_path: pathlib.Path) -> None:
    """Llama of Hugging Face's transformers, 245 MB in five files."""
    (expected,) = run(
        """
        import os
        from transformers import LlamaConfig, LlamaForCausalLM
        shape = {"hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 3, "num_attention_heads": 8}
        model = LlamaForCausalLM(LlamaConfig(vocab_size=16000, max_position_embeddings=64, **shape))
        model.save_pretrained(os.environ["FOLDER"], max_shard_size="60MB")
        with torch.no_grad():
            print(model(torch.arange(32)[None]).logits.double().abs().mean().item())
        """,
        FOLDER=str(tmp_path),
    )
    nbytes, more, mean = run(
        """
        import os
        from transformers import LlamaForCausalLM
        open("/proc/self/clear_refs", "w").write("5")
        before = peak()
        model = LlamaForCausalLM.from_pretrained(os.environ["FOLDER"], device_map="gtx")
        more = peak() - before
        with torch.no_grad():
            print(size(model), more, model(torch.arange(32, device="gtx")[None]).logits.double().abs().mean().item())
        """,
        FOLDER=str(tmp_path),
    )
    assert len(list(tmp_path.glob("*.safetensors"))) == 5
    assert nbytes > 200 << 20
    assert more < PART * nbytes
    assert mean == pytest.approx(expected, rel=1e-5)
