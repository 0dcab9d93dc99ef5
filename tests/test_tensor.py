"""Creating tensors, torch's functions over them, operators, dtypes, reading."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import weakref

import numpy as np
import pytest
import torch

import gt
from tests.support.worlds import agree, refused, same, session, to_torch

__all__ = ["session"]

CREATION = """
gt.tensor(3)
gt.tensor(3.5)
gt.tensor(True)
gt.tensor([1, 2, 3])
gt.tensor([1, 2.5])
gt.tensor([[True, False]])
gt.tensor([True, 1])
gt.tensor([])
gt.tensor([[], []])
gt.tensor(())
gt.tensor(range(3))
gt.tensor([1.7, -1.7], dtype=gt.int64)
gt.tensor([0, 2], dtype=gt.bool)
gt.tensor([1, 2], dtype=gt.float16)
gt.tensor([-1], dtype=gt.uint8)
gt.tensor(1, dtype=float)
gt.tensor(np.float64(3))
gt.tensor([np.float64(3)])
gt.tensor([np.int32(3)])
gt.tensor(np.arange(3, dtype=np.int16))
gt.tensor(np.ones((2, 3)))
gt.tensor(np.ones((2, 3)), dtype=gt.float32)
gt.tensor(np.arange(6).reshape(2, 3).T)
gt.tensor(np.zeros((0, 3)))
gt.tensor([2**62, -2**63])
gt.tensor([1e40])
gt.from_numpy(np.arange(3))
gt.as_tensor([1, 2])
gt.as_tensor(x)
gt.as_tensor(x, dtype=gt.float64)
gt.zeros(2, 3)
gt.zeros((2, 3))
gt.zeros([2])
gt.zeros(())
gt.zeros(0)
gt.zeros(2, dtype=gt.int32)
gt.ones(2, dtype=bool)
gt.full((2, 3), 7)
gt.full((2,), 1.5)
gt.full((2,), True)
gt.full((2,), 7, dtype=gt.float16)
gt.zeros_like(i)
gt.ones_like(x, dtype=gt.int8)
gt.full_like(i, 3)
gt.empty(2, 0)
gt.arange(5)
gt.arange(5.)
gt.arange(1, 5)
gt.arange(1, 10, 3)
gt.arange(5, 0, -2)
gt.arange(0, 1, 0.25)
gt.arange(0, 1, 0.3)
gt.arange(3, 3)
gt.arange(4, dtype=gt.float64)
gt.linspace(0, 1, 5)
gt.linspace(-2, 3, 6, dtype=gt.float64)
gt.linspace(0, 10, 4, dtype=gt.int64)
gt.linspace(3, 4, 1)
gt.linspace(3, 4, 0)
gt.eye(3)
gt.eye(2, 4)
gt.eye(3, 2, dtype=gt.int64)
x.new_tensor([1, 2])
x.new_full((2,), 3)
i.new_zeros(2, 2)
i.new_ones((2, 2), dtype=gt.bool)
"""


@pytest.mark.parametrize("expression", CREATION.strip().splitlines())
def test_creation(session, expression):
    same(expression)


UNARY = (
    "neg abs sign exp log log2 log1p expm1 sqrt rsqrt square reciprocal sin cos tan tanh sigmoid relu erf floor ceil "
    "trunc round isnan isinf isfinite logical_not absolute negative"
)
BINARY = (
    "add sub mul div floor_divide remainder fmod pow maximum minimum atan2 eq ne lt le gt ge logical_and logical_or "
    "logical_xor true_divide multiply subtract greater less_equal not_equal"
)


@pytest.mark.parametrize("name", UNARY.split())
def test_unary(session, name):
    same(f"gt.{name}(y)")
    same(f"x.{name}()")
    same(f"gt.{name}(n)")
    same(f"gt.{name}(i)")


@pytest.mark.parametrize("name", BINARY.split())
def test_binary(session, name):
    same(f"gt.{name}(x, y)")
    same(f"y.{name}(v)")
    # for these, torch accepts only tensors
    if name not in ("maximum", "minimum", "atan2", "logical_and", "logical_or", "logical_xor"):
        same(f"gt.{name}(y, 2)")
        same(f"gt.{name}(i, 3)")
        same(f"i.{name}(2.5)")


OPERATORS = """
x + y
x - 1
1 - x
2 * x + 1.5
x / y
i / 2
2 / y
x // y
7 // y
i // 2
x % y
5 % y
i % 3
x ** 2
y ** 0.5
2 ** y
2 ** (i + 6)
c @ c.mT
x @ v
v @ v
-x
+x
abs(x)
~m
~i
m & (x > 0)
m | (x > 0)
m ^ (x > 0)
i & 3
3 | i
2 << i
i << True
False >> i
gt.bitwise_right_shift(-9, i)
i ^ 1
x == y
x == 1
1 == i
x != y
x < y
x <= 0
x > y
0 >= x
x == None
x == 'a'
x != None
i + 2.5
i + True
m + 1
m * 2.5
s + i
d + x[0, :2]
np.float64(2) * x
np.float32(2) * i
x * np.int64(3)
x + np.bool_(True)
s * d
1 in i
7.25 in x
len(x)
bool(gt.tensor(2.0))
int(gt.tensor(2.7))
float(s)
[1, 2, 3][gt.tensor(1)]
f"{s}"
f"{s:.3f}"
[r for r in x]
x.tolist()
s.item()
i.numel()
x.dim()
x.size()
x.size(1)
x.size(-1)
x.nbytes
x.itemsize
x.element_size()
x.is_floating_point()
x.ndim
"""


@pytest.mark.parametrize("expression", OPERATORS.strip().splitlines())
def test_operators(session, expression):
    same(expression)


def test_arrays_on_either_side(session):
    """torch is inconsistent about them; GT treats them as tensors."""
    x = gt.tensor([1.0, 2.0])
    agree(np.array([3.0, 5.0]) - x, torch.tensor([2.0, 3.0], dtype=torch.float64))
    agree(np.array([3, 5], np.int32) > x, torch.tensor([True, True]))
    agree(x - np.array([3.0, 5.0]), torch.tensor([-2.0, -3.0], dtype=torch.float64))
    agree(x * np.array([[3], [5]], np.float32), torch.tensor([[3.0, 6.0], [5.0, 10.0]]))


FUNCTIONS = """
x.add(y, alpha=2)
x.sub(1, alpha=3)
gt.sub(x, y, alpha=0.5)
gt.rsub(x, 2)
i.add(i, alpha=2)
gt.div(x, y, rounding_mode='floor')
gt.div(x, y, rounding_mode='trunc')
i.div(4, rounding_mode='trunc')
x.clamp(-1, 2)
x.clamp(min=0)
x.clamp(max=y)
gt.clamp(x, y, y + 1)
i.clamp(0.5)
x.clip(-1, 1)
gt.where(x > 0, x, y)
gt.where(x > 0, 1.0, y)
gt.where(m, i, 0)
gt.where(x > 0, 1, 0)
gt.where(m)
x.where(m, y)
x.masked_fill(m, 1.5)
i.masked_fill(m, 1.5)
m.masked_fill(m, 2)
x.masked_fill(b[:, None], s)
gt.isclose(x, x + 1e-7)
gt.isclose(n, n)
gt.isclose(n, n, equal_nan=True)
gt.isclose(i, i + 1, rtol=0.5)
gt.allclose(x, x + 1e-9)
gt.allclose(x, y)
gt.equal(x, x)
gt.equal(x, y)
gt.equal(x, v)
x.sum()
x.sum(0)
x.sum(-1, keepdim=True)
x.sum((0, 1))
x.sum(dim=[])
i.sum()
m.sum(dtype=gt.float32)
m.sum(1)
x.mean()
x.mean((0, 1), keepdim=True)
i.mean(0, dtype=gt.float64)
y.prod()
y.prod(1)
x.var()
x.var(0)
x.var(0, False)
x.var(unbiased=False)
x.var(False)
x.var(1, correction=2, keepdim=True)
x.std()
gt.std(x, 1)
gt.std(x, (0, 1), unbiased=False)
x.cumsum(1)
i.cumsum(0)
x.cumsum(-1, dtype=gt.float64)
gt.count_nonzero(i)
gt.count_nonzero(i, 0)
gt.any(m)
m.any(0)
m.all(1, keepdim=True)
x.all()
gt.any(x, dim=())
x.amax()
x.amin(0)
x.amax((0, 1))
x.max()
x.min()
x.max(0)
x.min(1, keepdim=True)
x.max(dim=-1)
gt.max(x, y)
gt.min(x, other=y)
i.argmax()
i.argmin(1)
i.argmax(0, keepdim=True)
x.softmax(1)
gt.softmax(x, -1, dtype=gt.float64)
gt.log_softmax(x, 0)
gt.logsumexp(x, 1)
x.logsumexp((0, 1), keepdim=True)
x.norm()
x.norm(1)
x.norm(3, 0)
x.norm(float('inf'))
x.norm(dim=1, keepdim=True)
gt.cat([x, y])
gt.cat((x, y), -1)
gt.cat([x, i])
gt.cat([gt.zeros(0), x])
gt.stack([x, y])
gt.stack([x, y], -1)
gt.hstack([v, v])
gt.hstack([x, y])
gt.vstack([v, v])
gt.vstack([x, v])
x.repeat(2, 1)
v.repeat((3, 1))
x.tile(2)
gt.tile(v, (2, 2))
x.flip(0)
gt.flip(x, (0, 1))
x.roll(1)
gt.roll(x, 1, 0)
gt.roll(x, (1, -1), (0, 1))
x.tril()
gt.triu(x, 1)
gt.matmul(x, v)
gt.mm(x, y.t())
gt.bmm(c, c.transpose(1, 2))
x.mv(v)
v.dot(v)
gt.outer(v, w)
x.sort()
x.sort(0, descending=True)
gt.argsort(v)
v.argsort(descending=True)
x.topk(2)
gt.topk(x, 2, 0, largest=False)
gt.gather(x, 0, gt.tensor([[0, 1, 2, 0]]))
gt.scatter_add(x, 0, gt.tensor([[0, 0, 1, 2]]), y)
x.index_select(0, j)
gt.index_select(x, -1, j)
x.masked_select(m)
gt.masked_select(x, b[:, None])
x.nonzero()
gt.nonzero(m, as_tuple=True)
gt.argwhere(m)
gt.numel(x)
gt.is_tensor(x)
gt.is_tensor(1)
gt.is_floating_point(i)
gt.result_type(x, 1)
gt.result_type(i, 1.5)
gt.promote_types(gt.uint8, gt.int8)
x.clone()
x.contiguous()
x.sum(np.int64(1))
x.transpose(np.int64(0), np.int64(1))
x.softmax(np.int64(1))
x.select(np.int64(0), np.int64(1))
x.narrow(0, np.int64(1), np.int64(2))
x.topk(np.int64(2))
x.tril(np.int64(1))
gt.zeros(np.int64(2), np.int64(3))
"""


@pytest.mark.parametrize("expression", FUNCTIONS.strip().splitlines())
def test_functions(session, expression):
    same(expression)


VIEWS = """
x.view(4, 3)
x.view(-1)
x.view((2, -1))
x.view(x.shape)
x.reshape(2, 6)
x.t().reshape(-1)
x.t().reshape(2, -1)
x[:, ::2].reshape(-1)
e.reshape(3, 0)
x.flatten()
c.flatten(1)
c.flatten(0, 1)
s.flatten()
c.unflatten(2, (2, 2))
c.unflatten(-1, (-1, 2))
x.ravel()
gt.squeeze(x[:1])
x[:1].squeeze(0)
x[:1].squeeze(1)
x[None, :, None].squeeze((0, 2))
x.unsqueeze(0)
gt.unsqueeze(x, -1)
v.expand(3, 4)
v.expand(2, -1)
s.expand(2, 2)
gt.broadcast_to(v, (2, 4))
v.expand_as(x)
x.view_as(y.reshape(4, 3))
x.reshape_as(y.reshape(4, 3))
c.permute(2, 0, 1)
gt.permute(c, (0, 2, 1))
c.permute(-1, 0, 1)
c.transpose(0, 2)
gt.transpose(x, 0, 1)
c.swapaxes(0, 1)
x.t()
v.t()
x.T
c.mT
c.movedim(0, 2)
gt.movedim(c, (0, 1), (2, 0))
c.moveaxis(-1, 0)
c.select(1, -1)
x.narrow(1, 1, 2)
x.narrow(0, -2, 2)
x.split(2)
x.split(3, 1)
gt.split(x, [1, 2], dim=0)
e.split(2)
x.chunk(2)
x.chunk(3, 1)
gt.chunk(gt.arange(10), 4)
x.unbind()
x.unbind(1)
x.is_contiguous()
x.t().is_contiguous()
x.t().t().is_contiguous()
x[1:].is_contiguous()
x[:, 1:].is_contiguous()
x[:, :1].is_contiguous()
x[1].is_contiguous()
v.expand(3, 4).is_contiguous()
x[:1].t().is_contiguous()
c.permute(1, 0, 2).is_contiguous()
x.stride()
x.t().stride()
c[:, 1:, ::2].stride()
c.permute(2, 0, 1).stride()
v.expand(3, 4).stride()
x.stride(0)
c.transpose(1, 2).contiguous().is_contiguous()
c.transpose(0, 1).view(3, 2, 2, 2)
c[:, :2].view(2, 2, 2, 2).stride()
"""


@pytest.mark.parametrize("expression", VIEWS.strip().splitlines())
def test_views(session, expression):
    same(expression)


CASTS = "float double half bfloat16 long int short char byte bool"


@pytest.mark.parametrize("name", CASTS.split())
def test_casts(session, name, request):
    if name == "bfloat16" and "numpy" in request.node.name:
        with pytest.raises(gt.RemoteError, match="numpy backend has no bfloat16"):
            gt.ones(2).bfloat16().float().numpy()
        return
    for source in ("gt.abs(x)", "gt.abs(i)", "m"):
        same(f"({source}).{name}()")


def test_to(session):
    same("x.to(gt.int64)")
    same("x.to(i)")
    same("i.type_as(x)")
    x = gt.ones(2)
    assert x.to(gt.float32) is x
    assert x.to(gt.float32, copy=True) is not x
    assert x.float() is x
    assert x.cpu() is x


# -- bad calls -----------------------------------------------------------------------------

REFUSED = [
    ("x + gt.zeros(3)", gt.ShapeError, None),
    ("x.view(5, 5)", gt.ShapeError, "view(float32[3,4], shape=(5, 5)): [5,5] holds 25 elements, not 12"),
    ("x.view(5, -1)", gt.ShapeError, "view(float32[3,4], shape=(5, -1)): 12 elements do not divide into 5"),
    ("x.view(-1, -1)", gt.ShapeError, "view(float32[3,4], shape=(-1, -1)): only one size can be -1"),
    (
        "y = x.t(); y.view(-1)",
        gt.ShapeError,
        "view(float32[4,3], shape=(12,)): its memory has no view of that shape; use reshape",
    ),
    ("x.reshape(7)", gt.ShapeError, "reshape(float32[3,4], shape=(7,)): [7] holds 7 elements, not 12"),
    ("x.sum(2)", gt.DimError, "sum(float32[3,4], dim=(2,), keepdim=False, dtype=None): dim 2 is out of range [-2, 1]"),
    ("x.transpose(0, 5)", gt.DimError, "transpose(float32[3,4], dim=5): dim 5 is out of range [-2, 1]"),
    ("x.unsqueeze(4)", gt.DimError, "unsqueeze(float32[3,4], dim=4): dim 4 is out of range [-3, 2]"),
    ("x.size(2)", gt.DimError, "size(float32[3,4], 2): there are 2 dims"),
    ("x.expand(-1, 3, 4)", gt.ShapeError, None),
    ("x.expand(2, 4)", gt.ShapeError, "expand(float32[3,4], shape=(2, 4)): [3,4] does not broadcast to [2,4]"),
    ("x.flatten(1, 0)", gt.ShapeError, "flatten(float32[3,4], start_dim=1, end_dim=0): start_dim comes after end_dim"),
    ("x.narrow(0, 1, 3)", gt.DimError, None),
    ("x.select(0, 5)", gt.DimError, None),
    ("x.split([1, 1])", gt.ShapeError, None),
    ("x.split(0)", gt.ShapeError, None),
    ("c.t()", gt.ShapeError, "t(float32[2,3,4]): a tensor of 3 dims has no transpose; use transpose or mT"),
    ("gt.stack([x, v])", gt.ShapeError, "stack(float32[3,4], float32[4], dim=0): shapes must be equal"),
    ("gt.stack([])", gt.ShapeError, "stack: needs at least one tensor"),
    ("gt.cat([x, v])", gt.ShapeError, None),
    ("gt.cat(x)", gt.DTypeError, "cat: takes a list of tensors, not one tensor"),
    ("x @ x", gt.ShapeError, "matmul(float32[3,4], float32[3,4]): inner sizes differ: 4 and 3"),
    ("x.mm(v)", gt.ShapeError, "mm(float32[3,4], float32[4]): needs tensors of 2 and 2 dims; see matmul"),
    ("x.dot(x)", gt.ShapeError, "dot(float32[3,4], float32[3,4]): needs tensors of 1 and 1 dims; see matmul"),
    ("gt.bmm(c, c[:1].mT)", gt.ShapeError, None),
    ("gt.tensor('a')", gt.DTypeError, "tensor('a'): cannot make a tensor of a str"),
    ("gt.tensor(['a'])", gt.DTypeError, "tensor(['a']): elements must be numbers, not text"),
    ("gt.tensor([1, [2]])", gt.ShapeError, "tensor([1, [2]]): lists at the same depth must be equally long"),
    ("gt.tensor([None])", gt.DTypeError, "tensor([None]): elements must be numbers of at most 64 bits"),
    ("gt.tensor(2**63)", gt.DTypeError, "tensor(9223372036854775808): an int has more than 64 bits"),
    ("gt.tensor([2**63])", gt.DTypeError, "tensor([9223372036854775808]): an int has more than 64 bits"),
    ("gt.tensor([300], dtype=gt.uint8)", gt.DTypeError, None),
    ("gt.tensor(np.zeros(2, np.clongdouble))", gt.DTypeError, None),
    ("x + 2**70", gt.DTypeError, f"add(…, {2**70}): an int has at most 64 bits; use a float"),
    ("2**70 - x", gt.DTypeError, f"sub(…, {2**70}): an int has at most 64 bits; use a float"),
    ("x.add_(2**70)", gt.DTypeError, f"add(…, {2**70}): an int has at most 64 bits; use a float"),
    ("gt.add(x, object)", gt.DTypeError, None),
    ("gt.add(x, b'a')", gt.DTypeError, "add(float32[3,4], b'a'): neither a tensor nor a number: bytes"),
    ("gt.add(1, 2)", gt.DTypeError, "add(1, 2): needs a tensor; make one with gt.tensor"),
    ("x.sum(1.5)", gt.DTypeError, "a dim is an int, and 1.5 is not"),
    ("x.masked_fill([True], 1)", gt.DTypeError, "masked_fill: a tensor is needed here, not list"),
    ("gt.where(m, x, [1])", gt.DTypeError, "where(bool[3,4], float32[3,4], [1]): neither a tensor nor a number: list"),
    ("gt.tril([1])", gt.DTypeError, "tril: needs a tensor; make one with gt.tensor"),
    ("gt.exp(1)", gt.DTypeError, "exp: a tensor is needed here, not int"),
    ("x + [1]", TypeError, "unsupported operand type(s) for +: 'Tensor' and 'list'"),
    ("None - x", TypeError, "unsupported operand type(s) for -: 'NoneType' and 'Tensor'"),
    ("x + b'a'", TypeError, None),
    ("x < 'a'", TypeError, "'<' not supported between instances of 'Tensor' and 'str'"),
    ("i.add(1, alpha=0.5)", gt.DTypeError, None),
    ("i.mean()", gt.DTypeError, None),
    ("m - m", gt.DTypeError, None),
    ("gt.where(x, 1, 0)", gt.DTypeError, None),
    ("x.masked_fill(m, v)", gt.DTypeError, None),
    ("gt.isclose(x, d)", gt.DTypeError, "isclose(float32[3,4], float64[2,2]): dtypes differ: float32 and float64"),
    ("x.clamp()", gt.ShapeError, None),
    ("x.topk(9)", gt.ShapeError, None),
    ("gt.arange(3, 1)", gt.ShapeError, "arange(3, 1, 1): a step of 1 does not lead from 3 to 1"),
    ("gt.arange(0, 3, 0)", gt.ShapeError, "arange(0, 3, 0): step must not be 0"),
    ("gt.zeros(-1)", gt.ShapeError, "zeros(-1): size -1 is negative"),
    ("gt.ones((2, -3))", gt.ShapeError, "ones(2, -3): size -3 is negative"),
    ("gt.zeros(1.5)", gt.DTypeError, "zeros(): sizes are ints, and 1.5 is not"),
    ("gt.zeros(2, dtype='float')", gt.DTypeError, None),
    ("gt.randint(5, 3, (2,))", gt.ShapeError, "randint(5, 3, (2,)): there is no integer from 5 to below 3"),
    ("x.to('nowhere')", gt.DTypeError, "'nowhere' is not a device; leave it out, or use 'cpu' or 'cuda'"),
    ("gt.zeros(2, 3).item()", gt.ShapeError, None),
    (
        "gt.nested",
        AttributeError,
        "gt.nested is not there yet (torch.nested); GT has no nested or masked tensors",
    ),
    (
        "gt.relux",
        AttributeError,
        "gt.relux does not exist, and torch 2.13.0 has no public name torch.relux; did you mean gt.relu?",
    ),
    (
        "gt.Linear",
        AttributeError,
        "gt.Linear does not exist, and torch 2.13.0 has no public name torch.Linear; did you mean gt.nn.Linear?",
    ),
]


@pytest.mark.parametrize(("statement", "error", "text"), REFUSED)
def test_refused(session, statement, error, text):
    """Every bad call raises at the call, and sends nothing (``None``: the op's own text, tested with the op)."""
    if text is not None:
        refused(session, statement, error, text)
        return
    with pytest.raises(error):
        same(statement)


def test_ambiguous_truth(session):
    with pytest.raises(RuntimeError, match="ambiguous"):
        bool(gt.ones(2))
    with pytest.raises(TypeError, match="0-d"):
        len(gt.tensor(1))
    with pytest.raises(TypeError, match="0-d"):
        iter(gt.tensor(1))
    with pytest.raises(TypeError):
        format(gt.ones(2), ".2f")


# -- others --------------------------------------------------------------------------------


def test_from_numpy_is_a_snapshot(session):
    array = np.zeros(3)
    x = gt.from_numpy(array)
    array[0] = 1
    assert x.tolist() == [0, 0, 0]
    large = np.zeros(100_000)
    y = gt.tensor(large)
    large[0] = 1
    assert y[0].item() == 0


def test_to_numpy_and_back(session):
    x = gt.arange(6).reshape(2, 3).t()
    array = np.asarray(x)
    assert array.tolist() == [[0, 3], [1, 4], [2, 5]]
    array[0] = 9  # its own memory
    assert x[0].tolist() == [0, 3]
    assert torch.from_dlpack(x).tolist() == [[0, 3], [1, 4], [2, 5]]
    assert gt.tensor(torch.ones(2)).tolist() == [1, 1]


def test_lists_of_tensors(session):
    x = gt.tensor([1.0, 2.0])
    assert gt.tensor([x[0], x[1]]).tolist() == [1, 2]
    assert gt.tensor([[x[0], x[1]], [x[1], x[0]]]).tolist() == [[1, 2], [2, 1]]


def test_copies(session):
    x = gt.ones(2)
    y = copy.deepcopy(x)
    x += 1
    assert y.tolist() == [1, 1]
    with pytest.raises(TypeError, match="pickled"):
        pickle.dumps(x)
    assert len({x, x, y}) == 2


def test_random_numbers(session):
    gt.manual_seed(7)
    first = [gt.rand(5), gt.randn(2, 3), gt.randint(10, (4,)), gt.rand_like(gt.zeros(3)), gt.randperm(6)]
    first = [x.tolist() for x in first]
    gt.manual_seed(7)
    again = [gt.rand(5), gt.randn(2, 3), gt.randint(0, 10, (4,)), gt.rand_like(gt.zeros(3)), gt.randperm(6)]
    assert [x.tolist() for x in again] == first
    assert gt.initial_seed() == 7
    assert sorted(first[-1]) == list(range(6))
    assert all(0 <= v < 1 for v in first[0])
    assert gt.rand(5).tolist() != first[0]
    gt.manual_seed(2**64 - 1)
    assert gt.initial_seed() == 2**64 - 1
    assert gt.seed() != gt.seed()
    assert gt.rand(3).dtype is gt.float32
    assert gt.randn(3, dtype=gt.float64).dtype is gt.float64
    assert gt.randint_like(gt.zeros(3, dtype=gt.int32), 5).dtype is gt.int32
    assert set(gt.bernoulli(gt.full((100,), 0.5)).tolist()) == {0.0, 1.0}


def test_a_refused_random_call_uses_up_nothing(session):
    gt.manual_seed(3)
    first = gt.rand(3).tolist()
    gt.manual_seed(3)
    with pytest.raises(gt.DTypeError):
        gt.rand(3, dtype=gt.int64)
    assert gt.rand(3).tolist() == first


def test_every_method_is_there():
    """Every function of `gt` on a tensor is also a method, where torch has the method."""
    functions = {n for n in gt.__all__ if callable(getattr(gt, n)) and not isinstance(getattr(gt, n), type)}
    missing = {n for n in functions if hasattr(torch.Tensor, n) and not hasattr(gt.Tensor, n)}
    assert missing == set()
    unknown = {n for n in functions if not hasattr(torch, n)}
    ours = {
        "auto_shard",
        "cancel",
        "checkpoint",
        "connect",
        "disconnect",
        "gpu_workers",
        "load_config",
        "register_config",
    }
    assert unknown == {*ours, "workers"}


def test_every_method_is_torchs():
    ours = {n for n in vars(gt.Tensor) if not n.startswith("_")}
    newer = {"const_data_ptr"} if torch.__version__ < "2.13" else set()
    assert {n for n in ours if not hasattr(torch.Tensor, n)} == {*newer, "to_device"}  # the last is the Array API's


def test_public_names():
    assert len(set(gt.__all__)) == len(gt.__all__)
    for name in gt.__all__:
        assert getattr(gt, name) is not None
    assert callable(gt.log)  # no module may have the name of a function
    assert gt.float is gt.float32
    assert gt.dtype is gt.DType
    assert {n for n, e in vars(gt.errors).items() if isinstance(e, type)} == set(gt.errors.__all__)
    assert gt.__version__


def test_import_is_light():
    heavy = "torch", "numpy", "zmq", "asyncio", "yaml", "hashlib", "inspect", "dataclasses", "gt.functions.legacy"
    # msgspec imports typing_extensions where it is installed, and that imports inspect
    code = "import sys; sys.modules['typing_extensions'] = None\nimport gt"
    assert output_of(f"{code}; print([m for m in {heavy} if m in sys.modules])") == "[]"


@pytest.mark.parametrize(
    ("before", "state"), [("gc.freeze()", "True True"), ("gc.disable()", "False False"), ("", "True False")]
)
def test_import_leaves_the_garbage_collector_as_it_was(before, state):
    code = f"import gc; {before}\nimport gt; print(gc.isenabled(), gc.get_freeze_count() > 0)"
    assert output_of(code) == state


def output_of(code):
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return process.stdout.strip()


def test_a_caught_error_keeps_no_tensors_alive(session):
    """An error in a cycle with its traceback: after `OutOfMemory`, the caught error must not keep tensors alive."""

    def fail():
        large = gt.arange(5)
        try:
            large[gt.tensor([7])].tolist()
        except gt.RemoteError:
            return weakref.ref(large)

    gc.disable()
    try:
        assert fail()() is None
    finally:
        gc.enable()


def test_two_sessions_do_not_mix(session):
    from gt.testing import Cluster

    x = gt.ones(2)
    with Cluster().client():
        y = gt.ones(2)
    with pytest.raises(gt.ClusterError):
        x + y
    assert to_torch(x).tolist() == [1, 1]
