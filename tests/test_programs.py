"""Other people's programs (tests/programs_of_others), and libraries they use with GT: einops, loaders, torchvision."""

from __future__ import annotations

import pathlib
import subprocess
import sys
import time
import types
import warnings
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.testing import Cluster
from tests.programs_of_others.__main__ import main, shown_times
from tests.programs_of_others.compare import ProgramFailed, compare, prepare
from tests.programs_of_others.rename import rename
from tests.programs_of_others.table import PROGRAMS, Program
from tests.programs_of_others.worlds import Enough, Steps


@pytest.fixture(scope="module", autouse=True)
def client():
    with Cluster(workers=1).client():
        yield


# -- programs -------------------------------------------------------------------------------


def case(program: Program) -> Any:
    """The program; one that GT lacks something for must fail, so that its entry is changed when that is there."""
    marks = [pytest.mark.xfail(strict=True, raises=ProgramFailed, reason=program.missing)] if program.missing else []
    return pytest.param(program, id=program.name, marks=marks)


@pytest.mark.long
@pytest.mark.parametrize("program", [*map(case, PROGRAMS)])
def test_a_program_computes_the_same_with_torch_and_gt(
    program: Program, tmp_path: pathlib.Path, pytestconfig: pytest.Config
) -> None:
    root = program.root(pytestconfig.getoption("--programs"))
    if root is None:
        pytest.skip("needs --programs, or a package")
    prepare(program, root, tmp_path)
    result = compare(program, tmp_path)
    assert result.equal(program), result


@pytest.mark.parametrize("count", [2, 3, 14])
def test_a_program_with_too_few_steps_is_not_timed(count: int) -> None:
    program = Program("a program", "", "", timed=(3, 15))
    steps = Steps(program, "time", torch)
    for _ in range(count):
        steps.record(None)
    assert steps.step_ms is None
    assert shown_times(program, {}) == "too short to time: fewer than 15 steps"
    assert shown_times(program, {"gt": 3.0, "torch": 2.0}) == "3.0 ms, 2.0 ms, 1.50×"


def test_steps_are_timed_from_the_first_timed_one() -> None:
    program = Program("a program", "", "", timed=(2, 4))
    before, steps = time.perf_counter(), Steps(program, "time", torch)
    for _ in range(3):
        steps.record(None)
    with pytest.raises(Enough):
        steps.record(None)
    assert 0 < steps.step_ms <= (time.perf_counter() - before) / 2 * 1e3


RENAMED = """
import torch | import gt
import torch.nn as nn | import gt.nn as nn
from torch import nn | from gt import nn
import torchvision | import torchvision
from safetensors.torch import load_file | from safetensors.torch import load_file
from einops.layers.torch import Rearrange | from einops.layers.gt import Rearrange
x = torch.ones(2); print("torch.ones") # torch | x = gt.ones(2); print("torch.ones") # torch
print(f"{torch.__version__} of torch") | print(f"{gt.__version__} of torch")
self.torch = torch.Tensor | self.torch = gt.Tensor
"""


@pytest.mark.parametrize("case", RENAMED.strip().splitlines())
def test_only_the_name_torch_is_renamed(case: str) -> None:
    source, expected = case.split(" | ")
    assert rename(source + "\n") == expected + "\n"


def test_a_process_group_has_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    gt.distributed.init_process_group(backend="nccl", world_size=1)
    gt.distributed.destroy_process_group()
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(gt.ConfigError, match="one of 4 processes, and one program has all workers here"):
        gt.distributed.init_process_group(backend="nccl")


# -- einops ----------------------------------------------------------------------------------


def test_einops_on_tensors_of_gt():
    einops = pytest.importorskip("einops")
    array = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    x = gt.tensor(array)
    for pattern, kwargs in (("a b c -> (a c) b", {}), ("a (b k) c -> a b c k", {"k": 3})):
        assert np.array_equal(
            einops.rearrange(x, pattern, **kwargs).numpy(), einops.rearrange(array, pattern, **kwargs)
        )
    for reduction in ("min", "max", "sum", "mean", "prod"):
        expected = einops.reduce(array, "a b c -> b", reduction)
        assert np.allclose(einops.reduce(x, "a b c -> b", reduction).numpy(), expected)
    assert einops.reduce(x > 3, "a b c -> b", "any").tolist() == [True, True, True]
    assert np.array_equal(einops.repeat(x, "a b c -> a k b c", k=2).numpy(), array[:, None].repeat(2, 1))
    assert einops.einsum(x, x, "a b c, a d c -> b d").shape == (3, 3)
    packed, shapes = einops.pack([x, x[:, 0]], "a * c")
    assert [tuple(part.shape) for part in einops.unpack(packed, shapes, "a * c")] == [(2, 3, 4), (2, 4)]


def test_layers_of_einops_are_modules_of_gt():
    pytest.importorskip("einops")
    from einops.layers.gt import EinMix, Rearrange, Reduce

    mix = EinMix("b d -> b e", weight_shape="d e", bias_shape="e", d=12, e=5)
    model = gt.nn.Sequential(Rearrange("b c d -> b (c d)"), mix, Reduce("b e -> b", "sum"))
    x = gt.randn(2, 3, 4)
    model(x).sum().backward()
    assert {name for name, _ in model.named_parameters()} == {"1.weight", "1.bias"}
    assert gt.allclose(model(x), (x.reshape(2, 12) @ mix.weight + mix.bias).sum(1))
    assert mix.bias.grad.flatten().tolist() == [2.0] * 5


@pytest.mark.parametrize("order", ["import gt, einops", "import einops, gt"])
def test_einops_and_gt_may_be_imported_in_any_order(order: str) -> None:
    pytest.importorskip("einops")
    program = (
        f"{order}\nfrom gt.testing import Cluster\n"
        "with Cluster(backend='numpy').client(): print(einops.rearrange(gt.ones(2, 3), 'a b -> b a').shape)"
    )
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert process.stdout == "gt.Size([3, 2])\n"


# -- loaders ---------------------------------------------------------------------------------


class Squares:
    """A dataset that creates tensors of GT."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int):
        return gt.tensor([i, i * i]), torch.tensor(float(i)), np.float32(i), {"name": str(i)}


def test_a_loader_gives_tensors_of_gt():
    loader = gt.utils.data.DataLoader(Squares(), batch_size=2)
    pairs, numbers, others, names = next(iter(loader))
    assert pairs.tolist() == [[0, 0], [1, 1]]
    assert numbers.tolist() == others.tolist() == [0, 1]
    assert names == {"name": ["0", "1"]}
    assert isinstance(numbers, gt.Tensor)
    assert len(loader) == 2 == len(list(loader))


#: Python 3.12 and later warn of any fork of a process that has threads; torch's loaders fork
FORKS = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")


@FORKS
def test_a_dataset_with_tensors_of_gt_is_loaded_in_this_process():
    loader = gt.utils.data.DataLoader(Squares(), batch_size=2, num_workers=1)
    with pytest.warns(UserWarning, match="has tensors of GT, which belong to this process"):
        batches = [pairs.tolist() for pairs, *_ in loader]
    assert batches == [[[0, 0], [1, 1]], [[2, 4], [3, 9]]]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        assert len(list(loader)) == 2


class Rows:
    """A dataset of a tensor of the parent process; a sample is an object that holds one."""

    def __init__(self) -> None:
        self.rows = gt.arange(6.0).reshape(3, 2)

    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int):
        return types.SimpleNamespace(row=self.rows[i])


@FORKS
@pytest.mark.timeout(60)
@pytest.mark.parametrize("used_before", [False, True])
@pytest.mark.parametrize("collate", [None, list])
def test_a_dataset_of_the_parents_tensors_is_loaded_in_this_process(collate, used_before):
    data = gt.utils.data.TensorDataset(Rows().rows) if collate is None else Rows()
    if used_before:  # a process then knows the instructions already
        list(gt.utils.data.DataLoader(data, batch_size=2, collate_fn=collate))
    loader = gt.utils.data.DataLoader(data, batch_size=2, num_workers=1, collate_fn=collate)
    with pytest.warns(UserWarning, match="has tensors of GT, which belong to this process"):
        last = list(loader)[-1][0]
    assert (last[0] if collate is None else last.row).tolist() == [4, 5]


@FORKS
def test_processes_of_a_loader_may_return_arrays():
    data = gt.utils.data.TensorDataset(torch.arange(6.0).reshape(3, 2), torch.arange(3))
    batches = list(gt.utils.data.DataLoader(data, batch_size=2, num_workers=1))
    assert [y.tolist() for _, y in batches] == [[0, 1], [2]]
    assert isinstance(batches[0][0], gt.Tensor)


def test_the_seed_sets_the_order_of_a_loader():
    data = gt.utils.data.TensorDataset(torch.arange(100))

    def order():
        gt.manual_seed(3)
        return [x.tolist() for (x,) in gt.utils.data.DataLoader(data, batch_size=100, shuffle=True)]

    assert order() == order()
    generator = gt.Generator().manual_seed(5)

    def drawn():
        loader = gt.utils.data.DataLoader(data, batch_size=100, shuffle=True, generator=generator)
        return next(iter(loader))[0].tolist()

    first, second = drawn(), drawn()  # as in torch, the generator goes on
    generator.manual_seed(5)
    assert (drawn(), drawn()) == (first, second)
    assert first != second


def test_to_device_has_the_loaders_attributes():
    loader = gt.utils.data.DataLoader(Squares(), batch_size=2)
    sent = gt.to_device(loader)
    assert sent.batch_size == 2
    assert sent.dataset is loader.dataset
    with pytest.raises(AttributeError):
        sent.not_there  # noqa: B018


def test_names_of_torch_utils_data():
    import gt.utils.data.distributed
    from gt.utils.data import Dataset
    from gt.utils.data.dataloader import DataLoader
    from gt.utils.data.dataset import random_split
    from gt.utils.data.sampler import SubsetRandomSampler

    assert random_split is gt.utils.data.random_split
    assert SubsetRandomSampler is gt.utils.data.SubsetRandomSampler
    sampler = gt.utils.data.distributed.DistributedSampler(range(4), shuffle=False)
    assert list(sampler) == [0, 1, 2, 3]
    assert list(gt.utils.data.DistributedSampler(range(4), 2, 1, shuffle=False)) == [1, 3]
    with pytest.raises(ImportError, match=r"gt\.utils\.data\.NotThere does not exist"):
        from gt.utils.data.sampler import NotThere  # noqa: F401
    assert Dataset is torch.utils.data.Dataset
    assert DataLoader is gt.utils.data.DataLoader
    assert hasattr(gt.utils.data, "DataLoader")
    assert not hasattr(gt.utils.data, "NotThere")


# -- other libraries ---------------------------------------------------------------------------


def run_beside_torchvision(code: str, package: str) -> None:
    """In a process of its own: torchvision beside a torch without CUDA needs operators declared before its import."""
    if find_spec(package) is None:
        pytest.skip(f"needs {package}")
    lines = [
        "from tests.programs_of_others.worlds import declare_torchvision_operators",
        "library = declare_torchvision_operators()",
        "import gt",
        "from gt.testing import Cluster",
    ]
    command = [sys.executable, "-c", "\n".join([*lines, code])]
    process = subprocess.run(command, capture_output=True, text=True, cwd=pathlib.Path(__file__).parents[1])
    assert process.returncode == 0, process.stderr


def test_torchmetrics_reads_tensors_of_gt() -> None:
    code = """
import torch, torchmetrics
with Cluster(workers=1).client():
    metric = torchmetrics.MeanSquaredError()
    x = gt.tensor([1.0, 2.0], requires_grad=True)
    assert metric(x * 2, gt.tensor([1.0, 2.0])).item() == 2.5
    metric.update(torch.ones(2), torch.ones(2))
    assert metric.compute().item() == 1.25
"""
    run_beside_torchvision(code, "torchmetrics")


def test_torchvision_on_images_of_gt(tmp_path: pathlib.Path) -> None:
    code = f"""
from torchvision import transforms
from torchvision.utils import make_grid, save_image
with Cluster(workers=1).client():
    images = gt.rand(4, 3, 8, 8)
    save_image(images, {str(tmp_path / "images.png")!r}, nrow=2)
    assert make_grid(images, nrow=2).shape == (3, 22, 22)
    normal = transforms.Compose([transforms.Normalize((0.5,), (0.5,)), transforms.CenterCrop(4)])(images)
    assert isinstance(normal, gt.Tensor), type(normal)
    assert gt.allclose(normal, images[:, :, 2:6, 2:6] * 2 - 1)
"""
    run_beside_torchvision(code, "torchvision")
    assert (tmp_path / "images.png").stat().st_size


def test_a_summary_writer_reads_tensors_of_gt(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    with gt.utils.tensorboard.SummaryWriter(str(tmp_path)) as writer:
        writer.add_scalar("loss", gt.tensor(1.5), 0)
        writer.add_histogram("weights", gt.arange(4.0), 0)
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert [event.value for event in events.Scalars("loss")] == [1.5]


RECURRENT = {
    "LSTM": lambda nn: nn.LSTM(3, 4, num_layers=2, bidirectional=True, batch_first=True),
    "LSTM with projections": lambda nn: nn.LSTM(3, 4, proj_size=2),
    "GRU": lambda nn: nn.GRU(3, 4, num_layers=2, bias=False),
    "RNN": lambda nn: nn.RNN(3, 4, nonlinearity="relu"),
    "LSTMCell": lambda nn: nn.Sequential(nn.LSTMCell(3, 4)),
}


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN:UserWarning")
@pytest.mark.parametrize("kind", RECURRENT)
def test_a_recurrent_module_can_be_saved(kind: str, tmp_path: pathlib.Path) -> None:
    make, shape = RECURRENT[kind], (2, 3) if "Cell" in kind else (2, 5, 3)
    theirs, model = make(torch.nn), make(gt.nn)
    model.load_state_dict(theirs.state_dict())
    gt.save(model, tmp_path / "model.pt")
    gt.save(model.state_dict(), tmp_path / "state.pt")
    other = make(gt.nn)
    other.load_state_dict(gt.load(tmp_path / "state.pt"))
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    expected = theirs(torch.tensor(x))[0].detach().numpy()
    for restored in (gt.load(tmp_path / "model.pt"), other):
        optimizer = gt.optim.SGD(restored.parameters(), lr=0.1)
        result = restored(gt.tensor(x))[0]
        np.testing.assert_allclose(result.detach().numpy(), expected, rtol=1e-5, atol=1e-6)
        result.sum().backward()
        optimizer.step()  # the restored parameters train
        assert not gt.allclose(restored(gt.tensor(x))[0], result)


def test_without_torch_loaders_say_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "torch.utils.data", None)
    monkeypatch.delitem(sys.modules, "gt.utils.data.dataloader", raising=False)
    text = r"gt\.utils\.data\.DataLoader is torch's, and torch is not installed; pip install"
    with pytest.raises(AttributeError, match=text) as caught:
        gt.utils.data.DataLoader  # noqa: B018
    assert caught.value.__context__ is None
    with pytest.raises(ImportError, match=text):
        from gt.utils.data import DataLoader  # noqa: F401


def test_a_folder_of_programs_that_does_not_exist(monkeypatch, capsys):
    for words, text in (
        (["--programs", "/nonexistent"], "--programs /nonexistent: there is no such folder"),
        (["no such program"], "no program is chosen: the names are "),
    ):
        monkeypatch.setattr(sys, "argv", ["programs_of_others", *words])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 2
        assert text in capsys.readouterr().err
