"""torch's oldest constructors, and what else a script may build a tensor or name a dtype by."""

from __future__ import annotations

import inspect
from collections import UserList, deque
from typing import Any

import numpy as np
import pytest
import torch

import gt
from tests.support.worlds import session

__all__ = ["session"]

SAME = """
t.Tensor([[1, 2], [3, 4]])
t.Tensor((2, 3))
t.Tensor()
t.Tensor(2, 0, 3)
t.Tensor(t.ones(2))
t.Tensor(t.ones(2).long())
t.Tensor([t.ones(()), 2])
t.Tensor(range(3))
t.Tensor(np.arange(3))
t.Tensor([1, 2], device="cpu")
t.FloatTensor([1, 2])
t.DoubleTensor([1, 2])
t.HalfTensor([1.5])
t.LongTensor([1.5, 2])
t.LongTensor([[1], [2]])
t.IntTensor([True, False])
t.ShortTensor(range(2))
t.CharTensor([-1])
t.ByteTensor([255])
t.BoolTensor([0, 1, 2])
t.LongTensor()
t.FloatTensor(t.ones(2))
t.ones(2).type(t.LongTensor)
t.ones(2).type("torch.LongTensor")
t.ones(2).type("torch.DoubleTensor")
t.ones(2).type(t.float64)
t.ones(2).type(dtype=t.BoolTensor)
t.tensor(deque([1, 2]))
t.tensor(deque([deque([1.5]), [2]]))
t.tensor(UserList([1, 2]))
t.arange(5).split(split_size=2)[2]
t.arange(5).split(split_size=[1, 4], dim=0)[1]
t.nn.Parameter(t.Tensor([1, 2]))
""".strip().splitlines()


@pytest.mark.parametrize("expression", SAME)
def test_the_same_tensor_as_torchs(session: Any, expression: str) -> None:
    ours, theirs = (eval(expression, {"t": t, "deque": deque, "UserList": UserList, "np": np}) for t in (gt, torch))
    assert ours.tolist() == theirs.tolist()
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    assert ours.type() == theirs.type().replace("torch.", "gt.")


@pytest.mark.parametrize("sizes", ["3", "3, 4", "t.Size([2, 3])"])
@pytest.mark.parametrize("name", ["Tensor", "LongTensor"])
def test_sizes(session: Any, name: str, sizes: str) -> None:
    ours, theirs = (eval(f"t.{name}({sizes})", {"t": t}) for t in (gt, torch))
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype


REFUSED = [
    ("gt.Tensor(2.5)", r"Tensor\(2.5\): takes sizes or a sequence; use gt.tensor\(2.5\)"),
    ("gt.FloatTensor(gt.ones(2).long())", r"FloatTensor\(int64\[2\]\): the tensor must have dtype gt.float32"),
    ("gt.ByteTensor([300])", "a value does not fit into uint8"),
    ("gt.Tensor(-1)", "size -1 is negative"),
    ("gt.Tensor('abc')", "cannot make a tensor of a str"),
    ("gt.Tensor([2], device='moon')", "is not a device"),
    ("gt.Tensor(3, requires_grad=True)", "unexpected keyword argument 'requires_grad'"),
    ("gt.ones(2).type('torch.LingTensor')", "is not a dtype of GT"),
    ("gt.tensor({1: 2})", "cannot make a tensor of a dict"),
]


@pytest.mark.parametrize(("expression", "text"), REFUSED)
def test_refused(session: Any, expression: str, text: str) -> None:
    with pytest.raises((TypeError, RuntimeError), match=text):
        eval(expression)


def test_isinstance_compares_the_dtype(session: Any) -> None:
    assert isinstance(gt.ones(2), gt.FloatTensor)
    assert not isinstance(gt.ones(2), gt.LongTensor)
    assert not isinstance(3, gt.LongTensor)
    assert isinstance(gt.ones(2).long(), gt.LongTensor | None)
    assert gt.LongTensor.dtype == gt.int64


def test_dtypes_equal_torchs(session: Any) -> None:
    names = list(gt.types.DTYPES)
    for name in names:
        assert [other for other in names if gt.types.DTYPES[name] == getattr(torch, other)] == [name]
        assert getattr(torch, name) == gt.types.DTYPES[name]
    assert gt.float32 != "float32"
    assert gt.float32 != gt.float64
    assert {gt.float32: 1}[gt.float32] == 1
    assert gt.ones(2, dtype="gt.float64").dtype == gt.ones(2, dtype="torch.float64").dtype == gt.float64


def test_from_numpy_may_require_gradients(session: Any) -> None:
    x = gt.from_numpy(np.ones(3, np.float32), requires_grad=True)
    (x * 2).sum().backward()
    assert x.grad.tolist() == [2, 2, 2]


def test_inspect_works_as_on_torchs_tensors(session: Any) -> None:
    assert not any((gt.ones(2).is_xpu, gt.ones(2).is_mps, gt.ones(2).is_shared()))
    for kind in (gt, torch):  # ``H`` needs a matrix, ``imag`` complex numbers
        with pytest.raises(RuntimeError):
            inspect.getmembers(kind.ones(2))
    names = dir(gt.ones(2))
    assert {"shape", "sum", "add_"} <= set(names)
    assert "as_strided" not in names
