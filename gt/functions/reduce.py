"""torch's functions that reduce dims: sums, means, variances, extremes and tests."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from gt.client.tensor.arguments import (
    accept_numpy_names,
    cast,
    dtype_name,
    normalize_dim,
    normalize_dims,
    require_real,
    require_tensor,
)
from gt.client.tensor.emit import call, call_many
from gt.client.tensor.foreign import Sparse
from gt.client.tensor.tensor import Tensor
from gt.functions import pointwise
from gt.functions.derive import documented
from gt.ops import OPS, Op
from gt.types import bool_, uint8

__all__ = [
    "all", "allclose", "amax", "amin", "aminmax", "any", "argmax", "argmin", "count_nonzero", "equal", "max", "mean",
    "min", "nanmean", "nansum", "prod", "std", "std_mean", "sum", "var", "var_mean",
]  # fmt: skip

SUM, PROD, MEAN, VAR, STD = OPS["sum"], OPS["prod"], OPS["mean"], OPS["var"], OPS["std"]
ALL, ANY, NE, ARGMAX, ARGMIN = OPS["all"], OPS["any"], OPS["ne"], OPS["argmax"], OPS["argmin"]
AMAX, AMIN, MAX_DIM, MIN_DIM = OPS["amax"], OPS["amin"], OPS["max_dim"], OPS["min_dim"]

Dims = int | Iterable[int] | None


class ValuesAndIndices(NamedTuple):
    """The results of max, min, sort, topk and others along a dim."""

    values: Tensor
    indices: Tensor


class MinAndMax(NamedTuple):
    min: Tensor
    max: Tensor


# -- sums ----------------------------------------------------------------------------------


def _reduce(op: Op, x: Tensor, dim: Dims, keepdim: bool, dtype: Any) -> Tensor:
    if not isinstance(x, Tensor):
        if isinstance(x, Sparse) and op is SUM and not keepdim:
            return x.sum(dim, dtype)
        x = require_tensor(op.name, x)
    attrs = (("dim", normalize_dims(dim, x._type.ndim)), ("keepdim", keepdim), ("dtype", dtype_name(dtype)))
    return call(op, (x,), attrs)


def sum(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The sum over all dims or some."""
    return _reduce(SUM, input, dim, keepdim, dtype)


def mean(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The mean over all dims or some."""
    return _reduce(MEAN, input, dim, keepdim, dtype)


def prod(input: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The product over all dims or one."""
    return _reduce(PROD, input, dim, keepdim, dtype)


def _variance(
    op: Op, input: Tensor, dim: Dims | bool, unbiased: bool | None, keepdim: bool, correction: float | None
) -> Tensor:
    """`var` or `std`. ``var(x, False)`` is an old form of ``var(x, correction=0)``."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if correction is None:
        correction = 0 if unbiased is False else 1
    x = require_tensor(op.name, input)
    return call(
        op, (x,), (("dim", normalize_dims(dim, x._type.ndim)), ("keepdim", keepdim), ("correction", correction))
    )


def var(
    input: Tensor,
    dim: Dims | bool = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Tensor:
    """The variance over all dims or some."""
    return _variance(VAR, input, dim, unbiased, keepdim, correction)


def std(
    input: Tensor,
    dim: Dims | bool = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Tensor:
    """The standard deviation over all dims or some."""
    return _variance(STD, input, dim, unbiased, keepdim, correction)


def _and_mean(name: str, spread: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    def both(
        input: Tensor,
        dim: Dims | bool = None,
        unbiased: bool | None = None,
        keepdim: bool = False,
        *,
        correction: float | None = None,
    ) -> tuple[Tensor, Tensor]:
        over = None if isinstance(dim, bool) else dim
        return spread(input, dim, unbiased, keepdim, correction=correction), mean(input, over, keepdim)

    return documented(both, name, f"The {'variance' if spread is var else 'standard deviation'} and the mean.")


var_mean, std_mean = _and_mean("var_mean", var), _and_mean("std_mean", std)


def nansum(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The sum without NaNs, over all dims or some."""
    x = require_real("nansum", require_tensor("nansum", input))
    x = x if x._type.dtype.kind != "f" else pointwise.masked_fill(x, pointwise.isnan(x), 0)
    return sum(x, dim, keepdim, dtype=dtype)


def nanmean(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """The mean without NaNs, over all dims or some."""
    count = sum(pointwise.logical_not(pointwise.isnan(input)), dim, keepdim)
    return nansum(input, dim, keepdim, dtype=dtype) / count


def count_nonzero(input: Tensor, dim: Dims = None) -> Tensor:
    """The number of elements that are not zero."""
    return sum(call(NE, (input, 0)), dim)


# -- tests ---------------------------------------------------------------------------------


def _test(op: Op, x: Tensor, dim: Dims, keepdim: bool) -> Tensor:
    if not isinstance(x, Tensor):
        x = require_tensor(op.name, x)
    if isinstance(dim, list | tuple) and not dim:  # for any and all, an empty list of dims means no dim, not all
        return cast(call(NE, (x, 0)), x._type.dtype if x._type.dtype is uint8 else bool_)
    return call(op, (x,), (("dim", normalize_dims(dim, x._type.ndim)), ("keepdim", keepdim)))


def any(input: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """Whether any element is true, over all dims or some."""
    return _test(ANY, input, dim, keepdim)


def all(input: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    """Whether all elements are true, over all dims or some."""
    return _test(ALL, input, dim, keepdim)


def equal(input: Tensor, other: Tensor) -> bool:
    """Whether two tensors have the same shape and the same values. Waits for the workers."""
    if input._type.shape != other._type.shape:
        return False
    return bool(all(pointwise.eq(input, other)).item())


def allclose(input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> bool:
    """Whether all pairs of elements are close to each other (see `isclose`). Waits for the workers."""
    return bool(all(pointwise.isclose(input, other, rtol, atol, equal_nan)).item())


# -- extremes ------------------------------------------------------------------------------


def _extreme(op: Op, x: Tensor, dim: Dims, keepdim: bool) -> Tensor:
    x = require_tensor(op.name, x)
    return call(op, (x,), (("dim", normalize_dims(dim, x._type.ndim)), ("keepdim", keepdim)))


def amax(input: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
    """The greatest element, over all dims or some; gradients are shared among equal elements."""
    return _extreme(AMAX, input, dim, keepdim)


def amin(input: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
    """The least element, over all dims or some; gradients are shared among equal elements."""
    return _extreme(AMIN, input, dim, keepdim)


def _three_forms(name: str, whole: Op, along: Op, pair: Callable[..., Tensor], what: str) -> Callable[..., Any]:
    def extreme(input: Tensor, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
        other = dim if isinstance(dim, Tensor) else other
        if other is not None:
            return pair(input, other)
        if dim is None:
            return _extreme(whole, input, None, False)
        x = require_tensor(along.name, input)
        attrs = (("dim", normalize_dim(dim, x._type.ndim)), ("keepdim", keepdim))
        return ValuesAndIndices(*call_many(along, (x,), attrs))

    doc = f"The {what} element of all, or along a dim with its index, or of each pair of elements."
    return documented(extreme, name, doc)


max = _three_forms("max", AMAX, MAX_DIM, pointwise.maximum, "greatest")
min = _three_forms("min", AMIN, MIN_DIM, pointwise.minimum, "least")


def aminmax(input: Tensor, *, dim: int | None = None, keepdim: bool = False) -> MinAndMax:
    """The least and the greatest element."""
    return MinAndMax(amin(input, dim, keepdim), amax(input, dim, keepdim))


def _arg_extreme(op: Op, x: Tensor, dim: int | None, keepdim: bool) -> Tensor:
    x = require_tensor(op.name, x)
    dim = None if dim is None else normalize_dim(dim, x._type.ndim)
    return call(op, (x,), (("dim", dim), ("keepdim", keepdim)))


def argmax(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The index of the greatest element."""
    return _arg_extreme(ARGMAX, input, dim, keepdim)


def argmin(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    """The index of the least element."""
    return _arg_extreme(ARGMIN, input, dim, keepdim)


for _name in set(__all__) - {"allclose", "equal"}:
    globals()[_name] = accept_numpy_names(globals()[_name])
