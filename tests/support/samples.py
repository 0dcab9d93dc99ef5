"""One table of calls; every generic test of the ops runs over all of it.

A row is an op, its operands and its attributes. The operands are `T` (random values), `V` (these values) or plain
numbers. Torch gives the expected result: by the row's own ``like``, else by `tests.support.oracle`.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import numpy as np
import torch

from gt.errors import DTypeError
from gt.ops.random import philox, sample
from gt.types import BYTES, DTYPES, SCALAR_OF, OperandType, TensorType

FLOATS = ("float64", "float32", "bfloat16", "float16")
INTS = ("int64", "int32", "int16", "int8", "uint8")
ALL = (*FLOATS, *INTS, "bool")
NUMBERS = (*FLOATS, *INTS)
NAN, INF = float("nan"), float("inf")


@dataclass(frozen=True)
class T:
    """Random values of this type; ``of`` selects any, positive, distinct, near 0, or special ones (NaN, infinities)."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    of: str = "any"

    def __str__(self) -> str:
        mark = "" if self.of == "any" else f":{self.of}"
        return f"{self.dtype}[{','.join(map(str, self.shape))}]{mark}"

    def make(self, rng: torch.Generator) -> torch.Tensor:
        return MAKE[self.of](self.shape, DTYPES[self.dtype].kind, rng).to(getattr(torch, self.dtype))


@dataclass(frozen=True)
class V:
    values: Any
    dtype: str = "int64"

    def __str__(self) -> str:
        return f"{self.dtype}{self.values}".replace(" ", "")

    def make(self, rng: torch.Generator) -> torch.Tensor:
        return torch.tensor(self.values, dtype=getattr(torch, self.dtype))


def _any(shape: Any, kind: str, rng: Any) -> torch.Tensor:
    if kind == "c":
        return torch.complex(_any(shape, "f", rng), _any(shape, "f", rng))
    low, high = {"b": (0, 2), "u": (0, 6), "i": (-5, 6), "f": (-30, 31)}[kind]
    return torch.randint(low, high, shape, generator=rng) / (8 if kind == "f" else 1)


def _positive(shape: Any, kind: str, rng: Any) -> torch.Tensor:
    if kind == "c":  # both parts are: most functions have no pole or cut there
        return torch.complex(*(_any(shape, "f", rng).abs() / 8 + 0.5 for _ in range(2)))
    return torch.ones(shape) if kind == "b" else _any(shape, kind, rng).abs() + 1


def _distinct(shape: Any, kind: str, rng: Any) -> torch.Tensor:
    return torch.randperm(torch.Size(shape).numel(), generator=rng).reshape(shape)


def _special(shape: Any, kind: str, rng: Any) -> torch.Tensor:
    flat = _distinct(shape, kind, rng).float().reshape(-1)
    for place, value in enumerate((NAN, INF, -INF, -0.0, -1.5, NAN)[: flat.numel()]):
        flat[3 * place % flat.numel()] = value
    return flat.reshape(shape)


def _near(shape: Any, kind: str, rng: Any) -> torch.Tensor:
    """Coordinates inside an image and a little outside, away from the points between two elements."""
    return torch.randint(-13, 14, shape, generator=rng) / 11 + 0.013


MAKE = {"any": _any, "near": _near, "positive": _positive, "distinct": _distinct, "special": _special}


@dataclass(frozen=True)
class Sample:
    op: str
    operands: tuple[Any, ...]
    attrs: dict[str, Any] = field(default_factory=dict)
    #: the call in torch, on the operands alone
    like: Callable[..., Any] | None = None
    #: torch warns here, correctly
    warns: str = ""
    #: some operands as functions of the others: for a backward op, the results of its forward op
    fit: Callable[[list[Any]], list[Any]] | None = None

    def __str__(self) -> str:
        shown = [f"{len(x)} bytes" if isinstance(x, bytes) else str(x) for x in self.operands]
        return f"{self.op}({', '.join([*shown, *(f'{k}={v}' for k, v in self.attrs.items())])})"

    def make(self) -> list[Any]:
        rng = torch.Generator().manual_seed(zlib.crc32(str(self).encode()))
        operands = [x.make(rng) if isinstance(x, T | V) else x for x in self.operands]
        return self.fit(operands) if self.fit else operands


def type_of(x: Any) -> OperandType:
    if isinstance(x, torch.Tensor | np.ndarray):
        return TensorType(tuple(x.shape), DTYPES[str(x.dtype).removeprefix("torch.")])
    return BYTES if isinstance(x, bytes) else SCALAR_OF[type(x)]


def rows(op: str, *operands: Any, like: Any = None, warns: str = "", **attrs: Any) -> list[Sample]:
    """A row for each combination: an operand or an attribute may be a list of choices."""
    choices = [x if isinstance(x, list) else [x] for x in (*operands, *attrs.values())]
    n = len(operands)
    return [
        Sample(op, picked[:n], dict(zip(attrs, picked[n:], strict=True)), like, warns)
        for picked in itertools.product(*choices)
    ]


def typed(shape: tuple[int, ...], dtypes: tuple[str, ...], of: str = "any") -> list[T]:
    return [T(shape, d, of) for d in dtypes]


def create() -> list[Sample]:
    shapes = {"shape": [(5, 3), (), (0, 2)]}
    draws = {"shape": [(5, 3), (), (0,), (7,)], "dtype": list(FLOATS)}
    return [
        *rows("upload", bytes(range(1, 49)), shape=(2, 3), dtype=["float64", "int64"]),
        *rows("upload", bytes(range(6)), shape=(3, 2), dtype=["int8", "uint8"]),
        *rows("upload", bytes([0, 1, 1, 0]), shape=(4,), dtype="bool"),
        *rows("upload", b"\x00\x3c\x00\x40", shape=(1, 2), dtype=["float16", "bfloat16", "int16"]),
        *rows("upload", b"", shape=(0, 3), dtype=["float32", "bool"]),
        *rows("upload", b"\x01\x00\x00\x00", shape=(), dtype=["int32", "float32"]),
        *rows("full", [2, 1.5, True], shape=(5, 3), dtype=list(ALL)),
        *rows("full", [NAN, -INF], dtype="float32", **shapes),
        *rows("arange", -2, [1, 3], n=7, dtype=list(NUMBERS)),
        *rows("arange", 5, -2, n=[0, 7], dtype=["int64", "int8", "float32"]),
        *rows("arange", [0.5, 2], [0.25, -1.5], n=6, dtype=list(FLOATS)),
        *rows("rand", [0, -7, 2**64 + 5], 3, **draws),
        *rows("randn", [0, -7], 2**63, **draws),
        *_sampled(),
        *rows("randint", 1, 2, [0, -3], [1, 5], shape=[(5, 3), (), (0,)], dtype=["int64", "int8"]),
        *rows("randint", 1, 0, 0, 2, shape=(9,), dtype=["bool", "uint8", "float32", "bfloat16"]),
        *rows("randint", 1, 0, -(2**63), 2**63 - 1, shape=(9,), dtype="int64"),
    ]


def _sampled() -> list[Sample]:
    """Draws with parameters. Torch's own draws are others: `tests/test_distributions.py` has tests of what is drawn."""
    shapes = [*(T((5, 3), d, "positive") for d in FLOATS), T((), of="positive"), T((0, 2)), V([0.5, 0.0], "float32")]
    near = V([[0.0625, 0.03125, 0.015625], [0.001, 0.0078125, 0.0625]], "float64")  # here torch's kernel is precise
    return [
        *rows("standard_gamma", shapes, 3, -5, like=_gamma_draw),
        *rows("standard_gamma_grad", V([0.5, 0.25, 0.75], "float64"), near, like=_gamma_slope),
        *rows("standard_gamma_grad", T((0, 2)), T((2,)), like=_gamma_slope),
        *rows("poisson", [*shapes, V([30.0, 1000.0], "float64")], 3, -5, like=partial(_draw, sample.poisson)),
        *rows("binomial", T((5, 3), of="positive"), V([0.25, 0.5, 1.0], "float32"), 3, -5, like=_binomial_draw),
        *rows("binomial", V([[100.0], [400.0]], "float64"), V([0.25, 0.5], "float64"), 3, -5, like=_binomial_draw),
        *rows(
            "multinomial",
            [T((5, 3), d, "positive") for d in FLOATS],
            3,
            -5,
            num_samples=4,
            like=partial(_drawn_positions, 4),
        ),
        *rows(
            "multinomial",
            [T((5, 2, 3), of="positive"), T((0, 2))],
            3,
            -5,
            num_samples=1,
            like=partial(_drawn_positions, 1),
        ),
        *rows(
            "multinomial", V([[0.0, 0.5, 0.0, 2.0]], "float64"), 3, -5, num_samples=9, like=partial(_drawn_positions, 9)
        ),
        *rows(
            "multinomial", [T((4,), of="positive"), T((0, 2))], 3, -5, num_samples=0, like=partial(_drawn_positions, 0)
        ),
    ]


def _drawn_positions(num_samples: int, weights: torch.Tensor, seed: int, stream: int) -> torch.Tensor:
    """How many weights, added up, are at most the total times a uniform number."""
    shape = (*weights.shape[:-1], num_samples)
    uniform = philox.uniform(seed & philox.MASK, stream & philox.MASK, 0, prod(shape), "float64").reshape(shape)
    ends = weights.detach().double().cumsum(-1)
    return (ends[..., None, :] <= (torch.from_numpy(uniform) * ends[..., -1:])[..., None]).sum(-1)


def _draw(method: Any, *operands: Any) -> torch.Tensor:
    """The method of both engines, with numbers drawn by numpy, one element after the other."""
    *parameters, seed, stream = operands
    wide = [
        x.detach().double().broadcast_to(torch.broadcast_shapes(*(p.shape for p in parameters))) for x in parameters
    ]
    mask = 2**64 - 1
    values = []
    for i, element in enumerate(zip(*(x.reshape(-1) for x in wide), strict=True)):
        key = seed & mask, stream & mask

        def one(draw: Any, section: int, i: int = i, key: Any = key) -> torch.Tensor:
            return torch.from_numpy(draw(*key, (section << 48) + i, 1, "float64"))[0]

        values.append(method(sample.Source(torch, torch.lgamma, one), *element))
    drawn = torch.stack(values) if values else torch.empty(0)
    return drawn.reshape(wide[0].shape).to(parameters[0].dtype)


def _gamma_slope(a: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch._standard_gamma_grad(*(x.contiguous() for x in torch.broadcast_tensors(a, y)))


def _gamma_draw(x: torch.Tensor, *key: int) -> torch.Tensor:
    y = _draw(sample.gamma, x, *key)
    kind = torch.float64 if x.dtype is torch.float64 else torch.float32
    slope = torch._standard_gamma_grad(x.detach().to(kind), y.to(kind)).to(x.dtype)
    return y + (x - x.detach()) * slope if x.requires_grad else y


_binomial_draw = partial(_draw, sample.binomial)

FLOATING = [
    "exp",
    "log",
    "log2",
    "log1p",
    "expm1",
    "sqrt",
    "rsqrt",
    "reciprocal",
    "sin",
    "cos",
    "tan",
    "tanh",
    "sigmoid",
    "erf",
]
NUMERIC = ["neg", "abs", "relu", "floor", "ceil", "round", "trunc"]
ANY = ["sign", "square", "isnan", "isinf", "isfinite", "logical_not", "clone"]
BINARY = [
    "add",
    "mul",
    "div",
    "maximum",
    "minimum",
    "atan2",
    "eq",
    "ne",
    "lt",
    "le",
    "gt",
    "ge",
    "logical_and",
    "logical_or",
    "logical_xor",
]
DIVIDING = ["floor_divide", "remainder", "fmod", "pow"]
BITWISE = ["bitwise_and", "bitwise_or", "bitwise_xor"]
#: required attributes of an op, at their defaults
REQUIRED: dict[str, dict[str, Any]] = {"div": {"rounding_mode": None}}


def unary() -> list[Sample]:
    several = [*typed((5, 3), ALL, "positive"), T((), of="positive"), T((0, 4)), T((6,), of="special")]
    numbers = [*typed((5, 3), NUMBERS), T(()), T((0, 4)), T((9,), of="special")]
    floats = [*typed((5, 3), FLOATS), T(()), T((0, 4)), T((9,), of="special")]
    return [
        *(s for op in FLOATING for s in rows(op, several)),
        *(s for op in NUMERIC for s in rows(op, numbers)),
        *(s for op in ANY for s in rows(op, [*numbers, T((5, 3), "bool")])),
        *rows("silu", floats),
        *rows("gelu", floats, approximate=["none", "tanh"]),
        *rows("bitwise_not", [*typed((5, 3), INTS), T((4,), "bool"), T((), "int8")]),
        *rows("round", V([0.5, 1.5, 2.5, -0.5, -1.5], "float32")),
        *rows("to", [*typed((5, 3), NUMBERS, "positive"), T((), "bool")], dtype=list(ALL)),
    ]


#: Dividing these by -1 ends the process on x86-64; the expected results are given here.
SMALLEST = -(2**63)
NEGATED: dict[str, Any] = {
    "div": lambda a, b: 0 - a,
    "floor_divide": lambda a, b: 0 - a,
    "remainder": lambda a, b: a * 0,
    "fmod": lambda a, b: a * 0,
}


def binary() -> list[Sample]:
    mixed = [("float32", "int64"), ("int8", "uint8"), ("bool", "int16"), ("float16", "bfloat16"), ("int32", "float64")]
    shapes = [((5, 3), (3,)), ((5, 1), (1, 3)), ((), (4,)), ((), ()), ((0, 3), (1, 3)), ((2, 5, 3), (5, 1))]
    pairs = [(T(a), T(b, of="positive")) for a, b in shapes]
    pairs += [(T((5, 3), a), T((3,), b, "positive")) for a, b in mixed]
    pairs += [(T((5, 3), d), T((5, 3), d, "positive")) for d in NUMBERS]
    pairs += [(T((), "float64"), T((3,), of="positive")), (T((), "int64"), T((2,), "int8", "positive"))]
    numbers = [(T((3,), d, "positive"), n) for d in ("float32", "float16", "int64", "uint8", "bool") for n in (2, 1.5)]
    numbers += [(T((), "int8", "positive"), 3), (T((), "bfloat16", "positive"), 2.5)]
    pairs += numbers + [(n, x) for x, n in numbers]
    bools = [(T((4,), "bool"), T((4,), "bool")), (T((4,), "bool"), True), (False, T((2,), "bool"))]
    subtracted = [p for p in pairs if not any(isinstance(x, T) and x.dtype == "bool" for x in p)]
    whole = [p for p in pairs if not any(_floats(x) for x in p)] + bools
    powers = [(T(x.shape, x.dtype, "positive") if isinstance(x, T) else x, y) for x, y in pairs]
    special = (T((6,), of="special"), T((6,), of="any"))
    return [
        *(Sample(op, p, REQUIRED.get(op, {})) for op in BINARY for p in [*pairs, *bools, special]),
        *(Sample("sub", p) for p in [*subtracted, special]),
        *(Sample(op, p) for op in DIVIDING for p in (powers if op == "pow" else pairs)),
        *(Sample("div", p, {"rounding_mode": mode}) for mode in ("floor", "trunc") for p in pairs),
        *(
            Sample(op, (V([SMALLEST, 7], "int64"), b), {"rounding_mode": "trunc"} if op == "div" else {}, like)
            for b in (V([-1, -1], "int64"), -1)
            for op, like in NEGATED.items()
        ),
        *(Sample(op, p) for op in BITWISE for p in whole),
        *rows("eq", T((40,), "int8"), T((40,), "int64")),
        *rows("pow", T((9,), of="any"), [2, 3, -1, 0, 0.5]),
        *rows("pow", V([2, -3, 0]), [0, 1, 2]),
        *rows("pow", V([2, 1, -1, -1, 0]), V([-1, -2, -2, -3, -1])),
    ]


def _floats(x: Any) -> bool:
    return isinstance(x, float) or (isinstance(x, T) and DTYPES[x.dtype].kind == "f")


def ternary() -> list[Sample]:
    x, ints = [*typed((5, 3), NUMBERS), T(())], T((5, 3), "int32")
    limits = {"has_min": True, "has_max": True}
    mask = T((5, 3), "bool")
    return [
        *rows("clamp", x, [-1, 0.5], 2, **limits),
        *rows("clamp", [T((5, 3)), ints], T((3,)), [T((5, 1)), 1, T((), "int64")], **limits),
        *rows("clamp", T((6,), of="special"), [0.0, NAN], has_min=True, has_max=False),
        *rows("clamp", [T((5, 3)), ints, T((0,))], [1, 1.5, T(())], has_min=False, has_max=True),
        *rows("clamp", T((3,), "bool"), [1, 0.5], has_min=True, has_max=False),
        *rows("clamp", T((5, 3)), 2.5, -1.5, **limits),
        *rows("where", mask, typed((5, 3), ALL), [T((3,)), 2, 1.5, True]),
        *rows("where", mask, [0, 2.5], [T((5, 1), "int8"), T((), "float64"), 1]),
        *rows("where", [T((), "bool"), T((5, 1), "bool"), T((0, 3), "bool")], T((1, 3)), T((), "float16")),
        *rows("copy", typed((5, 3), ALL), [T((5, 3), of="positive"), T((3,), "int64", "positive"), 1, 2.5, True]),
        *rows("copy", [T((0, 3)), T((2, 3), "int8")], [T((1, 3), of="positive"), T((), "bool")]),
    ]


def reduce() -> list[Sample]:
    dims = {"dim": [(0,), (1, 2), (0, 1, 2)], "keepdim": [True, False]}
    x, odd = T((5, 3, 2)), [(T(()), ()), (T(()), (0,)), (T((4, 0)), (1,)), (T((0,)), (0,))]
    each = {"dim": (1,), "keepdim": False}
    full = [s for s in odd if s[0].shape == ()]
    wide = ("sum", "prod", "mean")
    one_nan = T((5, 6), of="special")
    warns = {"warns": "degrees of freedom"}
    return [
        *(s for op in wide for s in rows(op, x, **dims, dtype=None)),
        *(
            Sample(op, (t,), {"dim": d, "keepdim": k, "dtype": None})
            for op in wide
            for t, d in odd
            for k in (True, False)
        ),
        *(s for op in ("sum", "prod") for s in rows(op, typed((5, 3), ALL), **each, dtype=[None, "float64", "int32"])),
        *rows("sum", T((5, 3)), **each, dtype="bool"),
        *rows("mean", typed((5, 3), FLOATS), **each, dtype=[None, "float64"]),
        *rows("mean", typed((5, 3), (*INTS, "bool")), **each, dtype=["float32", "float16"]),
        *rows("var", [x, *typed((5, 3, 2), FLOATS)], **dims, correction=[0, 1]),
        *rows("var", T((5, 3)), **each, correction=[3, 4], **warns),
        *rows("var", [T(()), T((0,))], dim=(0,), keepdim=False, correction=1, **warns),
        *(s for op in ("amax", "amin", "all", "any") for s in rows(op, [x, T((5, 6, 2), "uint8")], **dims)),
        *(s for op in ("amax", "amin", "all", "any") for s in rows(op, [*typed((5, 3), ALL), one_nan], **each)),
        *(Sample(op, (t,), {"dim": d, "keepdim": False}) for op in ("amax", "amin") for t, d in full),
        *(Sample(op, (t,), {"dim": d, "keepdim": True}) for op in ("all", "any", "logsumexp") for t, d in odd),
        *(s for op in ("argmax", "argmin") for s in rows(op, [*typed((5, 3), NUMBERS, "distinct"), T(())], **_one())),
        *(s for op in ("argmax", "argmin") for s in rows(op, [one_nan, T((0, 3))], dim=1, keepdim=[True, False])),
        *(
            s
            for op in ("argmax", "argmin")
            for s in rows(op, T((5, 3), of="distinct"), dim=None, keepdim=[True, False])
        ),
        *(s for op in ("max_dim", "min_dim") for s in rows(op, [*typed((5, 3), NUMBERS, "distinct"), T(())], **_one())),
        *(s for op in ("max_dim", "min_dim") for s in rows(op, [one_nan, T((0, 3))], dim=1, keepdim=[True, False])),
        *rows("cumsum", [*typed((5, 3), ALL), T(()), T((0, 3))], dim=0),
        *rows("cumsum", T((5, 3, 2)), dim=[1, 2]),
        *(s for op in ("softmax", "log_softmax") for s in rows(op, [*typed((5, 3), FLOATS), T(())], **_soft())),
        *(s for op in ("softmax", "log_softmax") for s in rows(op, T((5, 3), "int64"), dim=1, dtype="float32")),
        *(s for op in ("softmax", "log_softmax") for s in rows(op, T((5, 0, 3)), dim=[1, 2], dtype=None)),
        *rows("logsumexp", [x, *typed((5, 3, 2), (*FLOATS, *INTS))], **dims),
        *rows("logsumexp", V([[INF, 1.0], [-INF, -INF], [NAN, 0.0], [800.0, 800.0]], "float32"), **each),
    ]


def _one() -> dict[str, Any]:
    return {"dim": 0, "keepdim": [True, False]}


def _soft() -> dict[str, Any]:
    return {"dim": 0, "dtype": [None, "float64"]}


def linalg() -> list[Sample]:
    shapes = [
        *[((4,), (4,)), ((5, 4), (4,)), ((4,), (4, 3)), ((5, 4), (4, 3)), ((2, 5, 4), (4, 3)), ((2, 5, 4), (4,))],
        *[((2, 1, 5, 4), (3, 4, 2)), ((4,), (2, 4, 3)), ((5, 4), (2, 4, 3)), ((2, 5, 4), (2, 4, 1)), ((0,), (0,))],
        *[((5, 0), (0, 3)), ((0, 4), (4, 3)), ((2, 0, 4), (4, 3)), ((1, 1), (1, 1))],
    ]
    return [
        *(Sample("matmul", (T(a), T(b))) for a, b in shapes),
        *(Sample("matmul", (T((5, 4), d), T((4, 3), d))) for d in NUMBERS),
        *(Sample("matmul", (T((2, 5, 4), d), T((4,), d))) for d in NUMBERS),
    ]


def shape() -> list[Sample]:
    x, dtypes = T((5, 3, 4)), typed((5, 3), ALL)
    return [
        *(
            s
            for op in ("view", "reshape")
            for s in rows(op, x, shape=[(60,), (15, 4), (5, 1, 12), (3, 5, 4), (5, 3, 4)])
        ),
        *(s for op in ("view", "reshape") for s in rows(op, [T(()), T((1, 1))], shape=[(1,), (), (1, 1, 1)])),
        *(s for op in ("view", "reshape") for s in rows(op, T((0, 3)), shape=[(3, 0), (0,)])),
        *(s for op in ("view", "reshape") for s in rows(op, dtypes, shape=(3, 5))),
        *rows("permute", x, dims=[(2, 0, 1), (0, 1, 2), (1, 0, 2)]),
        *rows("permute", [T((5, 0)), *dtypes], dims=(1, 0)),
        *rows("permute", T(()), dims=()),
        *rows("expand", T((5, 1, 4)), shape=[(5, 3, 4), (2, 5, 1, 4), (5, 1, 4), (5, 0, 4)]),
        *rows("expand", [T(()), T((1,), "bool")], shape=[(3,), (2, 1), (0, 2)]),
        *(Sample("cat", xs, {"dim": d}) for xs, d in _joins()),
        *rows("split", x, sizes=[(2, 3), (5,), (1, 0, 4)], dim=0),
        *rows("split", [x, T((0, 2, 4), "int8")], sizes=[(1, 3), (2, 1, 1)], dim=2),
        *rows("flip", [x, T((5, 0, 2), "bool"), T((5, 3, 2), "int16")], dims=[(), (0,), (0, 2), (2, 1, 0)]),
        *rows("flip", T(()), dims=[(), (0,)]),
        *rows("roll", [x, T((5, 0, 2), "int8")], shifts=[(2,), (-7,)], dims=[(0,), (2,)]),
        *rows("roll", x, shifts=(1, -2), dims=[(0, 1), (2, 2)]),
        *rows("repeat", [T((5, 3)), T((2, 1), "int8")], repeats=[(1, 1), (2, 3), (3, 1, 2), (0, 2)]),
        *rows("repeat", T(()), repeats=[(), (3,)]),
        *(s for op in ("tril", "triu") for s in rows(op, [*dtypes, T((2, 3, 5)), T((2, 0))], diagonal=[0, -1, 2])),
    ]


def _joins() -> list[tuple[tuple[T, ...], int]]:
    a, b = T((5, 3)), T((2, 3))
    return [
        *[((a, b), 0), ((a,), 0), ((a, T((5, 4)), T((5, 0))), 1), ((a, T((5, 2), "int64")), 1)],
        *[((T((2,), "int8"), T((3,), "uint8")), 0), ((T((2,), "float16"), T((1,), "bfloat16")), 0)],
        *[((T((0,)), a), 0), ((a, T((0,), "float64")), 1), ((T((0,)), T((0,))), 0), ((T((2,), "bool"),) * 2, 0)],
    ]


def samples() -> list[Sample]:
    from tests.support.samples_complex import complex_numbers
    from tests.support.samples_index import index, select, sparse
    from tests.support.samples_math import activations, math, reductions
    from tests.support.samples_nn import nn
    from tests.support.samples_shape import shapes
    from tests.support.samples_training import training

    families = (
        create, unary, binary, ternary, reduce, linalg, shape, index, select, shapes, math, activations, reductions, nn,
        training, complex_numbers, sparse,
    )  # fmt: skip
    unique = {str(s): s for family in families for s in family()}
    for changed in CHANGED_IN_TORCH:
        del unique[changed]
    return list(unique.values())


#: Calls that this version of torch answers differently from 2.13; GT follows 2.13.
CHANGED_IN_TORCH: tuple[str, ...] = ()
if torch.__version__ < "2.12":
    CHANGED_IN_TORCH = (
        "clamp(float32[6]:special, nan, has_min=True, has_max=False)",
        "topk(float32[], k=0, dim=0, largest=True, sorted=True)",
        "topk(float32[], k=0, dim=0, largest=False, sorted=True)",
    )
elif torch.__version__ >= "2.15":
    CHANGED_IN_TORCH = ("clamp(uint8[5,3], -1, 2, has_min=True, has_max=True)",)


@dataclass(frozen=True)
class Limit:
    """A call that torch accepts and GT, or one of its engines, does not: listed, and checked to be still so."""

    why: str
    #: "infer", or the engine that fails
    where: str
    sample: Sample
    error: type[Exception]


LIMITS = [
    Limit("numpy has no bfloat16", "numpy", Sample("neg", (T((2,), "bfloat16"),)), DTypeError),
    Limit(
        "a uint8 condition, deprecated in torch",
        "infer",
        Sample("where", (T((2,), "uint8"), T((2,)), T((2,)))),
        DTypeError,
    ),
    Limit("a bool tensor to the power of a bool number", "infer", Sample("pow", (T((2,), "bool"), True)), DTypeError),
    Limit(
        "torch has no integer matmul on a GPU",
        "cuda",
        Sample("matmul", (T((2, 3), "int64"), T((3, 2), "int64"))),
        RuntimeError,
    ),
    Limit(
        "nor one with an addend",
        "cuda",
        Sample("addmm", (T((2, 2), "int64"), T((2, 3), "int64"), T((3, 2), "int64"), 1, 1)),
        RuntimeError,
    ),
]
