"""Ops that put elements in order and pick from it. NaN counts as the greatest."""

from __future__ import annotations

from typing import Any

from gt.errors import DTypeError, ShapeError
from gt.ops.core import Types, op
from gt.ops.infer import wrap_dim
from gt.types import TensorType, bool_, int64


def _sorted(x: TensorType, *, dim: int, descending: bool, stable: bool) -> Types:
    wrap_dim(dim, x.ndim)
    return x, TensorType(x.shape, int64)


def _order(np: Any, x: Any, dim: int, descending: bool) -> Any:
    """Positions in order, equal elements as they stood. Descending is the mirror of the mirrored, NaN first."""
    if not descending:
        return np.argsort(x, axis=dim, kind="stable")
    mirrored = np.argsort(np.flip(x, dim), axis=dim, kind="stable")
    return x.shape[dim] - 1 - np.flip(mirrored, dim)


def _sort_numpy(np: Any, x: Any, *, dim: int, descending: bool, stable: bool) -> Any:
    row = x.reshape(x.shape or (1,))
    order = _order(np, row, dim, descending)
    return np.take_along_axis(row, order, axis=dim).reshape(x.shape), order.reshape(x.shape)


op(
    "sort",
    infer=_sorted,
    torch=lambda torch, x, *, dim, descending, stable: torch.sort(x, dim=dim, descending=descending, stable=stable),
    kernel=_sort_numpy,
)


def _topped(x: TensorType, *, k: int, dim: int, largest: bool, sorted: bool) -> Types:
    dim = wrap_dim(dim, x.ndim)
    if x.dtype is bool_:
        raise DTypeError("not defined for bool; use x.to(gt.uint8)")
    available = x.shape[dim] if x.ndim else 1
    if not 0 <= k <= available:
        raise ShapeError(f"k={k} is not within the {available} elements of dim {dim}")
    shape = (*x.shape[:dim], k, *x.shape[dim + 1 :]) if x.ndim else ()
    return TensorType(shape, x.dtype), TensorType(shape, int64)


def _topk_numpy(np: Any, x: Any, *, k: int, dim: int, largest: bool, sorted: bool) -> Any:
    values, order = _sort_numpy(np, x, dim=dim, descending=largest, stable=True)
    first = (slice(None),) * dim + (slice(k),) if x.ndim else ()
    return values[first].copy(), order[first].copy()


op(
    "topk",
    infer=_topped,
    torch=lambda torch, x, **attrs: torch.topk(x, **attrs),
    kernel=_topk_numpy,
)
