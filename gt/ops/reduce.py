"""Ops that fold dims: sums, extremes, and what is made of them (softmax, cumulative sums).

``dim`` is a tuple of all the dims to fold, never empty unless the tensor is 0-d: torch's functions disagree on what
an empty one means. A 0-d tensor takes ``dim=(0,)`` too, as torch's does; numpy's has no axis 0.
"""

from __future__ import annotations

from typing import Any

from gt.errors import DimError, DTypeError
from gt.ops.core import Types, dtype_named, op
from gt.ops.infer import floating, without, wrap_dim, wrap_dims
from gt.types import DType, Shape, TensorType, bool_, int64, uint8

Dims = tuple[int, ...]


def _folded(x: TensorType, dim: Dims, keepdim: bool) -> Shape:
    if x.ndim and not dim:
        raise DimError("dim is empty; name the dims to fold, or leave it out for all")
    return without(x.shape, wrap_dims(dim, x.ndim), keepdim)


def _filled(x: TensorType, dim: Dims) -> None:
    """There is no greatest of nothing."""
    for d in wrap_dims(dim, x.ndim):
        if x.ndim and not x.shape[d]:
            raise DimError(f"dim {d} has size 0, and there is no extreme of nothing")


def _axes(x: Any, dim: Dims) -> Dims:
    return dim if x.ndim else ()


def _in(torch: Any, dtype: str | None) -> Any:
    return None if dtype is None else getattr(torch, dtype)


def _cast(x: Any, dtype: str | None) -> Any:
    return x if dtype is None else x.astype(dtype)


# -- sums ----------------------------------------------------------------------------------


def _total(dtype: DType) -> DType:
    return dtype if dtype.kind == "f" else int64


def _summed(x: TensorType, *, dim: Dims, keepdim: bool, dtype: str | None) -> TensorType:
    return TensorType(_folded(x, dim, keepdim), _total(x.dtype) if dtype is None else dtype_named(dtype))


def restored(g: Any, x: Any, dim: Dims, keepdim: bool) -> Any:
    """What a reduction left, with its dims back in place as dims of size 1."""
    return g if keepdim else g.reshape(tuple(1 if d in dim else n for d, n in enumerate(x.shape)))


op(
    "sum",
    infer=_summed,
    vjp=(lambda g, _y, _x, *, dim, keepdim, dtype: restored(g, _x, dim, keepdim).expand(_x.shape),),
    torch=lambda torch, x, *, dim, keepdim, dtype: torch.sum(x, dim, keepdim, dtype=_in(torch, dtype)),
    kernel=lambda np, x, *, dim, keepdim, dtype: np.sum(
        _cast(x, dtype), axis=_axes(x, dim), keepdims=keepdim, dtype=dtype
    ),
)


def _prod_torch(torch: Any, x: Any, *, dim: Dims, keepdim: bool, dtype: str | None) -> Any:
    for d in sorted(dim, reverse=True):  # torch folds one dim at a time; from the last, so that the others keep place
        x = torch.prod(x, d, keepdim, dtype=_in(torch, dtype))
    return x if dim else torch.prod(x, dtype=_in(torch, dtype))


op(
    "prod",
    infer=_summed,
    torch=_prod_torch,
    kernel=lambda np, x, *, dim, keepdim, dtype: np.prod(
        _cast(x, dtype), axis=_axes(x, dim), keepdims=keepdim, dtype=dtype
    ),
)


def _averaging(x: DType, dtype: str | None) -> DType:
    made = x if dtype is None else dtype_named(dtype)
    if made.kind != "f":
        raise DTypeError(f"not defined for {made.name}; give a floating dtype: dtype=gt.float32")
    return made


def _averaged(x: TensorType, *, dim: Dims, keepdim: bool, dtype: str | None) -> TensorType:
    return TensorType(_folded(x, dim, keepdim), _averaging(x.dtype, dtype))


def _count(x: Any, dim: Dims) -> int:
    count = 1
    for d in _axes(x, dim):
        count *= x.shape[d]
    return count


def _mean_numpy(np: Any, x: Any, *, dim: Dims, keepdim: bool, dtype: str | None) -> Any:
    # by hand: numpy's own warns about empty tensors
    x = _cast(x, dtype)
    precise = np.float32 if x.dtype == np.float16 else None
    total = np.sum(x, axis=_axes(x, dim), keepdims=keepdim, dtype=precise)
    return np.true_divide(total, np.asarray(_count(x, dim), dtype=total.dtype))


op(
    "mean",
    infer=_averaged,
    torch=lambda torch, x, *, dim, keepdim, dtype: torch.mean(x, dim, keepdim, dtype=_in(torch, dtype)),
    kernel=_mean_numpy,
)


def _varied(x: TensorType, *, dim: Dims, keepdim: bool, correction: int) -> TensorType:
    return TensorType(_folded(x, dim, keepdim), _averaging(x.dtype, None))


def _var_numpy(np: Any, x: Any, *, dim: Dims, keepdim: bool, correction: int) -> Any:
    apart = x - _mean_numpy(np, x, dim=dim, keepdim=True, dtype=None)
    total = np.sum(apart * apart, axis=_axes(x, dim), keepdims=keepdim)
    return np.true_divide(total, np.asarray(max(_count(x, dim) - correction, 0), dtype=total.dtype))


op(
    "var",
    infer=_varied,
    torch=lambda torch, x, *, dim, keepdim, correction: torch.var(x, dim, correction=correction, keepdim=keepdim),
    kernel=_var_numpy,
)


def _scanned(x: TensorType, *, dim: int) -> TensorType:
    wrap_dim(dim, x.ndim)
    return TensorType(x.shape, _total(x.dtype))


op(
    "cumsum",
    infer=_scanned,
    torch=lambda torch, x, *, dim: torch.cumsum(x, dim),
    kernel=lambda np, x, *, dim: np.cumsum(x, axis=dim).reshape(x.shape),
)

# -- truths --------------------------------------------------------------------------------


def _judged(x: TensorType, *, dim: Dims, keepdim: bool) -> TensorType:
    # uint8 was torch's bool once, and these two remember
    return TensorType(_folded(x, dim, keepdim), uint8 if x.dtype is uint8 else bool_)


op(
    "all",
    infer=_judged,
    torch=lambda torch, x, *, dim, keepdim: torch.all(x, dim, keepdim),
    kernel=lambda np, x, *, dim, keepdim: np.all(x, axis=_axes(x, dim), keepdims=keepdim),
)

op(
    "any",
    infer=_judged,
    torch=lambda torch, x, *, dim, keepdim: torch.any(x, dim, keepdim),
    kernel=lambda np, x, *, dim, keepdim: np.any(x, axis=_axes(x, dim), keepdims=keepdim),
)

# -- extremes ------------------------------------------------------------------------------


def _extreme(x: TensorType, *, dim: Dims, keepdim: bool) -> TensorType:
    shape = _folded(x, dim, keepdim)
    _filled(x, dim)
    return TensorType(shape, x.dtype)


op(
    "amax",
    infer=_extreme,
    torch=lambda torch, x, *, dim, keepdim: torch.amax(x, dim, keepdim),
    kernel=lambda np, x, *, dim, keepdim: np.max(x, axis=_axes(x, dim), keepdims=keepdim),
)

op(
    "amin",
    infer=_extreme,
    torch=lambda torch, x, *, dim, keepdim: torch.amin(x, dim, keepdim),
    kernel=lambda np, x, *, dim, keepdim: np.min(x, axis=_axes(x, dim), keepdims=keepdim),
)


def _located(x: TensorType, *, dim: int | None, keepdim: bool) -> TensorType:
    if x.dtype is bool_:
        raise DTypeError("not defined for bool; use x.to(gt.uint8)")
    dims = tuple(range(x.ndim)) if dim is None else (wrap_dim(dim, x.ndim),)
    _filled(x, dims)
    return TensorType(without(x.shape, dims, keepdim), int64)


def _position(np: Any, find: Any, x: Any, dim: int | None, keepdim: bool) -> Any:
    return find(x, axis=dim if x.ndim else None, keepdims=keepdim)


op(
    "argmax",
    infer=_located,
    torch=lambda torch, x, *, dim, keepdim: torch.argmax(x, dim, keepdim),
    kernel=lambda np, x, *, dim, keepdim: _position(np, np.argmax, x, dim, keepdim),
)

op(
    "argmin",
    infer=_located,
    torch=lambda torch, x, *, dim, keepdim: torch.argmin(x, dim, keepdim),
    kernel=lambda np, x, *, dim, keepdim: _position(np, np.argmin, x, dim, keepdim),
)


def _extreme_and_place(x: TensorType, *, dim: int, keepdim: bool) -> Types:
    values = _extreme(x, dim=(dim,), keepdim=keepdim)
    return values, TensorType(values.shape, int64)


def _value_and_place(np: Any, find: Any, x: Any, dim: int, keepdim: bool) -> Any:
    row = x if x.ndim else x.reshape(1)
    places = find(row, axis=dim, keepdims=True)
    shape = without(x.shape, (dim,), keepdim)
    return np.take_along_axis(row, places, axis=dim).reshape(shape), places.reshape(shape)


op(
    "max_dim",
    infer=_extreme_and_place,
    torch=lambda torch, x, *, dim, keepdim: torch.max(x, dim, keepdim),
    kernel=lambda np, x, *, dim, keepdim: _value_and_place(np, np.argmax, x, dim, keepdim),
)

op(
    "min_dim",
    infer=_extreme_and_place,
    torch=lambda torch, x, *, dim, keepdim: torch.min(x, dim, keepdim),
    kernel=lambda np, x, *, dim, keepdim: _value_and_place(np, np.argmin, x, dim, keepdim),
)

# -- softmax and its kin -------------------------------------------------------------------


def _normalised(x: TensorType, *, dim: int, dtype: str | None) -> TensorType:
    wrap_dim(dim, x.ndim)
    return TensorType(x.shape, _averaging(x.dtype, dtype))


def _softmax_numpy(np: Any, x: Any, *, dim: int, dtype: str | None) -> Any:
    return np.exp(_log_softmax_numpy(np, x, dim=dim, dtype=dtype))


def _log_softmax_numpy(np: Any, x: Any, *, dim: int, dtype: str | None) -> Any:
    x, axes = _cast(x, dtype), _axes(x, (dim,))
    x = x - np.max(x, axis=axes, keepdims=True, initial=-np.inf)
    return x - np.log(np.sum(np.exp(x), axis=axes, keepdims=True))


op(
    "softmax",
    infer=_normalised,
    torch=lambda torch, x, *, dim, dtype: torch.softmax(x, dim, dtype=_in(torch, dtype)),
    kernel=_softmax_numpy,
)

op(
    "log_softmax",
    infer=_normalised,
    torch=lambda torch, x, *, dim, dtype: torch.log_softmax(x, dim, dtype=_in(torch, dtype)),
    kernel=_log_softmax_numpy,
)


def _logsumexp_numpy(np: Any, x: Any, *, dim: Dims, keepdim: bool) -> Any:
    axes = _axes(x, dim)
    most = np.max(x, axis=axes, keepdims=True, initial=-np.inf)
    most = np.where(np.isinf(most), 0, most).astype(x.dtype)  # inf - inf would be NaN
    total = np.log(np.sum(np.exp(x - most), axis=axes, keepdims=True)) + most
    return total if keepdim else total.reshape(without(x.shape, axes, False))


op(
    "logsumexp",
    infer=lambda x, *, dim, keepdim: TensorType(_folded(x, dim, keepdim), floating(x.dtype)),
    common=lambda x, **attrs: floating(x.dtype),
    torch=lambda torch, x, *, dim, keepdim: torch.logsumexp(x, dim, keepdim),
    kernel=_logsumexp_numpy,
)
