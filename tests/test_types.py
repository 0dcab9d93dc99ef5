"""Promotion and the rules of inference, against torch's own."""

from __future__ import annotations

import copy
import itertools
import pickle
import subprocess
import sys
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gt.errors import DimError, ShapeError
from gt.ops import OPS, sign
from gt.ops.infer import broadcast_shapes, wrap_dim, wrap_dims
from gt.types import DTYPES, SCALAR_OF, DType, TensorType, float32, int64, promote, result_dtype
from tests.support.oracle import ORACLES, infers_as
from tests.support.samples import ALL, type_of
from tests.support.samples_complex import COMPLEX

NUMBERS = (True, 2, 1.5)
#: a dimensioned tensor, a 0-d one, or a number, of every dtype there is
OPERANDS = [torch.ones(shape, dtype=getattr(torch, d)) for d in (*ALL, *COMPLEX) for shape in ((2,), ())] + list(
    NUMBERS
)


def named(x: Any) -> str:
    return str(type_of(x))


@pytest.mark.parametrize("a", OPERANDS, ids=named)
def test_promotion_is_torchs(a: Any) -> None:
    for b in OPERANDS:
        if isinstance(a, torch.Tensor) or isinstance(b, torch.Tensor):
            want = torch.result_type(a, b)
            want = torch.complex64 if want is torch.complex32 else want  # GT has no complex32
            assert f"torch.{result_dtype(type_of(a), type_of(b)).name}" == str(want), named(b)


def test_promotion_of_three_is_torchs() -> None:
    numeric = [x for x in OPERANDS if isinstance(x, torch.Tensor) and x.dtype is not torch.bool and not x.is_complex()]
    for three in itertools.product(numeric[::2], numeric, numeric[1::2]):
        want = torch.clamp(three[0], min=three[1], max=three[2]).dtype
        assert f"torch.{result_dtype(*map(type_of, three)).name}" == str(want)


def test_promotion_does_not_depend_on_order() -> None:
    for a, b, c in itertools.product(DTYPES.values(), repeat=3):
        assert promote(a, b) is promote(b, a)
        assert result_dtype(*(TensorType((1,), d) for d in (a, b, c))) is promote(a, promote(b, c)) or _halves(a, b, c)


def _halves(*dtypes: DType) -> bool:
    """float16 and bfloat16 meet in float32, which makes it matter who meets first."""
    return {"float16", "bfloat16"} <= {d.name for d in dtypes}


def test_types_are_interned_and_say_what_they_are() -> None:
    assert TensorType((5, 3)) is TensorType((5, 3), float32)
    assert str(TensorType((5, 3), int64)) == "int64[5,3]"
    assert str(TensorType(())) == "float32[]"
    assert (TensorType((5, 0), int64).nbytes, TensorType((5, 3), int64).nbytes) == (0, 120)


def test_dtypes_survive_copying() -> None:
    assert copy.deepcopy(float32) is float32
    assert str(float32) == "gt.float32"
    assert {d.name: d.itemsize for d in DTYPES.values()} == {d: getattr(torch, d).itemsize for d in (*ALL, *COMPLEX)}
    assert all(pickle.loads(pickle.dumps(d)) is d for d in DTYPES.values())


def test_importing_the_ops_is_light() -> None:
    code = "import sys, gt.ops; print([m for m in ('torch', 'numpy', 'triton') if m in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_dims_wrap() -> None:
    assert [wrap_dim(d, 3) for d in (-3, -1, 0, 2)] == [0, 2, 0, 2]
    assert (wrap_dim(-1, 0), wrap_dims((-1, 0), 2)) == (0, (1, 0))
    with pytest.raises(DimError, match=r"dim 2 is out of range \[-2, 1\]"):
        wrap_dim(2, 2)
    with pytest.raises(ShapeError, match="dim 1 appears more than once"):
        wrap_dims((1, -1), 2)


# -- valid in torch, valid in GT, and the same type ----------------------------------------

sizes = st.integers(0, 3)
shapes = st.lists(sizes, max_size=3).map(tuple)
dtypes = st.sampled_from(ALL)
tensors = st.builds(lambda shape, d: torch.ones(shape, dtype=getattr(torch, d)), shapes, dtypes)
many = settings(max_examples=150, deadline=None, derandomize=True)


@many
@given(shapes, shapes)
def test_broadcasting_is_torchs(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    try:
        want = tuple(torch.broadcast_shapes(a, b))
    except RuntimeError:
        with pytest.raises(ShapeError):
            broadcast_shapes(a, b)
    else:
        assert broadcast_shapes(a, b) == want


def agree(op: str, operands: tuple[Any, ...], **attrs: Any) -> None:
    call = ORACLES.get(op) or getattr(torch, op)
    try:
        result = call(*operands, **attrs)
    except (RuntimeError, IndexError, TypeError):
        want = None
    else:
        want = tuple(map(type_of, result if isinstance(result, tuple) else (result,)))
    assert infers_as(OPS[op], tuple(map(type_of, operands)), tuple(attrs.items())) == want


BINARY = ["add", "sub", "mul", "floor_divide", "remainder", "fmod", "pow", "maximum", "minimum", "atan2", "eq", "lt"]
BINARY += ["logical_and", "logical_xor", "bitwise_and", "bitwise_or"]


@many
@given(st.sampled_from(BINARY), tensors, tensors | st.sampled_from((2, 1.5)), st.booleans())
def test_binary_ops_take_what_torch_takes(op: str, a: Any, b: Any, swap: bool) -> None:
    agree(op, (b, a) if swap else (a, b))


@many
@given(tensors, tensors | st.sampled_from((2, 1.5)), st.sampled_from((None, "floor", "trunc", "up")))
def test_div_takes_what_torch_takes(a: Any, b: Any, rounding_mode: Any) -> None:
    agree("div", (a, b), rounding_mode=rounding_mode)


UNARY = ["neg", "abs", "sign", "exp", "log", "sqrt", "square", "tanh", "sigmoid", "relu", "silu", "erf", "floor"]
UNARY += ["round", "isnan", "isfinite", "logical_not", "bitwise_not", "clone"]


@many
@given(st.sampled_from(UNARY), tensors)
def test_unary_ops_take_what_torch_takes(op: str, x: Any) -> None:
    agree(op, (x,))


@many
@given(st.booleans(), tensors, tensors | st.sampled_from((2, 1.5)), tensors)
def test_where_takes_what_torch_takes(as_bool: bool, c: Any, a: Any, b: Any) -> None:
    # a uint8 condition is among the LIMITS
    agree("where", (c.bool() if as_bool or c.dtype is torch.uint8 else c, a, b))


#: not empty unless the tensor is 0-d: see `gt.ops.math.reduce`
dims = st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple)
maybe_dtype = st.none() | dtypes


@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
@many
@given(st.sampled_from(["amax", "amin", "all", "any", "logsumexp", "var"]), tensors, dims, st.booleans())
def test_reductions_take_what_torch_takes(op: str, x: Any, dim: Any, keepdim: bool) -> None:
    agree(op, (x,), dim=dim, keepdim=keepdim, **({"correction": 1} if op == "var" else {}))


@many
@given(st.sampled_from(["sum", "mean"]), tensors, dims, st.booleans(), maybe_dtype)
def test_sums_take_what_torch_takes(op: str, x: Any, dim: Any, keepdim: bool, dtype: Any) -> None:
    agree(op, (x,), dim=dim, keepdim=keepdim, dtype=dtype)


@many
@given(st.sampled_from(["argmax", "argmin", "max_dim", "min_dim"]), tensors, st.integers(0, 3), st.booleans())
def test_extremes_take_what_torch_takes(op: str, x: Any, dim: int, keepdim: bool) -> None:
    agree(op, (x,), dim=dim, keepdim=keepdim)


@many
@given(st.sampled_from(["softmax", "log_softmax"]), tensors, st.integers(0, 3), maybe_dtype)
def test_softmax_takes_what_torch_takes(op: str, x: Any, dim: int, dtype: Any) -> None:
    if x.numel():  # torch does not look at the dtype of an empty tensor here
        agree(op, (x,), dim=dim, dtype=dtype)


few = st.sampled_from(("float32", "float64", "int64", "bool"))
narrow = st.lists(st.integers(1, 2), max_size=4).map(tuple)
factors = st.builds(lambda shape, d: torch.ones(shape, dtype=getattr(torch, d)), narrow, few)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(factors, factors, st.booleans())
def test_matmul_takes_what_torch_takes(a: Any, b: Any, agreeing: bool) -> None:
    agree("matmul", (a, b.to(a.dtype) if agreeing else b))


@many
@given(st.lists(tensors, min_size=1, max_size=3), st.integers(0, 3), st.booleans())
def test_cat_takes_what_torch_takes(xs: list[Any], dim: int, alike: bool) -> None:
    xs = [x.reshape(-1) for x in xs] if alike else xs
    if any(x.shape != (0,) for x in xs):  # of these torch takes any dim
        agree("cat", tuple(xs), dim=dim)


@many
@given(tensors, st.lists(st.integers(0, 3), max_size=3).map(tuple))
def test_permute_takes_what_torch_takes(x: Any, dims: Any) -> None:
    agree("permute", (x,), dims=dims)


@many
@given(tensors, shapes)
def test_views_and_expansions_take_what_torch_takes(x: Any, shape: Any) -> None:
    agree("view", (x,), shape=shape)
    agree("expand", (x,), shape=shape)


def test_in_place_keeps_the_targets_type() -> None:
    kinds = [TensorType((2,), d) for d in DTYPES.values()]
    for a, b in itertools.product(kinds, kinds):
        x, y = (torch.ones(2, dtype=getattr(torch, t.dtype.name)) for t in (a, b))
        try:
            x.add_(y)
        except RuntimeError:
            with pytest.raises(TypeError):
                sign(OPS["add"], (), (a, b), into=True)
        else:
            assert sign(OPS["add"], (), (a, b), into=True).outs == (a,)


def test_numbers_have_types() -> None:
    assert [SCALAR_OF[type(n)].name for n in NUMBERS] == ["bool", "int", "float"]
