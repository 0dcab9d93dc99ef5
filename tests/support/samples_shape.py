"""The rows of `tests.support.samples` for shapes, scatters, searches and solvers, each with its call in torch."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from tests.support.samples import ALL, FLOATS, INF, NAN, NUMBERS, Sample, T, V, rows, typed

FOLDS = ["sum", "prod", "mean", "amax", "amin"]


def _step(name: str, **attrs: Any) -> tuple[str, Any]:
    return name, tuple(attrs.items())


def _views() -> list[Sample]:
    planes = [
        {"offset": 0, "dim1": 0, "dim2": 1},
        {"offset": 1, "dim1": 2, "dim2": 0},
        {"offset": -2, "dim1": 1, "dim2": 2},
    ]
    samples = []
    for how in planes:
        samples += [Sample("diagonal", (x,), how) for x in (T((5, 3, 4)), T((5, 0, 4), "int8"))]
    samples += [Sample("diagonal", (x,), {"offset": 0, "dim1": 0, "dim2": 1}) for x in typed((3, 4), ALL)]
    samples += [Sample("diagonal", (T((3, 4)),), {"offset": 7, "dim1": 1, "dim2": 0})]
    for dim, size, step in ((0, 2, 1), (1, 3, 2), (2, 1, 3), (0, 5, 1), (2, 0, 1)):
        attrs = {"dim": dim, "size": size, "step": step}
        samples.append(Sample("unfold", (T((5, 6, 4)),), attrs, lambda x, a=(dim, size, step): x.unfold(*a)))
    samples += [
        Sample("unfold", (T((7,), d),), {"dim": 0, "size": 3, "step": 2}, lambda x: x.unfold(0, 3, 2)) for d in ALL
    ]
    samples += [Sample("unfold", (T(()),), {"dim": 0, "size": 1, "step": 1}, lambda x: x.unfold(0, 1, 1))]
    return samples


def _placing() -> list[Sample]:
    like = lambda x, value, dtype: torch.full_like(x, value, dtype=getattr(torch, dtype))
    operands = [*typed((5, 3), ALL), T(()), T((0, 4)), T((2, 3, 4, 5))]
    kinds = [(0, "float32"), (1.5, "float64"), (True, "bool"), (7, "int8"), (-2.75, "bfloat16"), (1, "float16")]
    return [
        *(Sample("placed", (x,), {"signal": "stage"}, lambda x: x) for x in operands),
        *(Sample("full_like", (x, 1), {"dtype": "float32"}, lambda x, v: like(x, v, "float32")) for x in operands),
        *(
            Sample("full_like", (T((5, 3)), value), {"dtype": dtype}, lambda x, v, d=dtype: like(x, v, d))
            for value, dtype in kinds
        ),
    ]


def _blocks() -> list[Sample]:
    """The ops that workers run alone when a tensor is split."""
    samples = [
        Sample("block", (x,), {"starts": (1, 0, 2), "sizes": (3, 4, 0)}, lambda x: x[1:4, :4, 2:2])
        for x in typed((5, 4, 2), ALL)
    ]
    samples += [Sample("block", (T(()),), {"starts": (), "sizes": ()}, lambda x: x[...])]
    for is_mine in (True, False):
        samples += [Sample("term", (x,), {"mine": is_mine}, lambda x, m=is_mine: x * m) for x in typed((5, 3), ALL)]
    return samples


def _backward(call: Any, shape: tuple[int, ...]) -> Any:
    """The oracle of an op that computes a gradient: torch's own autograd."""

    def like(g: torch.Tensor, *rest: Any) -> torch.Tensor:
        with torch.enable_grad():
            x = torch.zeros(shape, dtype=g.dtype, requires_grad=True)
            (gradient,) = torch.autograd.grad(call(x, *rest), x, g)
        return gradient

    return like


def _backs() -> list[Sample]:
    row = _step("slice", items=(("i",), ("s", 2, 2), ("s", 3, 1)))
    turned = _step("permute", dims=(1, 0))
    diagonal = _step("diagonal", offset=1, dim1=0, dim2=2)
    table = [
        ((T((2, 3)), 1, 0, 0), (row,), (5, 4, 3), lambda x, *_: x[1, ::2]),
        ((T((3, 2), "float64"), 4, 1, 0), (row, turned), (5, 4, 3), lambda x, *_: x[4, 1::2].T),
        ((T((4, 2)),), (diagonal,), (5, 4, 3), lambda x: x.diagonal(1, 0, 2)),
        ((T(()), 2), (_step("slice", items=(("i",),)),), (3,), lambda x, *_: x[2]),
        ((T((0, 3)), 5, 0), (_step("slice", items=(("s", 0, 1), ("s", 3, 1))),), (5, 3), lambda x, *_: x[5:]),
    ]
    samples = [
        Sample("view_backward", operands, {"chain": chain, "shape": shape}, _backward(call, shape))
        for operands, chain, shape, call in table
    ]
    i, twice = V([[4, 0], [0, -1]]), V([1, 1, 0])
    table = [
        ((T((2, 2, 3)), i), (0,), (5, 3), lambda x, i: x[i]),
        ((T((4, 3), "float64"), twice), (1,), (4, 2), lambda x, i: x[:, i]),
        ((T((3, 4)), twice, V([2, 2, 0])), (0, 2), (2, 4, 3), lambda x, i, j: x[i, :, j]),
        ((T((0, 3)), V([], "int64")), (0,), (5, 3), lambda x, i: x[i]),
    ]
    samples += [
        Sample("index_backward", operands, {"dims": dims, "shape": shape}, _backward(call, shape))
        for operands, dims, shape, call in table
    ]
    windows = [((2, 6, 4, 5), (5, 6, 4), 0, 5, 1), ((5, 2, 4, 3), (5, 6, 4), 1, 3, 2), ((3, 3), (7,), 0, 3, 2)]
    for shape, whole, dim, size, step in windows:
        shape = tuple(torch.empty(whole).unfold(dim, size, step).shape)
        call = lambda x, a=(dim, size, step): x.unfold(*a)
        attrs = {"shape": whole, "dim": dim, "size": size, "step": step}
        samples += [
            Sample("unfold_backward", (T(shape, d),), attrs, _backward(call, whole)) for d in ("float32", "float64")
        ]
    mask = V([[True, False, True], [False, True, True]], "bool")
    samples += [
        Sample("masked_scatter_backward", (T((2, 3)), mask), {"shape": shape}, _drained(shape))
        for shape in ((4,), (2, 3), (9,))
    ]
    return samples


def _drained(shape: tuple[int, ...]) -> Any:
    return _backward(lambda s, mask: torch.zeros(2, 3, dtype=s.dtype).masked_scatter(mask, s), shape)


def _pads() -> list[Sample]:
    def like(pads: Any) -> Any:
        flat = [n for pair in reversed(pads) for n in pair]
        return lambda x, value: torch.nn.functional.pad(x, flat, value=value)

    several = [((0, 0), (1, 2)), ((2, 0), (0, 0)), ((-1, 1), (1, -2)), ((0, 0), (0, 0)), ((-2, -3), (0, 0))]
    samples = [Sample("pad", (T((5, 3)), 1.5), {"pads": p}, like(p)) for p in several]
    samples += [Sample("pad", (x, 1), {"pads": several[0]}, like(several[0])) for x in typed((5, 3), ALL)]
    samples += [Sample("pad", (T((0, 3)), 0), {"pads": several[1]}, like(several[1]))]
    return [*samples, Sample("pad", (T(()), 0), {"pads": ()}, lambda x, value: x.clone())]


def _covered(source: Any, index: torch.Tensor) -> Any:
    """The part of a source that an index selects; torch has no gradient for the whole."""
    if not isinstance(source, torch.Tensor) or not index.ndim:
        return source
    return source[tuple(map(slice, index.shape))]


def _scatters() -> list[Sample]:
    index = V([[0, 3, 1], [2, 2, 0]])
    once = V([[0, 3, 1], [2, 1, 0]])
    put = lambda dim: lambda x, i, v: x.scatter(dim, i, _covered(v, i))
    samples = [
        *(Sample("scatter", (x, once, T((2, 5), x.dtype)), {"dim": 1}, put(1)) for x in typed((3, 4), ALL)),
        *(Sample("scatter", (x, once, 1), {"dim": 1}, put(1)) for x in typed((3, 4), ALL)),
        Sample("scatter", (T((4, 3)), once, T((2, 3))), {"dim": 0}, put(0)),
        Sample("scatter", (T((4, 3)), once, 2.5), {"dim": 0}, put(0)),
        Sample("scatter", (T(()), V(0), T(())), {"dim": 0}, put(0)),
        Sample("scatter", (T((4, 3)), T((0, 3), "int64"), T((2, 3))), {"dim": 0}, put(0)),
        Sample("scatter_add", (T((4, 3)), T((0,), "int64"), T((2, 3))), {"dim": 0}, lambda x, i, v: x.clone()),
        Sample("gather", (T((4, 3)), T((0,), "int64")), {"dim": 0}, lambda x, i: torch.gather(x, 0, i)),
    ]
    for reduce in FOLDS:
        for include_self in (True, False):
            attrs = {"dim": 1, "reduce": reduce, "include_self": include_self}
            like = lambda x, i, v, r=reduce, o=include_self: x.scatter_reduce(1, i, _covered(v, i), r, include_self=o)
            samples += [Sample("scatter_reduce", (T((3, 4), d), index, T((2, 5), d)), attrs, like) for d in NUMBERS]
            samples.append(Sample("scatter_reduce", (T((3, 4)), T((0, 2), "int64"), T((2, 5))), attrs, like))
    mask = V([[True, False, True], [False, True, True]], "bool")
    fill = lambda x, mask, v: x.masked_scatter(mask, v)
    samples += [Sample("masked_scatter", (T((2, 3), d), mask, T((4,), d)), {}, fill) for d in ALL]
    samples += [Sample("masked_scatter", (T((2, 3)), mask, T((2, 5))), {}, fill)]
    return [*samples, Sample("masked_scatter", (T((0,)), T((0,), "bool"), T((2,))), {}, fill)]


def _finds() -> list[Sample]:
    sides = {"right": [False, True], "out_int32": [False, True]}
    row = V([1, 3, 3, 5])
    values = [V(3), V([[0, 3], [6, 1]]), V([], "int64")]
    special = V([NAN, 1.0, 2.0, 2.0, INF, -INF], "float32")
    return [
        *rows("kthvalue", [*typed((5, 3), NUMBERS, "distinct")], k=[1, 4], dim=0, keepdim=[True, False]),
        *rows("kthvalue", T((2, 5, 3), of="distinct"), k=2, dim=[1, 2], keepdim=False),
        *rows("kthvalue", T(()), k=1, dim=0, keepdim=[True, False]),
        *rows("searchsorted", row, values, **sides),
        *rows("searchsorted", V([-1.5, 0.0, 2.0], "float32"), special, right=[False, True], out_int32=False),
        *rows("searchsorted", V([[1, 2, 3], [2, 2, 4]]), V([[2, 9], [2, 1]]), **sides),
        *rows("searchsorted", V([], "float32"), T((3,)), right=False, out_int32=False),
        *(
            Sample("unique_ranks", (x,), {}, lambda x: torch.unique(x, return_inverse=True)[1])
            for x in (*typed((9,), ALL), T((0,)), special)
        ),
        *(
            Sample("unique_ranks", (x,), {}, lambda x: torch.unique(x, return_inverse=True, dim=0)[1])
            for x in (V([[1, 2], [0, 9], [1, 2], [0, 8]]), T((5, 1), "int8"))
        ),
        *(
            Sample("histc", (x, low, high), {"bins": bins}, lambda x, a, b, n=bins: torch.histc(x, n, a, b))
            for x in (T((20,)), T((5, 3), "float64"))
            for bins, low, high in ((4, -2, 2), (3, 0, 0), (7, -3.5, 3.0))
        ),
    ]


def _permutation(rows: int, dtype: str, pivots: torch.Tensor) -> torch.Tensor:
    shape_only = torch.empty(*pivots.shape[:-1], rows, pivots.shape[-1], dtype=getattr(torch, dtype))
    return torch.lu_unpack(shape_only, pivots, unpack_data=False)[0]


def _solves() -> list[Sample]:
    wide = ("float32", "float64")
    eye = lambda n, d: V((torch.eye(n) * 4 + torch.arange(n * n).reshape(n, n).sin()).tolist(), d)
    batch = V([[[2.0, 1.0], [1.0, 3.0]], [[5.0, -1.0], [-1.0, 4.0]]], "float64")
    turning = V([[1.0, 2.0, 0.0], [-2.0, 1.0, 0.5], [0.0, 0.5, 5.0]], "float64")
    a, b = lambda d: eye(4, d), lambda d: T((4, 3), d)
    both = [x for d in wide for x in (a(d),)]
    la = torch.linalg
    squares = [*both, batch, T((0, 0)), T((2, 0, 0))]
    triangle = {"upper": [True, False], "unitriangular": [True, False]}
    return [
        *(Sample("inv", (x,), {}, la.inv) for x in squares),
        *(Sample("det", (x,), {}, la.det) for x in squares),
        *(Sample("slogdet", (x,), {}, lambda x: tuple(la.slogdet(x))) for x in squares),
        *(Sample("solve", (a(d), b(d)), {}, la.solve) for d in wide),
        Sample("solve", (batch, T((2, 3), "float64")), {}, la.solve),
        Sample("solve", (V([[2.0, 1.0], [1.0, 3.0]], "float64"), T((3, 2, 1), "float64")), {}, la.solve),
        *(
            Sample("solve_triangular", (a(d), b(d)), how, lambda a, b, how=how: la.solve_triangular(a, b, **how))
            for d in wide
            for how in ({"upper": u, "unitriangular": t} for u in triangle["upper"] for t in triangle["unitriangular"])
        ),
        *(Sample("matrix_exp", (x,), {}, la.matrix_exp) for x in (*both, batch, T((0, 0)), T((2, 3, 3), "float64"))),
        *(Sample("geqrf", (x,), {}, lambda x: tuple(torch.geqrf(x))) for x in (T((5, 3), "float64"), T((2, 3, 4)))),
        *(
            Sample("lu_factor", (x,), {}, lambda x: tuple(la.lu_factor_ex(x)[:2]))
            for x in (a("float32"), batch, T((5, 3), "float64"), T((2, 3, 4)), T((0, 3)), T((2, 0, 0)))
        ),
        *(
            Sample("lu_permutation", (V(p, "int32"),), {"rows": rows, "dtype": d}, partial(_permutation, rows, d))
            for p, rows, d in (([3, 2, 3], 3, "float64"), ([[2, 2], [1, 2]], 4, "complex64"), ([[]], 2, "float32"))
        ),
        *(Sample("eig", (x,), {}, lambda x: tuple(la.eig(x))) for x in (turning, batch, T((0, 0)))),
        Sample("cholesky", (batch,), {}, la.cholesky),
        Sample("cholesky", (V([[4.0, 1.0], [1.0, 3.0]], "float32"),), {}, la.cholesky),
        *(
            Sample("qr", (x,), {"mode": mode}, lambda x, m=mode: tuple(la.qr(x, m)))
            for x in (a("float64"), T((5, 3)), T((3, 5), "float64"), T((2, 4, 2)))
            for mode in ("reduced", "complete")
            if mode == "reduced" or x in (a("float64"), T((3, 5), "float64"))  # torch has no gradient there
        ),
        *(Sample("eigh", (x,), {}, lambda x: tuple(la.eigh(x))) for x in (batch,)),
        *(
            Sample("svd", (x,), {"full_matrices": False}, lambda x: tuple(la.svd(x, False)))
            for x in (a("float64"), V([[3.0, 1.0], [0.5, 2.0], [1.0, 1.0]], "float64"))
        ),
        Sample("svd", (V([[3.0, 1.0], [0.5, 2.0]], "float64"),), {"full_matrices": True}, lambda x: tuple(la.svd(x))),
    ]


def _products() -> list[Sample]:
    add = lambda x, a, b, beta, alpha: torch.addmm(x, a, b, beta=beta, alpha=alpha)
    badd = lambda x, a, b, beta, alpha: torch.baddbmm(x, a, b, beta=beta, alpha=alpha)
    a, b = T((2, 4)), T((4, 3))
    return [
        *(Sample("addmm", (x, a, b, 1, 1), {}, add) for x in (T((2, 3)), T((3,)), T((2, 1)), T(()))),
        *(Sample("addmm", (T((2, 3)), a, b, *k), {}, add) for k in ((0.5, 2), (0, 1), (2, 0.25))),
        *(Sample("addmm", (T((3,), d), T((2, 4), d), T((4, 3), d), 2, 3), {}, add) for d in NUMBERS),
        Sample("addmm", (T((2, 3)), T((2, 0)), T((0, 3)), 0.5, 1), {}, add),
        *(Sample("baddbmm", (x, T((5, 2, 4)), T((5, 4, 3)), 0.5, 2), {}, badd) for x in (T((5, 2, 3)), T((3,)))),
        *(Sample("baddbmm", (T((2, 3), d), T((2, 2, 4), d), T((2, 4, 3), d), 1, 2), {}, badd) for d in FLOATS),
    ]


def shapes() -> list[Sample]:
    return [*_views(), *_blocks(), *_placing(), *_backs(), *_pads(), *_scatters(), *_finds(), *_solves(), *_products()]
