"""Reductions that give a value by its rank: medians and the mode."""

from __future__ import annotations

from functools import partial
from typing import Any

from gt.errors import DimError, DTypeError
from gt.ops.infer import check_dim, require_bools, without
from gt.ops.math.reduce import SELECTING
from gt.ops.op import Types, op
from gt.ops.split import folding
from gt.types import TensorType, bool_, int64

# -- the middle ----------------------------------------------------------------------------


def _middle(np: Any, x: Any, skip_nan: bool) -> Any:
    """The position of the lower median along the last dim; a NaN counts as the median, or is skipped."""
    order = np.argsort(x, axis=-1, kind="stable")  # NaN is sorted last
    bad = np.sum(x != x, axis=-1)
    n = x.shape[-1]
    place = np.where(bad > 0, np.maximum(n - bad - 1, 0) // 2 if skip_nan else n - bad, (n - 1) // 2)
    return np.take_along_axis(order, np.minimum(place, n - 1)[..., None], axis=-1)[..., 0]


def _median_numpy(np: Any, x: Any, *, dim: int, keepdim: bool, skip_nan: bool) -> Any:
    row = np.moveaxis(x if x.ndim else x.reshape(1), dim, -1)
    at = _middle(np, row, skip_nan)
    values = np.take_along_axis(row, at[..., None], axis=-1)[..., 0]
    shape = without(x.shape, (dim,), keepdim)
    return values.reshape(shape), at.reshape(shape)


def _selected(x: TensorType, *, dim: int, keepdim: bool) -> Types:
    check_dim(dim, x.ndim)
    require_bools(keepdim=keepdim)
    if x.ndim and not x.shape[dim]:
        raise DimError(f"dim {dim} has size 0, and there is no middle of nothing")
    values = TensorType(without(x.shape, (dim,), keepdim), x.dtype)
    return values, TensorType(values.shape, int64)


def _middle_type(x: TensorType, *, dim: int, keepdim: bool) -> Types:
    _refuse_bool(x)
    return _selected(x, dim=dim, keepdim=keepdim)


def _refuse_bool(x: TensorType) -> None:
    if x.dtype is bool_:
        raise DTypeError("not defined for bool; use x.to(gt.uint8)")


def _dense(x: Any) -> Any:
    """torch reads beyond the memory of an expanded tensor here."""
    return x.contiguous()


op(
    "median_dim",
    operands="t",
    infer=_middle_type,
    split=partial(folding, results=2),
    vjp=SELECTING,
    torch=lambda torch, x, *, dim, keepdim: torch.median(_dense(x), dim, keepdim),
    kernel=lambda np, x, *, dim, keepdim: _median_numpy(np, x, dim=dim, keepdim=keepdim, skip_nan=False),
)

op(
    "nanmedian_dim",
    operands="t",
    infer=_middle_type,
    split=partial(folding, results=2),
    vjp=SELECTING,
    torch=lambda torch, x, *, dim, keepdim: torch.nanmedian(_dense(x), dim, keepdim),
    kernel=lambda np, x, *, dim, keepdim: _median_numpy(np, x, dim=dim, keepdim=keepdim, skip_nan=True),
)


def _whole(x: TensorType) -> TensorType:
    _refuse_bool(x)
    if not x.numel and x.dtype.kind != "f":
        raise DimError("there is no middle of nothing; of floats it is NaN")
    return TensorType((), x.dtype)


def _shared(g: Any, y: Any, x: Any) -> Any:
    """Shared by all elements that equal the median."""
    those = (x == y) | ((x != x) & (y != y))
    return g / those.sum() * those


def _whole_numpy(np: Any, x: Any, skip_nan: bool) -> Any:
    if not x.size:
        return np.nan
    return x.reshape(-1)[_middle(np, x.reshape(-1), skip_nan)]


op(
    "median",
    whole="the median of parts is not the median",
    operands="t",
    infer=_whole,
    vjp=(_shared,),
    torch=lambda torch, x: torch.median(x),
    kernel=lambda np, x: _whole_numpy(np, x, False),
)

op(
    "nanmedian",
    whole="the median of parts is not the median",
    operands="t",
    infer=_whole,
    vjp=(_shared,),
    torch=lambda torch, x: torch.nanmedian(x),
    kernel=lambda np, x: _whole_numpy(np, x, True),
)


def _mode_torch(torch: Any, x: Any, *, dim: int, keepdim: bool) -> Any:
    """From ranks: on a CPU torch sorts with a comparison that NaN makes inconsistent, and may read beyond the row."""
    if x.is_cuda or not x.is_floating_point() or not x.ndim:
        return torch.mode(x, dim, keepdim)
    ordered, places = torch.sort(x, dim=dim, stable=True)
    n = x.shape[dim]
    rises = ordered.narrow(dim, 1, n - 1) != ordered.narrow(dim, 0, n - 1)  # NaN differs from NaN
    first = rises.new_zeros((*x.shape[:dim], 1, *x.shape[dim + 1 :]))
    at = torch.mode(torch.cat([first, rises], dim).cumsum(dim), dim, True)[1]
    values, places = ordered.gather(dim, at), places.gather(dim, at)
    return (values, places) if keepdim else (values.squeeze(dim), places.squeeze(dim))


def _mode_numpy(np: Any, x: Any, *, dim: int, keepdim: bool) -> Any:
    row = np.moveaxis(x if x.ndim else x.reshape(1), dim, -1)
    if row.size:
        at = np.apply_along_axis(lambda r: _most_frequent(np, r), -1, row)
    else:
        at = np.zeros(row.shape[:-1], dtype=np.int64)
    values = np.take_along_axis(row, at[..., None], axis=-1)[..., 0]
    shape = without(x.shape, (dim,), keepdim)
    return values.reshape(shape), at.reshape(shape)


def _most_frequent(np: Any, row: Any) -> Any:
    values, counts = np.unique(row, return_counts=True, equal_nan=False)
    value = values[np.argmax(counts)]
    return np.flatnonzero(row == value if value == value else row != row)[-1]


op(
    "mode",
    operands="t",
    infer=_selected,
    split=partial(folding, results=2),
    vjp=SELECTING,
    torch=_mode_torch,
    kernel=_mode_numpy,
)
