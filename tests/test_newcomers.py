"""What people who know torch try first: names, tensors and dtypes of torch's and numpy's, files, limits."""

from __future__ import annotations

import importlib
import pathlib

import numpy as np
import pytest
import torch

import gt
import gt.missing
from docs import make_torch_names
from tests.worlds import session

__all__ = ["session"]

ROOT = pathlib.Path(__file__).parent.parent

# -- names that are not there --------------------------------------------------------------

NAMES = [
    ("gt.nn.LPPool3d", "gt.nn.LPPool3d is not there yet (torch.nn.LPPool3d)"),
    ("gt.nn.Liner", "did you mean gt.nn.Linear?"),
    ("gt.nn.functional.grid_sample", "is not there yet (torch.nn.functional.grid_sample)"),
    ("gt.nn.functional.gelux", "did you mean gt.nn.functional.gelu?"),
    ("gt.optim.LBFGS", "gt.optim.LBFGS is not there yet (torch.optim.LBFGS)"),
    ("gt.optim.Adamm", "did you mean gt.optim.Adam?"),
    ("gt.optim.lr_scheduler.CosineLR", "does not exist"),
    ("gt.linalg.eig", "gt.linalg.eig is not there yet (torch.linalg.eig)"),
    ("gt.linalg.foo", "gt.linalg.foo does not exist, nor does torch.linalg.foo"),
    ("gt.autograd.forward_ad", "is not there yet (torch.autograd.forward_ad)"),
    ("gt.cuda.Stream", "gt.cuda.Stream is not there yet (torch.cuda.Stream)"),
    ("gt.distributed", "one program has all workers: gt.gpu_workers(n)"),
    ("gt.ones(2).as_strided", "gt.Tensor.as_strided is not there yet (torch.Tensor.as_strided)"),
]


@pytest.mark.parametrize(("expression", "text"), NAMES)
def test_a_name_that_is_not_there(session, expression, text):
    with pytest.raises(AttributeError) as caught:
        eval(expression)
    assert text in str(caught.value)


def test_what_is_not_there_is_not_there(session):
    assert not hasattr(gt.ones(2), "as_strided")
    assert not hasattr(gt.Tensor, "as_strided")
    assert not hasattr(gt, "__path_to_nowhere__")


def test_torchs_names_are_torchs():
    module = importlib.import_module("gt.torch_names")
    if f"torch {make_torch_names.VERSION}." not in (module.__doc__ or ""):
        pytest.skip("made from another torch")
    assert make_torch_names.FILE.read_text() == make_torch_names.text()


def test_data_loaders_are_torchs():
    with pytest.raises(ImportError, match=r"from torch.utils.data import DataLoader.*gt.to_device\(loader\)"):
        from gt.utils.data import DataLoader  # noqa: F401
    assert gt.utils.checkpoint.checkpoint is gt.checkpoint


# -- tensors of torch's --------------------------------------------------------------------

MIXED = """
x + p
p + x
x @ p.T
x == p
x < p
gt.add(x, p)
gt.relu(p)
gt.cat([x, p])
gt.reshape(p, (3, 2))
gt.ones_like(p)
gt.nn.Linear(3, 2)(p)
gt.nn.functional.mse_loss(x, p)
gt.nn.functional.softmax(p, 0)
gt.nn.functional.dropout(p)
gt.nn.functional.linear(x, p)
x.add_(p)
x.type_as(p)
x[p > 0]
x[torch.tensor([0])]
x.copy_(p)
""".strip().splitlines()


@pytest.mark.parametrize("expression", MIXED)
def test_a_tensor_of_torchs_is_refused_with_the_way_out(session, expression):
    with pytest.raises(TypeError, match=r"a tensor of torch's; gt.tensor\(x\) makes one of GT's of it"):
        eval(expression, {"gt": gt, "torch": torch, "x": gt.ones(2, 3), "p": torch.ones(2, 3)})


@pytest.mark.parametrize("expression", ["torch.add(p, x)", "torch.relu(x)", "torch.nn.Linear(3, 2)(x)", "p.add_(x)"])
def test_torchs_functions_say_what_they_were_given(session, expression):
    with pytest.raises(TypeError, match=r"was given a tensor of GT's; use GT's own, or torch.tensor\(x\)"):
        eval(expression, {"torch": torch, "x": gt.ones(2, 3), "p": torch.ones(2, 3)})
    assert torch.tensor(gt.ones(2)).tolist() == [1, 1]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int64", "bool"])
def test_a_tensor_of_torchs_becomes_one_of_ours(session, dtype):
    if dtype == "bfloat16" and session.workers[0].backend == "numpy":
        pytest.skip("numpy has none")
    p = torch.tensor([0.0, 1.0, 3.0]).to(getattr(torch, dtype))
    for made in (gt.tensor(p), gt.as_tensor(p), gt.from_numpy(p)):
        assert made.dtype.name == dtype
        assert made.tolist() == p.tolist()
    assert gt.tensor(torch.ones(2, requires_grad=True)).tolist() == [1, 1]


# -- dtypes of torch's and numpy's -----------------------------------------------------------

DTYPES = """
gt.ones(2, dtype=D).dtype
gt.tensor([1], dtype=D).dtype
gt.ones(2).to(D).dtype
gt.ones(2).type(D).dtype
gt.ones(2).sum(dtype=D).dtype
gt.ones(2).new_zeros(3, dtype=D).dtype
gt.nn.Linear(2, 2, dtype=D).weight.dtype
gt.nn.Linear(2, 2).to(D).weight.dtype
gt.nn.Linear(2, 2).to(dtype=D).weight.dtype
""".strip().splitlines()


@pytest.mark.parametrize("dtype", [torch.float64, np.float64, np.dtype("float64"), float], ids=str)
@pytest.mark.parametrize("expression", DTYPES)
def test_a_dtype_by_another_name(session, expression, dtype):
    assert eval(expression, {"gt": gt, "D": dtype}) is gt.float64


@pytest.mark.parametrize("dtype", [torch.complex64, np.complex64, "float32", [1]], ids=str)
def test_no_dtype(session, dtype):
    with pytest.raises(gt.DTypeError, match=r"is no dtype of GT; there are gt.float64, gt.float32"):
        gt.ones(2, dtype=dtype)


@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16"])
def test_limits_of_floating_dtypes(name):
    ours, theirs = gt.finfo(getattr(gt, name)), torch.finfo(getattr(torch, name))
    for field in ("bits", "eps", "max", "min", "tiny", "smallest_normal", "resolution", "dtype"):
        assert getattr(ours, field) == getattr(theirs, field)
    assert repr(ours) == repr(theirs)


@pytest.mark.parametrize("name", ["int64", "int32", "int16", "int8", "uint8"])
def test_limits_of_integers(name):
    ours, theirs = gt.iinfo(getattr(gt, name)), torch.iinfo(getattr(torch, name))
    for field in ("bits", "max", "min", "dtype"):
        assert getattr(ours, field) == getattr(theirs, field)
    assert repr(ours) == f"iinfo(min={theirs.min}, max={theirs.max}, dtype={name})"


def test_what_torch_tells_of_dtypes():
    for a in gt.types.DTYPES:
        for b in gt.types.DTYPES:
            want = torch.can_cast(getattr(torch, a), getattr(torch, b))
            assert gt.can_cast(gt.types.DTYPES[a], gt.types.DTYPES[b]) == want, (a, b)
    gt.set_default_dtype(gt.float32)
    assert gt.get_default_dtype() is gt.float32
    with pytest.raises(gt.DTypeError, match="the default is float32"):
        gt.set_default_dtype(gt.float64)
    for wrong, kind in ((gt.finfo, gt.int8), (gt.iinfo, gt.float32)):
        with pytest.raises(TypeError):
            wrong(kind)


# -- and the rest --------------------------------------------------------------------------


def test_small_things_of_torchs(session):
    x = gt.LongTensor([1, 2])
    assert x.type() == "gt.LongTensor"
    assert gt.BFloat16Tensor([1]).type() == "gt.BFloat16Tensor"
    assert gt.FloatTensor(2, 3).shape == (2, 3)
    assert gt.is_nonzero(gt.ones(1))
    assert not gt.is_complex(x)
    assert x[gt.newaxis].shape == (1, 2)
    assert gt.tensor([gt.inf, -gt.inf, gt.pi, gt.e]).isinf().tolist() == [True, True, False, False]
    assert x.contiguous(memory_format=gt.channels_last).tolist() == [1, 2]
    with pytest.raises(RuntimeError):
        gt.is_nonzero(x)


def test_the_state_of_the_random_numbers(session):
    gt.manual_seed(3)
    gt.rand(2)
    state = gt.get_rng_state()
    first, _ = gt.rand(4), gt.manual_seed(9)
    gt.set_rng_state(state)
    assert gt.rand(4).tolist() == first.tolist()
    with pytest.raises(RuntimeError, match="16 bytes"):
        gt.set_rng_state(state[:3])


def test_files_of_torchs(session, tmp_path, capsys):
    old = tmp_path / "model.pt"
    torch.save({"a": torch.ones(2)}, old)
    with pytest.raises(ValueError, match=r"but a pickle, as torch.save makes them.*save_file\(torch.load\("):
        gt.load(old)
    gt.save({"a": gt.ones(2)}, old)
    assert "becomes a safetensors file, which torch.load does not read" in capsys.readouterr().err
    assert gt.load(old)["a"].tolist() == [1, 1]


def test_what_is_told_of_workers_and_places(session, capsys):
    assert "host" not in repr(session.workers[0])
    assert repr(session.workers[0]).startswith("Worker(id=0, device='cpu', backend=")
    x = gt.ones(2, 3, 4)
    assert gt.debug.explain(x).startswith("float32[2,3,4] lies whole on worker 0\nit was made there")
    gt.debug.show_layout(x)
    assert capsys.readouterr().out.endswith("downwards dim 0, across dim 1; each part has all of the other dims\n")
