"""`prod` and `cumprod`. Their gradients must not divide, because elements may be zero."""

from __future__ import annotations

from functools import partial
from typing import Any

from gt.errors import DTypeError, ShapeError
from gt.ops.infer import check_dim, check_dims
from gt.ops.math.reduce import Dims, axes, cast, count, in_, restored, summed
from gt.ops.math.scan import accumulated, scanned
from gt.ops.op import op
from gt.ops.split import along, folding
from gt.types import TensorType


def _prod_torch(torch: Any, x: Any, *, dim: Dims, keepdim: bool, dtype: str | None) -> Any:
    for d in sorted(dim, reverse=True):  # from the last, so that the others keep their numbers
        x = torch.prod(x, d, keepdim, dtype=in_(torch, dtype))
    return x if dim else torch.prod(x, dtype=in_(torch, dtype))


def _prod_back(g: Any, x: Any, dim: Dims, keepdim: bool, dtype: str | None) -> Any:
    x = x if dtype is None else x._op("to", dtype=dtype)
    return restored(g, x, dim, keepdim) * x._op("prod_others", dim=dim)


op(
    "prod",
    complex="holomorphic",
    autocast="float32_result",
    operands="t",
    infer=summed,
    # backends cannot multiply complex numbers
    split=lambda x, **how: folding(x, **how, how="" if x.dtype.kind == "c" else "prod"),
    vjp=(lambda g, _y, x, *, dim, keepdim, dtype: _prod_back(g, x, dim, keepdim, dtype),),
    torch=_prod_torch,
    kernel=lambda np, x, *, dim, keepdim, dtype: np.prod(
        cast(x, dtype), axis=axes(x, dim), keepdims=keepdim, dtype=dtype
    ),
)


def _others(xp: Any, x: Any, dim: Dims, cumprod: Any) -> Any:
    """For each element of a row, the product of the others: of those before times those after."""
    if not x.ndim or not dim:
        return xp.ones_like(x)
    rest = tuple(d for d in range(x.ndim) if d not in dim)
    order = (*rest, *dim)
    moved = xp.permute_dims(x, order)
    rows = xp.reshape(moved, (*(x.shape[d] for d in rest), count(x, dim)))
    one = xp.ones_like(rows[..., :1])
    before = cumprod(xp.concat([one, rows[..., :-1]], axis=-1))
    after = xp.flip(cumprod(xp.flip(xp.concat([rows[..., 1:], one], axis=-1), axis=-1)), axis=-1)
    result = xp.reshape(before * after if rows.shape[-1] else rows, moved.shape)
    return xp.permute_dims(result, tuple(order.index(d) for d in range(x.ndim)))


def pairs_back(c: Any, x: Any) -> Any:
    """The gradient of these products along the last dim: products without two elements."""
    n = x.shape[-1]
    diagonal = eye(x, n)
    rows = x.unsqueeze(-2).expand((*x.shape[:-1], n, n)).masked_fill(diagonal, 1)
    both = rows._op("prod_others", dim=(x.ndim,)).masked_fill(diagonal, 0)
    return (c.unsqueeze(-1) * both).sum(-2)


def eye(x: Any, n: int) -> Any:
    ones = x.new_ones((n, n))
    return ones.tril() * ones.triu() != 0


def _others_back(c: Any, _y: Any, x: Any, *, dim: Dims) -> Any:
    if not x.ndim or not dim:
        return c * 0
    rest = tuple(d for d in range(x.ndim) if d not in dim)
    order = (*rest, *dim)
    moved = x.permute(order)
    rows = (*(x.shape[d] for d in rest), count(x, dim))
    result = pairs_back(c.permute(order).reshape(rows), moved.reshape(rows)).reshape(moved.shape)
    return result.permute(tuple(order.index(d) for d in range(x.ndim)))


def _others_type(x: TensorType, *, dim: Dims) -> TensorType:
    check_dims(dim, x.ndim)
    if x.dtype.kind not in "fc":
        raise DTypeError(f"not defined for {x.dtype.name}; a gradient is floating")
    return x


op(
    "prod_others",
    complex="holomorphic",
    operands="t",
    infer=_others_type,
    split=along,
    vjp=(_others_back,),
    numpy=lambda np, x, *, dim: _others(np, x, dim, lambda rows: accumulated(np, np.cumprod, rows, -1)),
    kernel=lambda xp, x, *, dim: _others(xp, x, dim, lambda rows: rows.cumprod(-1)),
)


# -- along a dim ---------------------------------------------------------------------------


def _cumprod_back_torch(torch: Any, g: Any, y: Any, x: Any, *, dim: int) -> Any:
    if x.is_complex():  # torch conjugates them; here the tape does
        x, y = x.conj(), y.conj()
    return torch.ops.aten.cumprod_backward.default(g, x, dim, y)


def _cumprod_back_numpy(np: Any, g: Any, y: Any, x: Any, *, dim: int) -> Any:
    """Before the first zero of a row, divides by x; the first zero gets the terms up to the next zero; the rest is 0.

    This is torch's method, which uses y, so both engines agree for any y, not only for the product of x.
    """
    if x.size <= 1 or x.shape[dim] == 1:
        return g.copy()
    g, y, x = (np.moveaxis(a, dim, -1) for a in (g, y, x))
    zeros = np.cumsum(x == 0, axis=-1)
    result = np.where(zeros == 0, _sum_reversed(np, np.where(zeros == 0, y * g, 0)) / x, 0)
    first = np.argmax(x == 0, axis=-1, keepdims=True)
    between = (zeros == 1) & (np.arange(x.shape[-1]) > first)
    factors = np.where(between, accumulated(np, np.cumprod, np.where(between, x, 1), -1), 0)
    before = np.where(first == 0, 1, np.take_along_axis(y, np.maximum(first - 1, 0), axis=-1))
    at_zero = (np.sum(factors * g, axis=-1, keepdims=True) + np.take_along_axis(g, first, axis=-1)) * before
    result = np.where((zeros == 1) & (np.arange(x.shape[-1]) == first), at_zero, result)
    return np.moveaxis(result.astype(x.dtype), -1, dim)


def _sum_reversed(np: Any, rows: Any) -> Any:
    return np.flip(accumulated(np, np.cumsum, np.flip(rows, -1), -1), -1)


def _triangle(x: Any, dim: int) -> tuple[Any, Any]:
    """The factors of each product of `cumprod`: rows with ones from the diagonal on; and where those are."""
    x = x.movedim(dim, -1)
    n = x.shape[-1]
    ones = x.new_ones((n, n)).triu(1) != 0
    return x.unsqueeze(-2).expand((*x.shape[:-1], n, n)).masked_fill(ones, 1), ones


def _cumprod_again(c: Any, _z: Any, _g: Any, y: Any, x: Any, *, dim: int) -> Any:
    """The gradient for g: how the products change with their factors."""
    if not x.ndim:
        return c
    rows, ones = _triangle(x, dim)
    each = rows._op("prod_others", dim=(x.ndim,)).masked_fill(ones, 0)
    return (each * c.movedim(dim, -1).unsqueeze(-2)).sum(-1).movedim(-1, dim)


def _cumprod_second(c: Any, _z: Any, g: Any, _y: Any, x: Any, *, dim: int) -> Any:
    if not x.ndim:
        return c * 0
    rows, ones = _triangle(x, dim)
    weights = c.movedim(dim, -1).unsqueeze(-2) * g.movedim(dim, -1).unsqueeze(-1)
    return pairs_back(weights.masked_fill(ones, 0), rows).masked_fill(ones, 0).sum(-2).movedim(-1, dim)


op(
    "cumprod",
    complex="holomorphic",
    autocast="float32",
    operands="t",
    infer=scanned,
    split=along,
    vjp=(lambda g, y, x, *, dim: g._op("cumprod_backward", y, x, dim=dim),),
    torch=lambda torch, x, *, dim: torch.cumprod(x, dim),
    kernel=lambda np, x, *, dim: accumulated(np, np.cumprod, x, dim).reshape(x.shape),
)


def _cumprod_back_type(g: TensorType, y: TensorType, x: TensorType, *, dim: int) -> TensorType:
    check_dim(dim, x.ndim)
    if x.dtype.kind not in "fc" or not g is y is x:
        raise ShapeError(f"three floating tensors of one type, not {g}, {y} and {x}")
    return x


#: (g, the product, x); its gradients are written in terms of x alone
op(
    "cumprod_backward",
    complex="holomorphic",
    operands="ttt",
    infer=_cumprod_back_type,
    split=partial(along, linear=((0,),)),
    vjp=(_cumprod_again, None, _cumprod_second),
    torch=_cumprod_back_torch,
    kernel=_cumprod_back_numpy,
)
