"""The device ``gtx`` of torch on several workers: parameters by name, signals in both passes, whole programs."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import re
import subprocess
import sys
import threading
import weakref
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch.nn.modules import module as torch_modules
from torch.utils.checkpoint import checkpoint

import gt
import gt.run
import gt.torch_device
from gt.client.stream import configuration, scope
from gt.testing import Cluster
from gt.torch_device import unwrap
from gt.torch_device.placement import signals
from tests.support.parallel_programs import PROGRAMS, recipes, train_all
from tests.support.recipes import configured
from tests.support.sizes import ROOT
from tests.test_torch_device_programs import NANOGPT, copy_of_nanogpt

DEVICE = gt.torch_device.NAME
#: how far losses of several workers may be from those of one
WITHIN = 1e-5
#: how many more bytes may be moved than by the same model in GT's own API
MORE_BYTES = 1.1
STAGES = """
data: {uploads: true, workers: [0], replicate: true}
first: {match: "0.*", workers: [0], replicate: true}
second: {match: "2.*", workers: [1], replicate: true}
stage0: {modules: "0", workers: [0]}
stage1: {modules: "[12]", workers: [1]}
back: {workers: [0]}
elsewhere: {workers: [1], backward: back}
"""


@pytest.fixture
def under(tmp_path: pathlib.Path) -> Any:
    return functools.partial(configured, tmp_path / "signals.yaml")


@pytest.fixture
def stages(under: Any) -> Iterator[None]:
    """Two workers, and the signals of `STAGES`."""
    with under(STAGES), Cluster(2).client():
        yield


def layout(x: torch.Tensor) -> str:
    return str(unwrap(x).layout)


def layers() -> torch.nn.Sequential:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


# -- parameters by name ------------------------------------------------------------------------


def test_the_first_call_places_parameters_by_name(stages: None) -> None:
    model = layers().to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(3, 8).to(DEVICE)).sum().backward()
    optimizer.step()
    for name, p in model.named_parameters():
        worker = f"worker {0 if name.startswith('0') else 1}"
        states = [v for v in optimizer.state[p].values() if v.device.type == DEVICE]
        assert {layout(x) for x in (p, p.grad, *states)} == {worker}, name
        assert len(states) == 2


def test_gradients_and_states_are_sharded_like_their_parameter(under: Any) -> None:
    text = 'data: {shard: {axis: 0}, uploads: true}\nall: {match: "*", shard: {axis: 0}}'
    with under(text), Cluster(2).client():
        model = layers().to(DEVICE)
        frozen = model[0].bias.requires_grad_(False)
        optimizer = torch.optim.AdamW(model.parameters())
        for _ in range(2):  # the second gradient is added to the first
            model(torch.ones(6, 8).to(DEVICE)).sum().backward()
        optimizer.step()
        for p in model.parameters():
            states = [v for v in optimizer.state[p].values() if v.device.type == DEVICE]
            tensors = (p, *((p.grad,) if p is not frozen else ()), *states)
            assert {layout(x) for x in tensors} == {"S(0) on workers 0, 1"}


def test_auto_sharding_replicates_parameters_and_shards_what_is_uploaded(under: Any) -> None:
    with under("auto"), Cluster(2).client():
        model = torch.nn.Linear(64, 64).to(DEVICE)
        x = torch.ones(100, 64).to(DEVICE)
        assert layout(x) == "S(0) on workers 0, 1"
        model(x).sum().backward()
        assert layout(model.weight) == "R on workers 0, 1"
        assert layout(model.weight.grad) == "P(sum) on workers 0, 1"


def test_place_works_before_the_first_call(stages: None) -> None:
    model = layers().to(DEVICE)
    gt.signal.place(model)
    assert [layout(p) for p in model.parameters()] == ["worker 0"] * 2 + ["worker 1"] * 2


def test_modules_elsewhere_are_left_alone(stages: None) -> None:
    model = layers()
    model(torch.ones(3, 8))  # on the CPU, with names that match
    model.to(DEVICE)
    model(torch.ones(3, 8, device=DEVICE))
    assert layout(model[2].weight) == "worker 1"
    assert torch.equal(layers()(torch.ones(3, 8)), layers()(torch.ones(3, 8)))


def test_hooks_exist_while_a_configuration_needs_them(under: Any) -> None:
    def count() -> int:
        return len(torch_modules._global_forward_pre_hooks) + len(torch_modules._global_forward_hooks)

    before = count()
    with under(STAGES):
        assert count() == before + 2
    assert count() == before
    with under("auto"):
        assert count() == before + 1
    assert count() == before


def test_a_parameter_is_freed_while_its_gradients_are_watched(under: Any) -> None:
    with under('all: {match: "*", shard: {axis: 0}}'), Cluster(2).client() as session:
        model = layers().to(DEVICE)
        model(torch.ones(3, 8, device=DEVICE)).sum().backward()
        cell = unwrap(model[0].weight)._cell
        freed = threading.Event()
        weakref.finalize(model[0].weight, freed.set)
        del model
        assert freed.is_set()
        assert cell.session is session


# -- signals -----------------------------------------------------------------------------------


def gradients_of(x: torch.Tensor) -> list[str]:
    """The layouts of all gradients of x, as the backward pass delivers them."""
    found: list[str] = []
    x.register_hook(lambda grad: found.append(layout(grad)))
    return found


def test_gradients_run_under_the_signal_of_the_forward_pass(stages: None) -> None:
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    with gt.signal.context("stage1"):
        a = x.exp()
        with torch.no_grad():
            x * 2  # creates no node
    b = a * 2
    with gt.signal.context("stage0"):
        c = b.exp()
    at_a, at_b, at_x = gradients_of(a), gradients_of(b), gradients_of(x)
    c.sum().backward()
    assert [layout(y) for y in (a, b, c)] == ["worker 1", "worker 1", "worker 0"]
    assert (at_b, at_a, at_x) == (["worker 0"], ["worker 0"], ["worker 1"])
    assert gt.signal.current() is None


def test_repeated_steps_keep_the_signals_of_their_nodes(stages: None) -> None:
    """Two layers of one shape on two workers: the same kernels with the same types, under different signals."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8)).to(DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.ones(3, 8).to(DEVICE)
    inner: list[str] = []
    model[1].register_full_backward_hook(lambda module, inputs, outputs: inner.append(layout(inputs[0])))
    for _ in range(5):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        assert [layout(p.grad) for p in model.parameters()] == ["worker 0"] * 2 + ["worker 1"] * 2
    assert inner == ["worker 1"] * 5


def test_the_configuration_names_another_signal_for_gradients(stages: None) -> None:
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    with gt.signal.context("elsewhere"):
        y = x.exp()
    with gt.signal.context("stage1", backward="stage0"):
        z = x.exp()
    assert (layout(y), layout(z)) == ("worker 1", "worker 1")
    assert [layout(torch.autograd.grad(v.sum(), x)[0]) for v in (y, z)] == ["worker 0", "worker 0"]


def test_a_backward_pass_under_a_signal(stages: None) -> None:
    """It holds for what has none of its own."""
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    a = x.exp()
    with gt.signal.context("stage0"):
        b = a.exp()
    at_a, at_x = gradients_of(a), gradients_of(x)
    with gt.signal.context("stage1"):
        b.sum().backward()
        assert gt.signal.current() == "stage1"
    assert (at_a, at_x) == (["worker 0"], ["worker 1"])


def test_gradients_of_gradients_run_under_the_signal_too(stages: None) -> None:
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    with gt.signal.context("stage1"):
        y = x.exp()
    (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), x)
    assert (layout(first), layout(second)) == ("worker 1", "worker 1")
    assert torch.allclose(second.cpu(), torch.ones(3).exp())


def test_checkpoints_and_functions_of_the_user_keep_their_signal(stages: None) -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * 2

    x = torch.ones(3, device=DEVICE, requires_grad=True)
    with gt.signal.context("stage1"):
        y = Double.apply(x)
        for reentrant in (False, True):
            y = checkpoint(lambda v: v.exp().log(), y, use_reentrant=reentrant)
    at_x, at_y = gradients_of(x), gradients_of(y)
    (y * 3).sum().backward()
    assert (at_y, at_x) == (["worker 1"], ["worker 1"])
    assert x.grad is not None
    assert x.grad.tolist() == pytest.approx([6] * 3)


def test_each_thread_has_its_own_nodes(stages: None) -> None:
    found: list[str] = []

    def other() -> None:
        x = torch.ones(3, device=DEVICE, requires_grad=True)
        x.exp().sum().backward()
        assert x.grad is not None
        found.append(layout(x.grad))

    with gt.signal.context("stage1"):
        torch.ones(3, device=DEVICE, requires_grad=True).exp()
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    assert found == ["worker 0"]


def test_old_changes_of_the_signal_are_forgotten(stages: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "MAX_CHANGES", 8)
    changes = signals._Changes()
    for number in range(100):
        changes.add(number, f"s{number}")
        assert changes.at(number) == f"s{number}"
        assert len(changes.numbers) == len(changes.signals) <= 8
    assert changes.at(5) == ""


def test_signals_of_a_removed_configuration_have_no_effect(stages: None) -> None:
    x = torch.ones(3, device=DEVICE, requires_grad=True)
    with gt.signal.context("stage1"):
        y = x.exp()
    gt.load_config(None)
    y.sum().backward()
    assert x.grad is not None
    assert torch.allclose(x.grad.cpu(), torch.ones(3).exp())


# -- modules and uploads by name ---------------------------------------------------------------


def test_calls_of_modules_run_under_their_signal(stages: None) -> None:
    model = layers().to(DEVICE)
    x = torch.ones(3, 8).to(DEVICE)
    seen: list[str | None] = []
    for part in model:
        part.register_forward_pre_hook(lambda *_: seen.append(gt.signal.current()))
    assert layout(model(x)) == "worker 1"
    assert seen == ["stage0", "stage1", "stage1"]
    assert gt.signal.current() is None


def test_a_call_that_fails_leaves_its_signal(stages: None) -> None:
    model = layers().to(DEVICE)
    model(torch.ones(3, 8).to(DEVICE))
    with pytest.raises(RuntimeError):
        model[0](torch.ones(3, 7).to(DEVICE))
    assert gt.signal.current() is None
    assert not scope.thread.stack


def test_modules_and_uploads_by_name_in_gts_own_api(under: Any) -> None:
    with under(STAGES), Cluster(2).client():
        model = gt.nn.Sequential(gt.nn.Linear(8, 16), gt.nn.ReLU(), gt.nn.Linear(16, 4))
        x = gt.tensor([[1.0] * 8] * 3)
        assert str(x.layout) == "worker 0"
        y = model(x)
        assert str(y.layout) == "worker 1"
        y.sum().backward()
        assert [str(p.grad.layout) for p in model.parameters()] == ["worker 0"] * 2 + ["worker 1"] * 2
        with pytest.raises(gt.ShapeError):
            model(gt.ones(3, 7))
        assert gt.signal.current() is None


def test_a_signal_around_an_upload_wins_and_modules_are_no_data(under: Any) -> None:
    with under("data: {uploads: true, shard: {axis: 0}}\nwhole: {replicate: true}"), Cluster(2).client():
        assert layout(torch.ones(4).to(DEVICE)) == "S(0) on workers 0, 1"
        with gt.signal.context("whole"):
            assert layout(torch.ones(4).to(DEVICE)) == "R on workers 0, 1"
            assert layout(torch.nn.Linear(2, 2).to(DEVICE).weight) == "R on workers 0, 1"
        assert layout(torch.nn.Linear(2, 2).to(DEVICE).weight) == "worker 0"


def test_new_tensors_are_placed_like_the_ones_they_are_made_from(stages: None) -> None:
    with gt.signal.context("stage1"):
        x = torch.ones(3, device=DEVICE)
    made = (torch.zeros_like(x), torch.ones_like(x), torch.full_like(x, 2), torch.empty_like(x).fill_(3))
    assert [layout(y) for y in made] == ["worker 1"] * 4
    assert [y[0].item() for y in made] == [0, 1, 2, 3]
    assert torch.zeros_like(x, dtype=torch.int64).dtype is torch.int64
    assert torch.full_like(x, 2, device="cpu").tolist() == [2, 2, 2]


# -- whole programs ----------------------------------------------------------------------------


def compare(device: dict[str, Any], native: dict[str, Any]) -> None:
    """Losses on several workers with those on one, and bytes with those of GT's own API."""
    for name, (losses, moved) in device.items():
        assert losses == pytest.approx(device["one"][0], rel=WITHIN), name
        assert moved <= MORE_BYTES * native[name][1], (name, moved, native[name][1])
        assert moved or name == "one"
    assert device["one"][0][-1] != device["one"][0][0]


def test_a_small_model_under_every_configuration(tmp_path: pathlib.Path) -> None:
    compare(train_all("small", DEVICE, 2, tmp_path), train_all("small", "gt", 2, tmp_path))
    assert configuration.current.signals == {}


@pytest.mark.long
@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.parametrize("program", ["nanoGPT", "Llama"])
def test_a_program_under_every_configuration(program: str, workers: int, pytestconfig: pytest.Config) -> None:
    programs = pytestconfig.getoption("--programs")
    if program == "nanoGPT" and (programs is None or not (programs / program).is_dir()):
        pytest.skip("needs --programs, with nanoGPT in it")
    if program == "Llama" and find_spec("transformers") is None:
        pytest.skip("needs transformers")
    results = []
    for world in (DEVICE, "gt"):
        command = [sys.executable, "-m", "tests.support.parallel_programs", program, world, str(workers), str(programs)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=400
        )
        assert process.returncode == 0, process.stderr[-2000:]
        results.append(json.loads(process.stdout.splitlines()[-1]))
    assert results[0].keys() == {"one", *recipes(workers, *PROGRAMS[program][2])}
    compare(*results)


# -- scripts -----------------------------------------------------------------------------------


def run_script(folder: pathlib.Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script by ``gt run``."""
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}
    command = [sys.executable, "-W", "ignore", "-m", "gt.run", *words]
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False, timeout=300)


def test_a_script_runs_unchanged_on_two_workers(tmp_path: pathlib.Path) -> None:
    (tmp_path / "signals.yaml").write_text(
        "data: {uploads: true, shard: {axis: 0}}\nall: {match: '*', replicate: true}"
    )
    (tmp_path / "script.py").write_text(
        "import sys, torch\n"
        "model = torch.nn.Linear(4, 2).cuda()\n"
        "model(torch.ones(6, 4).cuda()).sum().backward()\n"
        "import gt\n"
        "print(sys.argv[1:], len(gt.workers()), gt.torch_device.unwrap(model.weight.grad).layout)\n"
    )
    process = run_script(tmp_path, "--workers", "2", "script.py", "--workers", "7", GT_CONFIG="signals.yaml")
    assert process.stdout == "['--workers', '7'] 2 P(sum) on workers 0, 1\n", process.stderr


def test_wrong_options_are_reported_before_torch_is_imported(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "script.py").write_text("")
    for words, text in (
        (["--workers", "0"], "argument --workers: 0: at least one worker is needed"),
        (["--connect", "nowhere"], "connect('nowhere'): an address is host:port"),
        (["--workers", "2", "--connect", "a:1"], "not allowed with argument --workers"),
    ):
        with pytest.raises(SystemExit) as caught:
            gt.run.main([*words, str(tmp_path / "script.py")])
        assert caught.value.code == 2
        assert text in capsys.readouterr().err


def test_only_the_script_is_required(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        gt.run.main([])
    assert caught.value.code == 2
    assert capsys.readouterr().err.endswith("the following arguments are required: script\n")


STAGES_OF_NANOGPT = """
data: {uploads: true, replicate: true, workers: [0]}
first: {match: ["*.w?e.*", "*.h.0.*"], replicate: true, workers: [0]}
second: {match: "*", replicate: true, workers: [1]}
stage0: {modules: ["transformer.w?e", "transformer.h.0"], workers: [0]}
stage1: {modules: ["transformer.h.*", "transformer.ln_f", "lm_head"], workers: [1]}
"""


@pytest.mark.long
def test_nanogpt_trains_unchanged_on_two_workers(tmp_path: pathlib.Path, pytestconfig: pytest.Config) -> None:
    folder = copy_of_nanogpt(tmp_path, pytestconfig)
    (folder / "data.yaml").write_text("data: {uploads: true, shard: {axis: 0}}\nall: {match: '*', replicate: true}")
    (folder / "stages.yaml").write_text(STAGES_OF_NANOGPT)
    losses = []
    for options, config in (((), ""), (("--workers", "2"), "data.yaml"), (("--workers", "2"), "stages.yaml")):
        words = (*options, "train.py", "--device=cuda", "--log_interval=1", "--out_dir=out", *NANOGPT.split())
        process = run_script(folder, *words, GT_CONFIG=config)
        assert process.returncode == 0, process.stderr[-2000:]
        losses.append([float(word) for word in re.findall(r"^iter \d+: loss ([\d.]+)", process.stdout, re.MULTILINE)])
    assert len(losses[0]) == 21
    for others in losses[1:]:  # printed with four digits
        assert others == pytest.approx(losses[0], abs=1.1e-4)
