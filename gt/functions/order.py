"""torch's functions that select a value by its rank: medians, modes and quantiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.tensor.arguments import accept_numpy_names, cast, normalize_dim, refuse, require_tensor
from gt.client.tensor.emit import call, call_many
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.functions import pointwise, views
from gt.functions.creation import tensor
from gt.functions.derive import documented
from gt.functions.reduce import ValuesAndIndices, any, sum
from gt.functions.scatter import gather
from gt.functions.sort import sort
from gt.ops import OPS, Op
from gt.types import int64

__all__ = ["median", "mode", "nanmedian", "nanquantile", "quantile"]


def _median(whole: Op, along: Op, doc: str) -> Callable[..., Any]:

    def function(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
        x = require_tensor(whole.name, input)
        if dim is None:
            return call(whole, (x,))
        attrs = (("dim", normalize_dim(dim, x._type.ndim)), ("keepdim", keepdim))
        return ValuesAndIndices(*call_many(along, (x,), attrs))

    return documented(function, whole.name, doc)


def mode(input: Tensor, dim: int = -1, keepdim: bool = False) -> ValuesAndIndices:
    """The most frequent value along a dim, with its index."""
    x = require_tensor("mode", input)
    attrs = (("dim", normalize_dim(dim, x._type.ndim)), ("keepdim", keepdim))
    return ValuesAndIndices(*call_many(OPS["mode"], (x,), attrs))


median = accept_numpy_names(
    _median(OPS["median"], OPS["median_dim"], "The median of all elements, or along a dim with its index.")
)
nanmedian = accept_numpy_names(
    _median(
        OPS["nanmedian"],
        OPS["nanmedian_dim"],
        "The median without NaNs, of all elements or along a dim with its index.",
    )
)
mode = accept_numpy_names(mode)


def _interpolate(low: Tensor, high: Tensor, at: Tensor, interpolation: str) -> Tensor:
    share = at - pointwise.floor(at)
    return INTERPOLATIONS[interpolation](low, high, at, share)


#: (the value before, the value after, the position, its distance from the value before)
INTERPOLATIONS: dict[str, Callable[..., Tensor]] = {
    "linear": lambda low, high, at, share: pointwise.lerp(low, high, share),
    "lower": lambda low, high, at, share: low,
    "higher": lambda low, high, at, share: high,
    "midpoint": lambda low, high, at, share: pointwise.lerp(low, high, 0.5),
    "nearest": lambda low, high, at, share: pointwise.where(pointwise.round(at) > at - share, high, low),
}


def _quantile(name: str, x: Any, q: Any, dim: int | None, keepdim: bool, interpolation: str) -> Tensor:
    x = require_tensor(name, x)
    if x._type.dtype.kind != "f" or x._type.dtype.itemsize < 4:
        raise refuse(DTypeError, "needs float32 or float64", name, x)
    if interpolation not in INTERPOLATIONS:
        raise refuse(
            ShapeError, f"interpolation is one of {tuple(INTERPOLATIONS)}", name, x, interpolation=interpolation
        )
    if isinstance(q, float | int) and not 0 <= q <= 1:
        raise refuse(ShapeError, "q is in the range [0, 1]", name, x, q)
    if isinstance(q, Tensor) and q._type.dtype is not x._type.dtype:
        raise refuse(DTypeError, "q has the dtype of the input", name, x, q)
    q = q if isinstance(q, Tensor) else tensor(q, dtype=x._type.dtype)
    shape = x._type.shape
    kept = (
        (1,) * len(shape)
        if dim is None
        else tuple(1 if d == dim % (len(shape) or 1) else n for d, n in enumerate(shape))
    )
    rows = x.reshape(-1) if dim is None or not shape else x.movedim(dim, -1)
    rows = sort(rows, -1).values
    bad = pointwise.isnan(rows)
    n = rows._type.shape[-1]
    count = sum(pointwise.logical_not(bad), -1, True) if name == "nanquantile" else n
    # the quantiles are the last dim; a row with a NaN gives NaN for all, and NaN is sorted last
    at = (q.reshape(-1) * (count - 1)).expand((*rows._type.shape[:-1], q._type.numel))
    at = pointwise.masked_fill(at, any(bad, -1, True), n - 1) if name == "quantile" else pointwise.clamp(at, 0)
    low, high = (gather(rows, -1, cast(edge(at), int64)) for edge in (pointwise.floor, pointwise.ceil))
    result = _interpolate(low, high, at, interpolation).movedim(-1, 0)
    return views.reshape(result, (*q._type.shape, *(kept if keepdim else result._type.shape[1:])))


def quantile(
    input: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Tensor:
    """Quantiles of all elements, or along a dim."""
    return _quantile("quantile", input, q, dim, keepdim, interpolation)


def nanquantile(
    input: Tensor, q: Any, dim: int | None = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Tensor:
    """Quantiles without NaNs, of all elements or along a dim."""
    return _quantile("nanquantile", input, q, dim, keepdim, interpolation)
