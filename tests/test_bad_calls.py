"""Calls that must be refused before anything is sent, each with its exact text; and those that a kernel refuses."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from gt.errors import DimError, DTypeError, GtError, ShapeError
from gt.ops import OPS, sign
from gt.types import DTYPES, SCALARS, OperandType, TensorType
from gt.worker.engines import make_engine
from tests.support.bad_calls_nn import BAD_NN
from tests.support.samples import type_of

X = "float32[5,3]"
NO_COMPLEX = "not defined for complex64; use x.real, x.imag or abs(x)"
PARTS = "takes two tensors of float32 or of float64"
#: the meaning of the letters that describe an op's operands
LETTERS = "(t: a tensor, i: an int, f: a float, b: a bool, B: bytes)"


def parsed(text: str) -> OperandType:
    if text in SCALARS:
        return SCALARS[text]
    name, sizes = re.fullmatch(r"(\w+)\[(.*)\]", text).groups()  # type: ignore[union-attr]
    return TensorType(tuple(int(n) for n in sizes.split(",") if n), DTYPES[name])


#: (op, operand types, attributes, error, its text after the call)
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
    ("to", X, {"dtype": "float8"}, DTypeError, "no dtype is named 'float8'"),
    (
        "multinomial",
        "int64[3] int int",
        {"num_samples": 2},
        DTypeError,
        "needs floating weights, not int64; use x.float()",
    ),
    ("multinomial", f"{X} int float", {"num_samples": 2}, DTypeError, f"takes the operands tii {LETTERS}"),
    ("multinomial", "float32[2,0] int int", {"num_samples": 2}, ShapeError, "there is nothing to draw from in [2,0]"),
    ("multinomial", f"{X} int int", {"num_samples": -1}, ShapeError, "size -1 is negative"),
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
    ("cat", "", {"dim": 0}, DTypeError, "takes only tensors, at least one"),
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
    ("masked_select", f"{X} bool[5]", {"n": 1.5}, DTypeError, "n is an int of 64 bits, not 1.5"),
    ("nonzero", X, {"n": True}, DTypeError, "n is an int of 64 bits, not True"),
    (
        "masked_scatter_backward",
        f"{X} uint8[5,3]",
        {"shape": (9,)},
        DTypeError,
        "the mask is a bool tensor of shape [5,3], not uint8[5,3]",
    ),
    (
        "masked_scatter_backward",
        f"{X} bool[4,3]",
        {"shape": (9,)},
        DTypeError,
        "the mask is a bool tensor of shape [5,3], not bool[4,3]",
    ),
    (
        "slice",
        f"{X} int int",
        {"items": (("x", 1, 1), ("i",))},
        DimError,
        "an index is ('i',), ('n',) or ('s', length, step), not ('x', 1, 1)",
    ),
    ("slice", f"{X} int int", {"items": (("s", 1.5, 1), ("i",))}, DTypeError, "length is an int of 64 bits, not 1.5"),
    (
        "index_put",
        f"{X} int int64[2]",
        {"dims": (0,), "accumulate": 2},
        DTypeError,
        "accumulate is True or False, not 2",
    ),
    (
        "gather",
        f"{X} int64[5,3]",
        {"dim": -1},
        DimError,
        "dim -1 is counted from the end; an op's dims are counted from the start",
    ),
    ("gather", f"{X} int64[5,3]", {"dim": True}, DTypeError, "a dim is an int, and True is not"),
    (
        "scatter_reduce",
        f"{X} int64[5,3] {X}",
        {"dim": 0, "reduce": "sum", "include_self": None},
        DTypeError,
        "include_self is True or False, not None",
    ),
    ("sort", X, {"dim": 0, "descending": None, "stable": True}, DTypeError, "descending is True or False, not None"),
    ("topk", X, {"k": 1, "dim": 1, "largest": True, "sorted": 2}, DTypeError, "sorted is True or False, not 2"),
    ("kthvalue", X, {"k": 1, "dim": 1, "keepdim": None}, DTypeError, "keepdim is True or False, not None"),
    (
        "searchsorted",
        "int64[4] int64[2]",
        {"right": None, "out_int32": False},
        DTypeError,
        "right is True or False, not None",
    ),
    (
        "searchsorted",
        "bool[4] bool[2]",
        {"right": False, "out_int32": False},
        DTypeError,
        "not defined for bool; use x.to(gt.uint8)",
    ),
    ("unique_ranks", "float32[5,0]", {}, ShapeError, "the rows of [5,0] have no elements to compare"),
    ("histc", f"{X} int int", {"bins": 1 << 24}, ShapeError, "takes 1 to 8388608 bins in float32, not 16777216"),
    ("reshape", X, {"shape": (True, 15)}, DTypeError, "sizes are ints, and True is not"),
    ("view", "float32[0]", {"shape": (1 << 40, 1 << 40, 0)}, ShapeError, "the result is larger than any memory"),
    ("expand", "float32[1]", {"shape": (1 << 62,)}, ShapeError, "the result is larger than any memory"),
    ("split", X, {"sizes": (2.5, 2.5), "dim": 0}, DTypeError, "size is an int of 64 bits, not 2.5"),
    (
        "roll",
        X,
        {"shifts": (), "dims": ()},
        ShapeError,
        "shifts () and dims () must go in pairs, on a tensor of at least one dim",
    ),
    (
        "roll",
        X,
        {"shifts": (1 << 63,), "dims": (0,)},
        DTypeError,
        "9223372036854775808 does not fit into 64 bits",
    ),
    ("triu", X, {"diagonal": 1.5}, DTypeError, "diagonal is an int of 64 bits, not 1.5"),
    ("diagonal", X, {"offset": None, "dim1": 0, "dim2": 1}, DTypeError, "offset is an int of 64 bits, not None"),
    (
        "unfold",
        X,
        {"dim": -1, "size": 2, "step": 1},
        DimError,
        "dim -1 is counted from the end; an op's dims are counted from the start",
    ),
    ("unfold", X, {"dim": 1, "size": 2, "step": 0}, ShapeError, "windows of 2 with step 0 do not fit into size 3"),
    ("pad", f"{X} int", {"pads": ((-7, 3), (0, 0))}, ShapeError, "pads ((-7, 3), (0, 0)) take away more than there is"),
    ("pad", f"{X} int", {"pads": ((1.5, 0), (0, 0))}, DTypeError, "before is an int of 64 bits, not 1.5"),
    ("sum", X, {"dim": (0,), "keepdim": 2, "dtype": None}, DTypeError, "keepdim is True or False, not 2"),
    (
        "mean",
        X,
        {"dim": (0,), "keepdim": True, "dtype": None, "whole": 1.5},
        DTypeError,
        "whole is an int of 64 bits, not 1.5",
    ),
    ("var", X, {"dim": (0,), "keepdim": True, "correction": None}, DTypeError, "correction is a number, not None"),
    ("argmax", X, {"dim": 0, "keepdim": 2}, DTypeError, "keepdim is True or False, not 2"),
    (
        "value_selecting_reduction_backward",
        f"{X} int64[4,3]",
        {"dim": 0, "size": 5, "keepdim": False},
        ShapeError,
        "the index is an int64 tensor of shape [5,3], not int64[4,3]",
    ),
    (
        "value_selecting_reduction_backward",
        f"{X} int64[5,3]",
        {"dim": 0, "size": 5, "keepdim": True},
        ShapeError,
        "[5,3] is not what a reduction of dim 0 of size 5 leaves",
    ),
    (
        "vector_norm",
        X,
        {"ord": None, "dim": (0,), "keepdim": True, "dtype": None},
        DTypeError,
        "ord is a number, not None",
    ),
    ("nanmedian", "bool[3]", {}, DTypeError, "not defined for bool; use x.to(gt.uint8)"),
    ("median", "int64[0]", {}, DimError, "there is no middle of nothing; of floats it is NaN"),
    (
        "cummaxmin_backward",
        f"{X} int64[5,2]",
        {"dim": 0},
        ShapeError,
        "the index is an int64 tensor of shape [5,3], not int64[5,2]",
    ),
    (
        "softmax_backward",
        f"{X} float32[5,1]",
        {"dim": 0, "dtype": None},
        ShapeError,
        "the gradient [5,3] and the result [5,1] differ",
    ),
    (
        "log_softmax_backward",
        f"{X} float16[5,3]",
        {"dim": 0, "dtype": None},
        DTypeError,
        "a gradient of float32 does not fit a result of float16",
    ),
    ("prod_others", "bool[3]", {"dim": (0,)}, DTypeError, "not defined for bool; a gradient is floating"),
    (
        "cumprod_backward",
        f"{X} float32[4,3] {X}",
        {"dim": 0},
        ShapeError,
        "three floating tensors of one type, not float32[5,3], float32[4,3] and float32[5,3]",
    ),
    (
        "solve_triangular",
        "float32[3,3] float32[3,2]",
        {"upper": 2, "unitriangular": True},
        DTypeError,
        "upper is True or False, not 2",
    ),
    ("svd", X, {"full_matrices": None}, DTypeError, "full_matrices is True or False, not None"),
    ("matmul", X, {}, DTypeError, f"takes the operands tt {LETTERS}"),
    (
        "arange",
        "int int",
        {"n": 3, "dtype": "int64", "first": -1},
        ShapeError,
        "3 positions from -1 on are not within 0 and 9007199254740992",
    ),
    (
        "rand",
        "int int",
        {"shape": (2,), "dtype": "float32", "block": ((0.5,), (3,))},
        DTypeError,
        "sizes are ints, and 0.5 is not",
    ),
    ("block", X, {"starts": (-1, 0), "sizes": (1, 1)}, ShapeError, "the block at (-1, 0) of (1, 1) is not inside"),
    ("term", X, {"mine": 2}, DTypeError, "mine is True or False, not 2"),
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
    ("full", X, {"shape": (2,), "dtype": "int8"}, DTypeError, f"takes the operands [ifb]|ff {LETTERS}"),
    (
        "full",
        "float float",
        {"shape": (2,), "dtype": "float32"},
        DTypeError,
        "a complex number does not fit into float32",
    ),
    ("add", "complex64[3] float32[4]", {}, ShapeError, "sizes 3 and 4 do not broadcast"),
    ("lt", f"{X} complex64[3]", {}, DTypeError, NO_COMPLEX),
    ("arange", "int int", {"n": 2, "dtype": "complex64"}, DTypeError, NO_COMPLEX),
    ("to", "complex64[3]", {"dtype": "int64"}, DTypeError, "int64 has no imaginary part; use x.real first"),
    ("copy", f"{X} complex64[3]", {}, DTypeError, "float32 has no imaginary part; use x.real"),
    ("real", X, {}, DTypeError, "not defined for float32; it takes complex numbers"),
    ("complex", "float16[3] float16[3]", {}, DTypeError, f"{PARTS}, not float16 and float16"),
    ("complex", f"{X} float64[3]", {}, DTypeError, f"{PARTS}, not float32 and float64"),
    ("view_as_complex", "float16[2]", {}, DTypeError, "not defined for float16; use float32 or float64"),
    ("fft_c2c", X, {"dim": (0,), "inverse": False, "norm": "ortho"}, DTypeError, "takes complex numbers, not float32"),
    ("fft_r2c", "complex64[3]", {"dim": (0,), "norm": "ortho"}, DTypeError, "takes float32 or float64, not complex64"),
    ("fft_r2c", X, {"dim": (), "norm": "ortho"}, ShapeError, "needs at least one dim to transform"),
    ("fft_r2c", X, {"dim": (0,), "norm": "no"}, ShapeError, "norm is 'backward', 'ortho' or 'forward', not 'no'"),
    (
        "fft_c2r",
        "complex64[3]",
        {"dim": (0,), "size": 8, "norm": "ortho"},
        ShapeError,
        "a result of size 8 needs 5 elements along dim 0",
    ),
    ("fft_c2r", X, {"dim": (0,), "size": 8, "norm": "ortho"}, DTypeError, "takes complex numbers, not float32"),
    ("arange", "int int", {"n": 3, "dtype": "bool"}, DTypeError, "not defined for bool; use int64"),
    ("load_file", "bytes", {"types": ()}, ShapeError, "names no tensors to read"),
    (
        "scatter_reduce",
        "bool[3] int64[3] bool[3]",
        {"dim": 0, "reduce": "mean", "include_self": True},
        DTypeError,
        "there is no mean of bools; use x.to(gt.float32)",
    ),
    (
        "vector_norm",
        "int64[3]",
        {"ord": 2, "dim": (0,), "keepdim": True, "dtype": "float32"},
        DTypeError,
        "not defined for int64; give a floating dtype: dtype=gt.float32",
    ),
    (
        "vector_norm",
        "float64[3]",
        {"ord": 2, "dim": (0,), "keepdim": True, "dtype": "float32"},
        DTypeError,
        "a norm of float64 in float32 would lose precision",
    ),
    ("rand", "int int", {"shape": (2,), "dtype": "int64"}, DTypeError, "gives floating dtypes, not int64; use randint"),
    ("rand", "float int", {"shape": (2,), "dtype": "float32"}, DTypeError, f"takes the operands ii {LETTERS}"),
    ("upload", "int", {"shape": (2,), "dtype": "float32"}, DTypeError, f"takes the operands B {LETTERS}"),
    *BAD_NN,
]


@pytest.mark.parametrize(("op", "operands", "attrs", "error", "words"), BAD, ids=[f"{b[0]}-{b[4]}" for b in BAD])
def test_error_texts_of_refused_calls(
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


POSITIONS = torch.arange(15.0).reshape(5, 3)
MASK = POSITIONS > 3

#: (op, operands, attributes, error text): the types are fine, but the data are not, and a kernel raises on both engines
RAISING: list[tuple[str, tuple[Any, ...], dict[str, Any], str]] = [
    (
        "slice",
        (POSITIONS, 4, 0),
        {"items": (("s", 2, 1), ("i",))},
        "2 elements with step 1 from 4 on are not within size 5",
    ),
    ("slice", (POSITIONS, -1, 0), {"items": (("s", 2, 1), ("i",))}, "2 elements with step 1 from -1 on are not within"),
    (
        "put_view",
        (POSITIONS, 0, 5, 0),
        {"chain": (("slice", (("items", (("i",), ("i",))),)),)},
        "are not within size 5",
    ),
    ("masked_select", (POSITIONS, MASK), {"n": 10}, "the mask chooses 11 elements, not 10"),
    ("nonzero", (POSITIONS,), {"n": 15}, "14 elements are not zero, not 15"),
    ("masked_scatter_backward", (POSITIONS, MASK), {"shape": (10,)}, r"chooses 11 elements, and \[10\] has 10"),
    ("upload", (b"1234",), {"shape": (2,), "dtype": "float32"}, r"float32\[2\] takes 8 bytes, not 4"),
    ("upload", (b"",), {"shape": (2,), "dtype": "float32"}, r"float32\[2\] takes 8 bytes, not 0"),
    ("arange", (0, 2**63), {"n": 2, "dtype": "int64"}, "the step 9223372036854775808 are ints of 64 bits"),
    ("histc", (POSITIONS * 2e37, 0, 0), {"bins": 7}, "7 bins from 0.0 to .* are not finite, or none"),
    ("histc", (POSITIONS, 1.0, 1.0 + 1e-12), {"bins": 7}, "7 bins from 1.0 to 1.0 are not finite, or none"),
]


@pytest.mark.parametrize("engine", ["torch", "numpy"])
@pytest.mark.parametrize(("op", "operands", "attrs", "words"), RAISING, ids=[f"{r[0]}-{r[3]}" for r in RAISING])
def test_raised_by_the_kernel(
    engine: str, op: str, operands: tuple[Any, ...], attrs: dict[str, Any], words: str
) -> None:
    signature = sign(OPS[op], tuple(attrs.items()), tuple(map(type_of, operands)))
    arrays = [x.numpy() if engine == "numpy" and isinstance(x, torch.Tensor) else x for x in operands]
    with pytest.raises((ValueError, IndexError, OverflowError), match=words):
        make_engine(engine, "cpu").link(signature)(*arrays)


@pytest.mark.parametrize("engine", ["torch", "numpy"])
def test_uploaded_bools_are_0_or_1(engine: str) -> None:
    """Kernels count bools by their bytes."""
    signature = sign(OPS["upload"], (("shape", (3,)), ("dtype", "bool")), (SCALARS["bytes"],))
    result = make_engine(engine, "cpu").link(signature)(b"\x00\x07\xff")
    assert bytes(result.view(torch.uint8 if engine == "torch" else "uint8").tolist()) == b"\x00\x01\x01"


def test_median_of_an_expanded_tensor_reads_its_own_memory_only() -> None:
    """torch's kernel would read past the only row."""
    x = torch.arange(15.0).reshape(5, 3)[:1].expand(5, 3)
    for op in ("median_dim", "nanmedian_dim"):
        signature = sign(OPS[op], (("dim", 0), ("keepdim", False)), (type_of(x),))
        assert make_engine("torch", "cpu").link(signature)(x)[0].tolist() == [0.0, 1.0, 2.0]
