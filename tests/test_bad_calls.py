"""Calls that must be refused before anything is sent, each with its exact words."""

from __future__ import annotations

import re
from typing import Any

import pytest

from gt.errors import DimError, DTypeError, GtError, ShapeError
from gt.ops import OPS, sign
from gt.types import DTYPES, SCALARS, OperandType, TensorType
from tests.bad_calls_nn import BAD_NN

X = "float32[5,3]"


def parsed(text: str) -> OperandType:
    if text in SCALARS:
        return SCALARS[text]
    name, sizes = re.fullmatch(r"(\w+)\[(.*)\]", text).groups()  # type: ignore[union-attr]
    return TensorType(tuple(int(n) for n in sizes.split(",") if n), DTYPES[name])


#: (op, operand types, attributes, error, what it says after naming the call)
BAD: list[tuple[str, str, dict[str, Any], type[GtError], str]] = [
    ("add", f"{X} float32[4]", {}, ShapeError, "sizes 3 and 4 do not broadcast"),
    ("add", f"{X} float32[2,1,4]", {}, ShapeError, "sizes 3 and 4 do not broadcast"),
    ("sub", f"{X} bool[3]", {}, DTypeError, "not defined for bool; use logical_xor, or logical_not to invert a mask"),
    ("sub", "bool bool[3]", {}, DTypeError, "not defined for bool; use logical_xor, or logical_not to invert a mask"),
    ("neg", "bool[3]", {}, DTypeError, "not defined for bool; use logical_not"),
    ("abs", "bool[3]", {}, DTypeError, "not defined for bool; use integers: x.to(gt.int64)"),
    ("pow", "bool[3] bool[3]", {}, DTypeError, "not defined for bool; use integers: x.to(gt.int64)"),
    ("bitwise_and", f"{X} int64[3]", {}, DTypeError, "not defined for float32; use integers or bools"),
    ("bitwise_not", "float64[3]", {}, DTypeError, "not defined for float64; use integers or bools"),
    ("silu", "int64[3]", {}, DTypeError, "not defined for int64; use x.to(gt.float32)"),
    ("gelu", X, {"approximate": "erf"}, ShapeError, "approximate is 'none' or 'tanh', not 'erf'"),
    ("div", f"{X} int", {"rounding_mode": "up"}, ShapeError, "rounding_mode is None, 'floor' or 'trunc', not 'up'"),
    ("clamp", X, {"has_min": False, "has_max": False}, ShapeError, "needs min, max or both"),
    (
        "where",
        f"int64[3] {X} int",
        {},
        DTypeError,
        "the condition must be a bool tensor, not int64[3]; compare first: x != 0",
    ),
    ("to", X, {"dtype": "float8"}, DTypeError, "no dtype is called 'float8'"),
    ("copy", f"{X} float32[2,5,3]", {}, ShapeError, "[2,5,3] does not broadcast to [5,3]"),
    ("sum", X, {"dim": (2,), "keepdim": False, "dtype": None}, DimError, "dim 2 is out of range [-2, 1]"),
    ("sum", X, {"dim": (0, 0), "keepdim": False, "dtype": None}, ShapeError, "dim 0 appears more than once"),
    ("sum", X, {"dim": (1.5,), "keepdim": False, "dtype": None}, DTypeError, "a dim is an int, and 1.5 is not"),
    (
        "amax",
        X,
        {"dim": (), "keepdim": False},
        DimError,
        "dim is empty; name the dims to fold, or leave it out for all",
    ),
    (
        "amax",
        "float32[0,3]",
        {"dim": (0,), "keepdim": True},
        DimError,
        "dim 0 has size 0, and there is no extreme of nothing",
    ),
    (
        "mean",
        "int64[3]",
        {"dim": (0,), "keepdim": False, "dtype": None},
        DTypeError,
        "not defined for int64; give a floating dtype: dtype=gt.float32",
    ),
    (
        "mean",
        X,
        {"dim": (0,), "keepdim": False, "dtype": "int8"},
        DTypeError,
        "not defined for int8; give a floating dtype: dtype=gt.float32",
    ),
    ("argmax", "bool[3]", {"dim": 0, "keepdim": False}, DTypeError, "not defined for bool; use x.to(gt.uint8)"),
    (
        "argmax",
        "int64[0]",
        {"dim": None, "keepdim": False},
        DimError,
        "dim 0 has size 0, and there is no extreme of nothing",
    ),
    (
        "softmax",
        "int64[3]",
        {"dim": 0, "dtype": None},
        DTypeError,
        "not defined for int64; give a floating dtype: dtype=gt.float32",
    ),
    ("matmul", "float32[8,4] float32[5,4]", {}, ShapeError, "inner sizes differ: 4 and 5"),
    ("matmul", "float32[8,4] int64[4,4]", {}, DTypeError, "dtypes differ: float32 and int64"),
    ("matmul", "float32[] float32[4]", {}, ShapeError, "needs tensors of at least one dim; use mul for numbers"),
    ("matmul", "float32[2,5,4] float32[3,4,5]", {}, ShapeError, "sizes 2 and 3 do not broadcast"),
    ("matmul", "bool[2,2] bool[2,2]", {}, DTypeError, "not defined for bool; use x.to(gt.float32)"),
    ("view", X, {"shape": (4, 4)}, ShapeError, "[4,4] holds 16 elements, not 15"),
    ("reshape", X, {"shape": (-5, -3)}, ShapeError, "size -5 is negative"),
    ("reshape", X, {"shape": (7.5, 2)}, DTypeError, "sizes are ints, and 7.5 is not"),
    ("permute", X, {"dims": (0,)}, ShapeError, "dims (0,) must name each of the 2 dims once"),
    ("expand", X, {"shape": (5, 4)}, ShapeError, "[5,3] does not broadcast to [5,4]"),
    ("cat", f"{X} float32[5,4]", {"dim": 0}, ShapeError, "[5,4] and [5,3] differ outside dim 0"),
    ("cat", f"{X} float32[]", {"dim": 0}, ShapeError, "a 0-d tensor cannot be joined; reshape it to (1,)"),
    ("cat", "", {"dim": 0}, ShapeError, "needs at least one tensor"),
    (
        "split",
        X,
        {"sizes": (2, 2), "dim": 0},
        ShapeError,
        "sizes (2, 2) must be 0 or more and add up to 5, the size of dim 0",
    ),
    ("repeat", X, {"repeats": (2,)}, ShapeError, "repeats (2,) must have a number for each of the 2 dims"),
    ("tril", "float32[3]", {"diagonal": 0}, ShapeError, "needs a tensor of at least two dims"),
    ("slice", f"{X} int", {"items": (("i",),)}, DimError, "1 indices with 1 starts for 2 dims"),
    (
        "slice",
        f"{X} int int",
        {"items": (("s", 6, 1), ("i",))},
        DimError,
        "6 elements with step 1 are not within size 5",
    ),
    (
        "slice",
        f"{X} int int",
        {"items": (("s", 2, -1), ("i",))},
        ShapeError,
        "step -1 must be at least 1; flip the dim to go backwards",
    ),
    (
        "index",
        f"{X} float32[2]",
        {"dims": (0,)},
        DTypeError,
        "an index is an int64 or int32 tensor, not float32[2]; use x.to(gt.int64)",
    ),
    ("index", f"{X} int64[2] int64[3]", {"dims": (0, 1)}, ShapeError, "sizes 2 and 3 do not broadcast"),
    ("index", f"{X} int64[2]", {"dims": (2,)}, DimError, "dim 2 is out of range [-2, 1]"),
    ("index", "float32[0,3] int64[2]", {"dims": (0,)}, DimError, "dim 0 has size 0: there is nothing to index"),
    (
        "index_put",
        f"{X} float32[2,4] int64[2]",
        {"dims": (0,), "accumulate": False},
        ShapeError,
        "[2,4] does not broadcast to [2,3]",
    ),
    (
        "index_put",
        f"{X} int64[2,3] int64[2]",
        {"dims": (0,), "accumulate": False},
        DTypeError,
        "dtypes differ: float32 and int64",
    ),
    ("masked_select", f"{X} int64[5]", {"n": 1}, DTypeError, "the mask is a bool tensor, not int64[5]"),
    ("masked_select", f"{X} bool[3]", {"n": 1}, DimError, "a mask of shape [3] does not cover the first dims of [5,3]"),
    ("masked_select", f"{X} bool[5]", {"n": 6}, ShapeError, "a mask of 5 elements cannot choose 6"),
    ("masked_put", f"{X} bool[5] float32[2,4]", {}, ShapeError, "[2,4] does not broadcast to [2,3]"),
    ("put_view", f"{X} float32[4]", {"chain": ()}, ShapeError, "[4] does not broadcast to [5,3]"),
    (
        "put_view",
        f"{X} int",
        {"chain": (("expand", (("shape", (2, 5, 3)),)),)},
        ShapeError,
        "expand shows elements more than once; write into a clone",
    ),
    ("put_view", f"{X} int", {"chain": (("flip", (("dims", (0,)),)),)}, ShapeError, "flip does not make one view"),
    ("put_view", f"{X} int int", {"chain": ()}, DimError, "1 starts too many for the chain of views"),
    ("gather", f"{X} int64[6,3]", {"dim": 1}, ShapeError, "the index [6,3] is larger than [5,3] outside dim 1"),
    ("gather", f"{X} int64[3]", {"dim": 1}, ShapeError, "an index of 1 dims for a tensor of 2"),
    (
        "scatter_add",
        f"{X} int64[5,3] float32[4,3]",
        {"dim": 0},
        ShapeError,
        "the index [5,3] is larger than the source [4,3]",
    ),
    (
        "scatter_add",
        f"{X} int64[5,3] float64[5,3]",
        {"dim": 0},
        DTypeError,
        "the source is a tensor of float32, not float64[5,3]",
    ),
    ("nonzero", X, {"n": 16}, ShapeError, "15 elements cannot hold 16 that are not zero"),
    (
        "topk",
        X,
        {"k": 4, "dim": 1, "largest": True, "sorted": True},
        ShapeError,
        "k=4 is not within the 3 elements of dim 1",
    ),
    ("sort", X, {"dim": 2, "descending": False, "stable": False}, DimError, "dim 2 is out of range [-2, 1]"),
    ("full", "int", {"shape": (2, -1), "dtype": "int8"}, ShapeError, "size -1 is negative"),
    ("full", X, {"shape": (2,), "dtype": "int8"}, DTypeError, "takes plain numbers here, not float32[5,3]"),
    ("arange", "int int", {"n": 3, "dtype": "bool"}, DTypeError, "not defined for bool; use int64"),
    ("rand", "int int", {"shape": (2,), "dtype": "int64"}, DTypeError, "gives floating dtypes, not int64; use randint"),
    ("rand", "float int", {"shape": (2,), "dtype": "float32"}, DTypeError, "takes plain numbers here, not float"),
    ("upload", "int", {"shape": (2,), "dtype": "float32"}, DTypeError, "takes bytes, not int"),
    *BAD_NN,
]


@pytest.mark.parametrize(("op", "operands", "attrs", "error", "words"), BAD, ids=[f"{b[0]}-{b[4]}" for b in BAD])
def test_refused_in_these_words(
    op: str, operands: str, attrs: dict[str, Any], error: type[GtError], words: str
) -> None:
    types = tuple(map(parsed, operands.split()))
    with pytest.raises(GtError) as caught:
        sign(OPS[op], tuple(attrs.items()), types)
    assert type(caught.value) is error
    shown = [*operands.split(), *(f"{k}={v}" for k, v in attrs.items())]
    assert str(caught.value) == f"{op}({', '.join(shown)}): {words}"


def test_in_place_says_what_does_not_fit() -> None:
    with pytest.raises(DTypeError) as caught:
        sign(OPS["add"], (), (parsed("int64[3]"), parsed("float32[3]")), into=True)
    assert str(caught.value) == "add(int64[3], float32[3]): in place, float32 does not fit into int64"
