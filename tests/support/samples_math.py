"""The rows of `tests.support.samples` for functions, activations and reductions beyond the basic ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.support.samples import ALL, FLOATS, INF, INTS, NAN, NUMBERS, Sample, T, V, rows, typed

F = torch.nn.functional
aten = torch.ops.aten

UNARY = ["exp2", "log10", "atan", "sinh", "cosh", "asinh", "erfc", "deg2rad", "rad2deg", "sinc", "i0", "i1"]
#: defined for small values only
NARROW = ["asin", "acos", "atanh", "erfinv"]
BINARY = ["fmax", "fmin"]


def math() -> list[Sample]:
    several = [*typed((5, 3), ALL, "positive"), T(()), T((0, 4)), T((6,), of="special")]
    floats = [*typed((5, 3), FLOATS), T(()), T((0, 4)), T((9,), of="special")]
    near = [V([-0.75, 0.0, 0.5, 0.25, -0.125], d) for d in FLOATS]
    edges = [V([-1.0, 1.0, 2.0, NAN], "float32"), T((0, 4)), V(0.5, "float32"), V([0, 1], "int64"), T((3,), "bool")]
    above = [T((5, 3), d, "positive") for d in ALL] + [T(()), T((0,)), V([0.5, -1.5, INF, NAN, 3.25], "float32")]
    return [
        *(s for op in UNARY for s in rows(op, several)),
        *(s for op in NARROW for s in rows(op, [*near, *edges])),
        *rows("acosh", above),
        *(s for op in ("lgamma", "digamma") for s in rows(op, above)),
        *rows("igamma", [*typed((5, 3), FLOATS[:2], "positive"), T((), of="positive")], T((3,), of="positive")),
        *rows("igamma", [T((2, 1), "float64", "positive"), T((0, 4))], T((4,), "float64", "positive")),
        *rows("igamma", V([0.0, 2.0, INF, -1.0, NAN], "float32"), V([1.0, 0.0, 3.0, 2.0, 2.0], "float32")),
        *(
            Sample("polygamma", (x,), {"n": n}, lambda x, n=n: torch.polygamma(n, x))
            for x in [
                *typed((5, 3), FLOATS[1:], "positive"),
                T((), of="positive"),
                T((0,)),
                T((3,), "int64", "positive"),
            ]
            for n in (1, 2, 3)
        ),
        *rows("logit", [*near[1:2], V([0.25, 0.5, 0.75], "float64"), V([0, 1]), T((0,))], eps=[None, 0.125]),
        *rows("frac", floats),
        *rows("frexp", floats),
        *rows("isposinf", several),
        *rows("isneginf", several),
        *rows("signbit", [*typed((5, 3), ALL), T(()), V([-0.0, 0.0, -INF], "float32")]),
        *_decimals(),
        *rows("nan_to_num", [*floats, *typed((4,), (*INTS, "bool"))], nan=[0.0, 1.5], posinf=[None, 2.0], neginf=None),
        *rows("masked_fill", typed((5, 3), ALL), T((5, 3), "bool"), [1, V(1, "int64"), True]),
        *rows(
            "masked_fill", [T((5, 3)), T((3,)), T(())], [T((5, 3), "bool"), T((3,), "bool")], [2.5, V(0.5, "float32")]
        ),
        *rows("masked_fill", T((0, 3)), T((3,), "bool"), 1.0),
        *_several(),
    ]


def _decimals() -> list[Sample]:
    x = [V([1.25, -3.375, 127.5, 0.0625], "float32"), V([1234.5678], "float64"), T(()), T((0,))]
    return [
        s
        for k in (1, 2, -1)
        for s in rows("round_decimals", x, decimals=k, like=lambda x, k=k: torch.round(x, decimals=k))
    ]


def _several() -> list[Sample]:
    shapes = [((5, 3), (3,)), ((5, 1), (1, 3)), ((), (4,)), ((), ()), ((0, 3), (1, 3))]
    pairs = [(T(a), T(b)) for a, b in shapes]
    same = [(T((5, 3), d), T((5, 3), d, "positive")) for d in FLOATS]
    mixed = [(T((5, 3)), T((3,), "float64")), (T((5, 3)), T((), "float64"))]
    whole = [(T((5, 3), d), T((5, 3), d, "positive")) for d in INTS]
    ints = [*whole, (T((5, 3), "int8"), T((3,), "int32", "positive"))]
    special = (T((6,), of="special"), T((6,), of="any"))
    number = [(T((5, 3)), 1.5), (2.5, T((5, 3)))]
    both = _both
    return [
        *(Sample(op, p) for op in BINARY for p in [*pairs, *same, *mixed, *ints, special]),
        *(Sample("hypot", p) for p in [*pairs, *same, *mixed, special]),
        *(Sample("copysign", p, like=both(torch.copysign)) for p in [*pairs, *same, *mixed, *ints, *number]),
        *(Sample("xlogy", p) for p in [*pairs, *same, *mixed, *ints, special]),
        *rows("xlogy", [2.0, T((3,))], T((3,), of="positive")),
        *rows("xlogy", T((3,), of="positive"), 2.0),
        *rows("xlogy", V([0.0, 0.0, 1.0], "float32"), V([0.0, NAN, 2.0], "float32")),
        *(Sample(op, p) for op in ("logaddexp", "logaddexp2") for p in [*pairs, *same]),
        *(Sample("heaviside", p) for p in [*pairs, *same, *whole]),
        *(Sample("nextafter", p) for p in [*pairs, *same[:2]]),
        *(Sample(op, p) for op in ("gcd", "lcm") for p in ints),
        *rows("lcm", V([100, 91, 15, 0], "int8"), V([33, 64, 11, 7], "int8")),
        *rows("lcm", V([3000, -(2**15) + 1], "int16"), V([7001, 1000], "int16")),
        *(
            Sample(op, p)
            for op in ("bitwise_left_shift", "bitwise_right_shift")
            for p in [*ints, (T((4,), "int64"), 2)]
        ),
        *rows("lerp", [T((5, 3)), T((3,)), T(())], T((5, 3)), [0.25, 0.75, T((3,)), T(())]),
        *rows("lerp", T((0, 3)), T((1, 3)), 0.5),
        *(s for d in FLOATS for s in rows("lerp", T((5, 3), d), T((3,), d), 0.5)),
        *_three("addcmul", torch.addcmul, [*FLOATS, *INTS]),
        *_three("addcdiv", torch.addcdiv, FLOATS),
        *rows("addcmul", T((5, 3)), T((3,), "int64"), T((5, 1), "float64"), 2, like=_valued(torch.addcmul)),
    ]


def _both(call: Callable[..., Any]) -> Callable[..., Any]:
    from tests.support.oracle import _tensor

    return lambda a, b: call(_tensor(a, b), _tensor(b, a))


def _valued(call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, a, b, value: call(x, a, b, value=value)


def _three(op: str, call: Callable[..., Any], dtypes: Any) -> list[Sample]:
    like = _valued(call)
    shapes = [((5, 3), (3,), (5, 1)), ((), (4,), ()), ((), (), ()), ((0, 3), (1, 3), ())]
    return [
        *(Sample(op, (T(a), T(b), T(c, of="positive"), v), like=like) for a, b, c in shapes for v in (1, 0.5)),
        *(Sample(op, (T((4,), d), T((4,), d), T((4,), d, "positive"), 2), like=like) for d in dtypes),
    ]


# -- activations ---------------------------------------------------------------------------

#: op -> its attributes, the call, and torch's own gradient as a function of (g, x)
ACTIVATIONS: dict[str, tuple[list[dict[str, Any]], Any, Any]] = {
    "mish": ([{}], F.mish, aten.mish_backward),
    "logsigmoid": ([{}], F.logsigmoid, None),
    "hardsigmoid": ([{}], F.hardsigmoid, aten.hardsigmoid_backward),
    "hardswish": ([{}], F.hardswish, aten.hardswish_backward),
    "softplus": (
        [{"beta": 1.0, "threshold": 20.0}, {"beta": 2.5, "threshold": 1.0}],
        lambda x, **a: F.softplus(x, **a),
        lambda g, x, *, beta, threshold: aten.softplus_backward(g, x, beta, threshold),
    ),
    "leaky_relu": (
        [{"negative_slope": 0.25}],
        F.leaky_relu,
        lambda g, x, *, negative_slope: aten.leaky_relu_backward(g, x, negative_slope, False),
    ),
    "hardtanh": (
        [{"min_val": -1.0, "max_val": 1.0}, {"min_val": 0.0, "max_val": 6.0}],
        F.hardtanh,
        lambda g, x, *, min_val, max_val: aten.hardtanh_backward(g, x, min_val, max_val),
    ),
    "elu": (
        [
            {"alpha": 1.0, "scale": 1.0, "input_scale": 1.0},
            {"alpha": 1.5, "scale": 1.25, "input_scale": 0.5},
        ],
        lambda x, *, alpha, scale, input_scale: aten.elu(x, alpha, scale, input_scale),
        lambda g, x, *, alpha, scale, input_scale: aten.elu_backward(g, alpha, scale, input_scale, False, x),
    ),
    "hardshrink": (
        [{"lambd": 0.5}, {"lambd": 0.0}],
        F.hardshrink,
        lambda g, x, *, lambd: aten.hardshrink_backward(g, x, lambd),
    ),
    "softshrink": (
        [{"lambd": 0.5}, {"lambd": 0.0}],
        F.softshrink,
        lambda g, x, *, lambd: aten.softshrink_backward(g, x, lambd),
    ),
    "threshold": ([{"threshold": 0.5, "value": -2.0}], F.threshold, None),
    "tanh": ([], None, aten.tanh_backward),
    "sigmoid": ([], None, aten.sigmoid_backward),
    "silu": ([], None, aten.silu_backward),
}


def activations() -> list[Sample]:
    xs = [*typed((5, 3), FLOATS), T(()), T((0, 4)), T((9,), of="special")]
    samples = []
    for op, (settings, call, gradient) in ACTIVATIONS.items():
        for attrs in settings:
            samples += [Sample(op, (x,), attrs, lambda x, call=call, a=attrs: call(x, **a)) for x in xs]
        for attrs in settings or [{}]:
            if gradient is not None:
                like = lambda g, x, call=gradient, a=attrs: call(g, x, **a)
                samples += [Sample(f"{op}_backward", (T(x.shape, x.dtype), x), attrs, like) for x in xs[:-1]]
    pairs = [(T(x.shape, x.dtype), x) for x in xs[:-1]]
    weights = [
        (T((2, 5, 3)), T((1, 5, 1))),
        (T((5, 3)), T((1, 1))),
        (T(()), T(())),
        (T((4,), "float16"), T((1,), "float16")),
    ]
    return [
        *samples,
        *(s for op in ("hardtanh", "threshold") for s in _whole(op)),
        *(Sample("log_sigmoid_backward", p, {}, lambda g, x: g * torch.sigmoid(-x)) for p in pairs),
        *(
            Sample("threshold_backward", p, {"threshold": 0.0}, lambda g, x: aten.threshold_backward(g, x, 0.0))
            for p in pairs
        ),
        *(
            Sample("gelu_backward", p, {"approximate": a}, lambda g, x, a=a: aten.gelu_backward(g, x, approximate=a))
            for p in pairs
            for a in ("none", "tanh")
        ),
        *(Sample("prelu", p, {}, torch._prelu_kernel) for p in weights),
        *(Sample("prelu_backward", (p[0], *p), {}, lambda g, x, w: torch.where(x > 0, g, g * w)) for p in weights),
    ]


def _whole(op: str) -> list[Sample]:
    settings = {"hardtanh": {"min_val": 1.0, "max_val": 2.0}, "threshold": {"threshold": 1, "value": 2}}[op]
    call = getattr(F, op)
    return [Sample(op, (x,), settings, lambda x: call(x, **settings)) for x in typed((5, 3), INTS)]


# -- reductions ----------------------------------------------------------------------------


def reductions() -> list[Sample]:
    x, zeros = T((5, 3, 2)), V([[0.0, 2.0, 3.0], [0.0, 0.0, 3.0], [1.5, 2.0, -1.0]], "float32")
    dims = {"dim": [(0,), (1, 2), (0, 1, 2)], "keepdim": [True, False]}
    odd = [(T(()), ()), (T(()), (0,)), (T((4, 0)), (1,))]
    warns = {"warns": "degrees of freedom"}
    return [
        *rows("std", [x, *typed((5, 3, 2), FLOATS)], **dims, correction=[0, 1]),
        *rows("std", [T(()), T((0,))], dim=(0,), keepdim=False, correction=1, **warns),
        *rows("std", V([[2.0, 2.0], [1.0, 3.0]], "float32"), dim=(1,), keepdim=False, correction=1),
        *rows("prod", zeros, dim=[(0,), (1,), (0, 1)], keepdim=[True, False], dtype=None),
        *(_norm(t, o, d, k) for t, o, d, k in _norms(x, odd)),
        *rows("cumprod", [*typed((5, 3), ALL), T(()), T((0, 3)), zeros], dim=0),
        *rows("cumprod", [x, zeros], dim=1),
        *rows("cumsum_reversed", [x, T((5, 0))], dim=1, like=lambda x: x.flip(1).cumsum(1).flip(1)),
        *rows("cumsum_reversed", T(()), dim=0, like=lambda x: x.clone()),
        *rows("logcumsumexp", [*typed((5, 3), FLOATS), T(()), T((0, 3)), V([[INF], [1.0]], "float32")], dim=0),
        *rows("logcumsumexp", x, dim=[1, 2]),
        *rows("logcumsumexp_reversed", x, dim=1, like=lambda x: x.flip(1).logcumsumexp(1).flip(1)),
        *rows("logcumsumexp_reversed", T(()), dim=0, like=lambda x: x.clone()),
        *(s for op in ("cummax", "cummin") for s in rows(op, [*typed((5, 3), ALL), T(()), T((0, 3))], dim=0)),
        *(s for op in ("cummax", "cummin") for s in rows(op, [x, T((5, 6), of="special")], dim=1)),
        *_medians(),
        *_backwards(zeros),
    ]


def _norms(x: T, odd: Any) -> list[tuple[Any, float, tuple[int, ...], bool]]:
    orders = (2.0, 1.0, 0.0, 3.0, 1.5, 0.5, INF, -INF, -1.0)
    flat = V([[0.0, 0.0], [3.0, -4.0], [1.0, 0.0]], "float32")
    cases = [(t, o, d, k) for t in (x, flat) for o in orders for d in ((0,), (0, 1)) for k in (True, False)]
    cases += [(T((5, 3), d), o, (1,), False) for d in FLOATS for o in (2.0, 3.0, INF)]
    cases += [(t, o, d, True) for t, d in odd for o in (2.0, 1.0)]
    # torch divides by zero in the gradient of a negative order
    return [m for m in cases if not (m[0] is flat and m[1] in (-1.0, 0.5))]


def _norm(x: Any, ord: float, dim: tuple[int, ...], keepdim: bool) -> Sample:
    like = lambda x: torch.linalg.vector_norm(x, ord, dim, keepdim)
    return Sample("vector_norm", (x,), {"ord": ord, "dim": dim, "keepdim": keepdim, "dtype": None}, like)


def _medians() -> list[Sample]:
    some = [*typed((5, 3), NUMBERS, "distinct"), T((4, 2), of="distinct"), T(())]
    whole = {"median": torch.median, "nanmedian": torch.nanmedian}
    gaps = V([[1.0, NAN, 3.0, 2.0], [4.0, 2.0, 1.0, 7.0]], "float32")
    repeated = V([[1, 2, 2, 5], [3, 3, 4, 4]], "int64")
    return [
        *(s for op, call in whole.items() for s in rows(op, [*some, gaps], like=call)),
        *(
            Sample(op + "_dim", (t,), {"dim": d, "keepdim": k}, lambda x, call=call, d=d, k=k: tuple(call(x, d, k)))
            for op, call in whole.items()
            for t, d in [*((t, 0) for t in some), (gaps, 1)]
            for k in (True, False)
        ),
        *rows("mode", [repeated, T((), "float32"), V([2.0, 1.0, 2.0], "float32")], dim=0, keepdim=[True, False]),
        *rows("mode", repeated, dim=1, keepdim=False),
        *rows("kthvalue", [T((5, 3), d, "distinct") for d in NUMBERS], k=[1, 3], dim=[0, 1], keepdim=[True, False]),
        *rows("kthvalue", T(()), k=1, dim=0, keepdim=[True, False]),
    ]


def _backwards(zeros: V) -> list[Sample]:
    g, y = T((5, 3)), T((5, 3))
    products = [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.5, 3.0, -3.0]]
    index = V([2, 0, 1, 1, 2])

    def spread(g: Any, index: Any) -> Any:
        return torch.zeros(5, 3, dtype=g.dtype).scatter(1, index.unsqueeze(1), g.unsqueeze(1))

    def others(x: Any, dim: int) -> Any:
        rows = x.movedim(dim, -1)
        n = rows.shape[-1]
        kept = rows.unsqueeze(-2).expand(*rows.shape[:-1], n, n)
        return kept.masked_fill(torch.eye(n, dtype=torch.bool), 1).prod(-1).movedim(-1, dim)

    return [
        *(
            s
            for d in FLOATS
            for s in rows(
                "softmax_backward",
                T((5, 3), d),
                T((5, 3), d),
                dim=1,
                dtype=None,
                like=_soft(torch._softmax_backward_data),
            )
        ),
        *rows("log_softmax_backward", g, y, dim=1, dtype=None, like=_soft(torch._log_softmax_backward_data)),
        *rows(
            "softmax_backward", g, y, dim=1, dtype="float16", like=_soft(torch._softmax_backward_data, torch.float16)
        ),
        *rows(
            "log_softmax_backward",
            g,
            y,
            dim=1,
            dtype="float16",
            like=_soft(torch._log_softmax_backward_data, torch.float16),
        ),
        *rows("cumprod_backward", T((3, 3)), V(products, "float32"), zeros, dim=1, like=lambda g, y, x: _pulled(g, x)),
        *rows("prod_others", [zeros, T((5, 3))], dim=(1,), like=lambda x: others(x, 1)),
        *rows("prod_others", [zeros, T((5, 3))], dim=(0, 1), like=lambda x: others(x.reshape(-1), 0).reshape(x.shape)),
        *rows("prod_others", T(()), dim=(), like=lambda x: torch.ones_like(x)),
        *rows("value_selecting_reduction_backward", T((5,)), index, dim=1, size=3, keepdim=False, like=spread),
        *rows(
            "value_selecting_reduction_backward",
            T((5, 1)),
            V([[2], [0], [1], [1], [2]]),
            dim=1,
            size=3,
            keepdim=True,
            like=lambda g, i: spread(g[:, 0], i[:, 0]),
        ),
        *rows(
            "cummaxmin_backward",
            T((2, 3)),
            V([[0, 0, 2], [0, 1, 1]]),
            dim=1,
            like=lambda g, i: torch.zeros_like(g).scatter_add(1, i, g),
        ),
    ]


def _soft(call: Any, dtype: Any = None) -> Any:
    return lambda g, y: call(g.to(y.dtype), y, 1, y.dtype).to(dtype or y.dtype)


def _pulled(g: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """The gradient of cumprod along dim 1, written so that torch can differentiate it again."""
    n = x.shape[-1]
    above = torch.ones(n, n, dtype=torch.bool).triu(1)
    rows = x.unsqueeze(-2).expand(*x.shape, n).masked_fill(above, 1)
    kept = rows.unsqueeze(-2).expand(*rows.shape, n).masked_fill(torch.eye(n, dtype=torch.bool), 1).prod(-1)
    return (g.unsqueeze(-1) * kept.masked_fill(above, 0)).sum(-2)
