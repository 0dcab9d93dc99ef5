"""The rows of `tests.support.samples` for indexing and ordering, each with its call in torch."""

from __future__ import annotations

from typing import Any

import torch

from tests.support.samples import ALL, FLOATS, INF, NAN, NUMBERS, Sample, T, V, rows, typed

I, N = ("i",), ("n",)


def S(length: int, step: int = 1) -> tuple[Any, ...]:
    return ("s", length, step)


X = T((5, 4, 3))


def _slices() -> list[Sample]:
    table = [
        (X, (1, 0, 0), (I, S(4), S(3)), lambda x, *_: x[1]),
        (X, (4, 3, 2), (I, I, I), lambda x, *_: x[4, 3, 2]),
        (X, (1, 0, 0), (S(2, 3), S(4), S(3)), lambda x, *_: x[1::3]),
        (X, (0, 1, 0), (S(5), I, S(2, 2)), lambda x, *_: x[:, 1, ::2]),
        (X, (0, 0, 0), (N, S(5), N, S(4), S(3)), lambda x, *_: x[None, :, None]),
        (X, (2, 0, 1), (I, N, S(4), I), lambda x, *_: x[2, None, :, 1]),
        (X, (5, 0, 0), (S(0), S(4), S(3)), lambda x, *_: x[5:]),
        (X, (0, 0, 0), (S(5), S(4), S(3)), lambda x, *_: x[...]),
        (T(()), (), (), lambda x, *_: x[...]),
        (T(()), (), (N, N), lambda x, *_: x[None, None]),
        (T((0, 3)), (0, 1), (S(0), S(2)), lambda x, *_: x[:, 1:]),
        *((T((5, 3), d), (1, 2), (S(3), I), lambda x, *_: x[1:4, 2]) for d in ALL),
    ]
    return [Sample("slice", (x, *starts), {"items": items}, like) for x, starts, items, like in table]


def _indices() -> list[Sample]:
    i, j, grid, none = V([4, 0, -1, 0]), V([1, -2, 3, 0]), V([[0, 1], [2, -3]]), V([], "int32")
    table = [
        ((X, i), (0,), lambda x, i: x[i]),
        ((X, i), (1,), lambda x, i: x[:, i.clamp(max=3)]),
        ((X, V([2, 0], "int32")), (2,), lambda x, i: x[..., i]),
        ((X, grid), (1,), lambda x, i: x[:, i]),
        ((X, i, j), (0, 1), lambda x, i, j: x[i, j]),
        ((X, j, V([[0], [2]])), (1, 2), lambda x, i, j: x[:, i, j]),
        ((X, i, V([0, 1, 2, -3])), (0, 2), lambda x, i, j: x[i, :, j]),
        ((X, grid, V(1)), (0, 1), lambda x, i, j: x[i, j.expand(2, 2)]),
        ((X, V(2)), (0,), lambda x, i: x[2]),
        ((X, V(1), V([0, 2])), (0, 2), lambda x, i, j: x[i.expand(2), :, j]),
        ((X, none), (0,), lambda x, i: x[i]),
        ((T((0, 3)), none), (0,), lambda x, i: x[i]),
        *(((T((5, 3), d), i), (0,), lambda x, i: x[i]) for d in ALL),
    ]
    samples = [Sample("index", operands, {"dims": dims}, like) for operands, dims, like in table]
    return [s for s in samples if s.operands[1:] != (i,) or s.attrs["dims"] == (0,)]


def _written(at: Any) -> Any:
    """The oracle of an assignment: torch's own, on a clone."""

    def like(x: torch.Tensor, value: Any, *rest: Any) -> torch.Tensor:
        result = x.clone()
        result[at(*rest)] = value
        return result

    return like


def _index_puts() -> list[Sample]:
    i, j, twice = V([4, 0, -2]), V([1, 3, 0]), V([1, 1, 2, 1])
    first, both, apart = (
        _written(lambda i: i),
        _written(lambda i, j: (i, j)),
        _written(lambda i, j: (i, slice(None), j)),
    )
    table = [
        ((X, T((3, 4, 3)), i), (0,), first),
        ((X, T((3,)), i), (0,), first),
        ((X, T((1, 1, 4, 3)), i), (0,), first),
        ((X, 2.5, i), (0,), first),
        ((X, T(()), V([1, 2], "int32")), (2,), _written(lambda i: (..., i))),
        ((X, T((3, 3)), i, j), (0, 1), both),
        ((X, T((3, 4)), i, V([0, 2, 1])), (0, 2), apart),
        ((X, T((4, 3)), V(2)), (0,), first),
        ((X, 1, V([], "int64")), (0,), first),
        *(((T((5, 3), d), T((3, 3), d), i), (0,), first) for d in ALL),
        *(((T((5, 3), d), 1, i), (0,), first) for d in ALL),
    ]
    samples = [Sample("index_put", xs, {"dims": dims, "accumulate": False}, like) for xs, dims, like in table]
    adding = [
        ((T((5, 3), d), T((4, 3), d), twice), (0,), lambda x, v, i: x.index_put((i,), v, accumulate=True))
        for d in NUMBERS
    ]
    adding += [((T((4, 5)), 1.5, twice), (1,), lambda x, v, i: x.index_add(1, i, torch.full((4, 4), v, dtype=x.dtype)))]
    return samples + [Sample("index_put", xs, {"dims": dims, "accumulate": True}, like) for xs, dims, like in adding]


def _masks() -> list[Sample]:
    some, grid = V([True, False, True, True, False], "bool"), V([[True, False, True], [False, False, True]], "bool")
    nothing, yes = V([False] * 5, "bool"), V(True, "bool")
    chosen = [(X, some, 3), (T((2, 3)), grid, 3), (T((2, 3, 4), "int8"), grid, 3), (X, nothing, 0), (X, yes, 1)]
    chosen += [(T(()), yes, 1), (T((0, 3)), T((0, 3), "bool"), 0), *((T((5, 2), d), some, 3) for d in ALL)]
    like = _written(lambda mask: mask)
    put = [
        *[(X, some, T((3, 4, 3))), (X, some, T((4, 3))), (X, some, T((1, 1, 4, 1))), (X, some, 2.5), (X, nothing, 1)],
        *[(T((2, 3)), grid, T((3,))), (T((2, 3)), grid, T(())), (T((2, 3)), grid, T((), "int64")), (T(()), yes, 4)],
        *[(T((5,), d), some, T((3,), d)) for d in ALL],
        *[(T((5, 2), d), some, 1) for d in ALL],
    ]
    return [
        *(Sample("masked_select", (x, mask), {"n": n}, lambda x, mask: x[mask]) for x, mask, n in chosen),
        *(Sample("masked_put", (x, mask, v), {}, lambda x, mask, v: like(x, v, mask)) for x, mask, v in put),
        *(Sample("nonzero", (x,), {"n": n}) for x, n in [(some, 3), (grid, 3), (nothing, 0), (yes, 1), (V(0), 0)]),
        *(Sample("nonzero", (V([[0, 2], [1, 0]], d),), {"n": 2}) for d in ALL),
        *rows("nonzero", V([NAN, 0.0, -0.0, INF], "float32"), n=2),
    ]


def _put_views() -> list[Sample]:
    def step(name: str, **attrs: Any) -> tuple[str, Any]:
        return name, tuple(attrs.items())

    row = step("slice", items=(I, S(4), S(3)))
    part = step("slice", items=(S(2, 2), S(4), I))
    turned, flat = step("permute", dims=(1, 0)), step("view", shape=(20, 3))

    def last(x: Any, v: Any, *_: Any) -> Any:
        result = x.clone()
        result[1:5:2, :, 2].permute(1, 0).copy_(v if isinstance(v, torch.Tensor) else torch.tensor(v))
        return result

    def through(x: Any, v: Any, *_: Any) -> Any:
        result = x.clone()
        result.view(20, 3)[3:13:2, 1:] = v
        return result

    at_row = _written(lambda *at: at[0])
    cut = step("slice", items=(S(5, 2), S(2)))
    table = [
        ((X, T((4, 3)), 2, 0, 0), (row,), at_row),
        ((X, T((3,)), 4, 0, 0), (row,), at_row),
        ((X, T((1, 1, 4, 3)), 4, 0, 0), (row,), at_row),
        ((X, T((4, 3), "float64"), 0, 0, 0), (row,), at_row),
        ((X, 1.5, 1, 0, 0), (row,), at_row),
        ((X, T((4, 2)), 1, 0, 2), (part, turned), last),
        ((X, T((), "int64"), 1, 0, 2), (part, turned), last),
        ((X, T((5, 2)), 3, 1), (flat, cut), through),
        ((X, T((5, 4, 3))), (), lambda x, v: v.clone()),
        *(((T((5, 4, 3), d), T((4, 3), of="positive"), 2, 0, 0), (row,), at_row) for d in ALL),
        ((T(()), 2.5), (step("slice", items=()),), lambda x, v: torch.tensor(2.5)),
        ((T((0, 2)), 1), (), lambda x, v: x.clone()),
    ]
    return [Sample("put_view", operands, {"chain": chain}, like) for operands, chain, like in table]


def _along() -> list[Sample]:
    index = V([[0, 3, 1], [2, 2, 0]])
    gather = lambda dim: lambda x, i: torch.gather(x, dim, i)
    add = lambda dim: lambda x, i, v: x.scatter_add(dim, i, v[tuple(map(slice, i.shape))])
    return [
        *(Sample("gather", (x, index), {"dim": 1}, gather(1)) for x in typed((3, 4), ALL)),
        *(Sample("gather", (T((4, 3)), i), {"dim": 0}, gather(0)) for i in (index, V([[1]], "int32"))),
        *(Sample("gather", (T(()), i), {"dim": 0}, gather(0)) for i in (V(0), V([0, 0]))),
        Sample("gather", (T((3, 4)), T((0, 2), "int64")), {"dim": 1}, gather(1)),
        *(Sample("scatter_add", (x, index, T((2, 5), x.dtype)), {"dim": 1}, add(1)) for x in typed((3, 4), NUMBERS)),
        Sample("scatter_add", (T((4, 3)), index, T((2, 3))), {"dim": 0}, add(0)),
        Sample("scatter_add", (T(()), V(0), T(())), {"dim": 0}, add(0)),
    ]


def index() -> list[Sample]:
    return [*_slices(), *_indices(), *_index_puts(), *_masks(), *_put_views(), *_along()]


def select() -> list[Sample]:
    plain = [*typed((5, 3), NUMBERS, "distinct"), T(()), T((9,), of="special")]
    order = {"dim": 0, "descending": [False, True]}
    return [
        *rows("sort", [*typed((5, 3), NUMBERS, "distinct"), T(()), T((0, 3))], **order, stable=[False, True]),
        *rows("sort", [T((40,), "bool"), T((40,), "int8"), T((9,), of="special")], **order, stable=True),
        *rows("sort", T((2, 5, 3), of="distinct"), dim=[1, 2], descending=True, stable=False),
        *rows("topk", plain[:-1], k=[0, 1], dim=0, largest=[True, False], sorted=True),
        *rows("topk", T((2, 5, 3), of="distinct"), k=[3, 2], dim=[1, 2], largest=[True, False], sorted=True),
        *rows("topk", [T((5, 0)), *typed((5, 3), FLOATS, "distinct")], k=2, dim=0, largest=True, sorted=True),
        *rows("topk", V([1.0, NAN, INF, -INF, 0.0], "float32"), k=5, dim=0, largest=[True, False], sorted=True),
    ]


def sparse() -> list[Sample]:
    """Products of a sparse matrix and a dense one, with positions named twice and with empty rows."""
    at = (V([3, 0, 3, 1, 3, 0]), V([1, 2, 1, 0, 4, 2]))
    none = (V([], "int64"), V([], "int64"), T((0,)))
    cases = [
        *(((*at, T((6,), d), T((5, 3), d)), 6) for d in (*NUMBERS, "complex64")),
        *[((*none, T((5, 3))), 4), ((*none, T((0, 3))), 0), ((*at, T((6,)), T((5, 0))), 4)],
        ((V([0]), V([0]), T((1,)), T((1, 1))), 1),
    ]
    return [Sample("sparse_mm", operands, {"n": n}, _dense_product(n)) for operands, n in cases]


def _dense_product(n: int) -> Any:
    def product(rows: Any, columns: Any, values: Any, dense: Any) -> Any:
        matrix = torch.zeros(n, len(dense), dtype=values.dtype)
        return matrix.index_put((rows, columns), values, accumulate=True) @ dense

    return product
