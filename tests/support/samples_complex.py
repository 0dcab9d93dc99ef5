"""The rows of `tests.support.samples` for complex numbers: the ops of their own, and every op that takes them."""

from __future__ import annotations

from typing import Any

import torch

from tests.support.samples import INF, NAN, Sample, T, V, rows

COMPLEX = ("complex64", "complex128")
#: functions of one operand, away from their poles
UNARY = [
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "square", "reciprocal", "sin", "cos",
    "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "tanh", "sigmoid", "neg", "abs", "sgn",
    "clone", "conj", "angle", "isnan", "isinf", "isfinite", "logical_not",
]  # fmt: skip
BINARY = ["add", "sub", "mul", "pow", "eq", "ne", "logical_and", "logical_or", "logical_xor"]


def _spectra() -> list[Sample]:
    x, real = [T((4, 3, 5), d) for d in COMPLEX], [T((4, 3, 5), d) for d in ("float32", "float64")]
    result: list[Sample] = []
    for norm in ("backward", "ortho", "forward"):
        for dim in ((2,), (0, 2), (1, 0)):
            how = {"dim": dim, "norm": norm}
            result += [
                Sample("fft_c2c", (a,), {"dim": dim, "inverse": inverse, "norm": norm}, _like(name, dim=dim, norm=norm))
                for a in x
                for inverse, name in ((False, "fftn"), (True, "ifftn"))
            ]
            result += [Sample("fft_r2c", (a,), how, _like("rfftn", **how)) for a in real]
            for odd in (0, 1):
                size = 2 * ((4, 3, 5)[dim[-1]] - 1) + odd
                sizes = [*((4, 3, 5)[d] for d in dim[:-1]), size]
                attrs = {"dim": dim, "size": size, "norm": norm}
                result += [Sample("fft_c2r", (a,), attrs, _like("irfftn", s=sizes, dim=dim, norm=norm)) for a in x]
    return result


def _like(name: str, **how: Any) -> Any:
    return lambda x: getattr(torch.fft, name)(x, **how)


def _parts() -> list[Sample]:
    z = [*(T((5, 3), d) for d in COMPLEX), T((), "complex64"), T((0, 4), "complex64")]
    pairs = [T((5, 3, 2)), T((4, 2), "float64"), T((2,)), T((0, 2))]
    return [
        *rows("real", z, like=lambda x: x.real),
        *rows("imag", z, like=lambda x: x.imag),
        *rows("view_as_real", z),
        *rows("view_as_complex", pairs),
        *rows("complex", T((5, 3)), [T((5, 3)), T((3,)), T(())]),
        *rows("complex", T((5, 3), "float64"), T((5, 1), "float64")),
        *rows("sgn", [T((5, 3)), T((5, 3), "int64"), T((3,), "bool"), T((6,), of="special")]),
        *rows("to", z[:2], dtype=[*COMPLEX, "bool"]),
        *rows("to", [T((5, 3)), T((5, 3), "int64"), T((5,), "bool")], dtype="complex64"),
    ]


def _arithmetic() -> list[Sample]:
    z = [*(T((5, 3), d) for d in COMPLEX), T((), "complex64"), T((0, 4), "complex64")]
    others = [T((5, 3), "complex64", "positive"), T((3,), "complex128", "positive"), T((3,), of="positive"), 2, 1.5]
    few = T((3, 4), "complex64")
    return [
        *(s for op in UNARY for s in rows(op, z)),
        *(s for op in BINARY for s in rows(op, T((5, 3), "complex64", "positive"), others)),
        *rows("div", T((5, 3), "complex64"), others, rounding_mode=None),
        *rows("addcmul", few, few, few, [1, 0.5], like=lambda x, a, b, v: torch.addcmul(x, a, b, value=v)),
        *rows(
            "addcdiv",
            few,
            few,
            T((3, 4), "complex64", "positive"),
            0.5,
            like=lambda x, a, b, v: torch.addcdiv(x, a, b, value=v),
        ),
        *rows("lerp", few, T((4,), "complex64"), [0.25, few]),
        *rows("where", T((3, 4), "bool"), few, [few, T((4,)), 1.5]),
        *rows("masked_fill", few, T((3, 4), "bool"), [2, V(1.5, "float32"), V(1 + 2j, "complex64")]),
        *rows("copy", few, [T((4,), "complex128"), T((3, 4)), 2.5]),
        *rows("matmul", few, [T((4, 5), "complex64"), T((4,), "complex64")]),
        *rows("matmul", T((2, 3, 4), "complex128"), T((2, 4, 5), "complex128")),
        *rows("linear", few, T((5, 4), "complex64"), like=torch.nn.functional.linear),
        *rows("inv", T((3, 3), "complex128", "positive"), like=torch.linalg.inv),
        *rows("matrix_exp", [T((2, 3, 3), d) for d in COMPLEX], like=torch.linalg.matrix_exp),
        *rows("slogdet", T((2, 3, 3), "complex128"), like=lambda x: tuple(torch.linalg.slogdet(x))),
        *rows("cholesky", V([[4, 1 - 1j], [1 + 1j, 3]], "complex128"), like=torch.linalg.cholesky),
        *rows("qr", T((4, 3), "complex128"), mode="reduced", like=lambda x: tuple(torch.linalg.qr(x))),
    ]


def _folded() -> list[Sample]:
    z = [T((4, 3), "complex64"), T((4, 3), "complex128")]
    dims: dict[str, Any] = {"dim": [(0,), (0, 1)], "keepdim": [False, True]}
    return [
        *rows("sum", z, **dims, dtype=[None, "complex128"]),
        *rows("mean", z, **dims, dtype=None),
        *rows("prod", T((4, 3), "complex64"), dim=[(1,), (0, 1)], keepdim=False, dtype=None),
        *rows("var", z, **dims, correction=1),
        *rows("std", z, **dims, correction=0),
        *rows("all", z, **dims),
        *rows("any", z, **dims),
        *rows("cumsum", z, dim=[0, 1]),
        *rows("cumprod", z, dim=[0, 1]),
        *(
            Sample(
                "vector_norm",
                (x,),
                {"ord": ord, "dim": (1,), "keepdim": False, "dtype": None},
                lambda x, ord=ord: torch.linalg.vector_norm(x, ord, 1),
            )
            for x in z
            for ord in (1.0, 2.0, INF, 3.0)
        ),
    ]


def _moved() -> list[Sample]:
    x, at = T((4, 3), "complex64"), V([[0, 1, 0], [3, 2, 1]])
    return [
        *rows("upload", bytes(range(1, 49)), shape=(3,), dtype="complex128"),
        *rows("full", [2, 1.5], shape=(2, 3), dtype=list(COMPLEX)),
        Sample(
            "full", (1.5, -2.0), {"shape": (2, 3), "dtype": "complex64"}, lambda a, b: torch.full((2, 3), a + b * 1j)
        ),
        Sample("full", (NAN, INF), {"shape": (), "dtype": "complex64"}, lambda a, b: torch.tensor(complex(a, b))),
        *rows("view", x, shape=(2, 6)),
        *rows("permute", x, dims=(1, 0)),
        *rows("expand", T((1, 3), "complex64"), shape=(4, 3)),
        *rows("cat", x, x, dim=0),
        *rows("flip", x, dims=(1,)),
        *rows("tril", x, diagonal=0),
        *rows("gather", x, at, dim=0, like=lambda x, i: torch.gather(x, 0, i)),
        *rows("scatter_add", x, at, T((2, 3), "complex64"), dim=0, like=lambda x, i, s: x.scatter_add(0, i, s)),
        *rows(
            "pad", x, 1.5, pads=((1, 0), (0, 2)), like=lambda x, v: torch.nn.functional.pad(x, (0, 2, 1, 0), value=v)
        ),
        Sample(
            "put_view",
            (x, T((4, 3))),
            {"chain": (("imag", ()),)},
            lambda base, value: torch.complex(base.real, value),
        ),
        Sample(
            "put_view",
            (x, T((4, 3, 2))),
            {"chain": (("view_as_real", ()),)},
            lambda base, value: torch.view_as_complex(value.clone()),
        ),
    ]


def complex_numbers() -> list[Sample]:
    return [*_parts(), *_arithmetic(), *_folded(), *_moved(), *_spectra()]
