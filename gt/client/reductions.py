"""torch's functions that fold dims."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import Any, NamedTuple

from gt.client import pointwise
from gt.client.arguments import a_tensor, cast, dtype_name, dtype_of, many_dims, one_dim, refuse
from gt.client.emit import call, call_many
from gt.client.tensor import Tensor
from gt.errors import DTypeError
from gt.ops import OPS, Op

__all__ = [
    "all", "allclose", "amax", "amin", "any", "argmax", "argmin", "count_nonzero", "cumsum", "equal", "log_softmax",
    "logsumexp", "max", "mean", "min", "norm", "prod", "softmax", "std", "sum", "var",
]  # fmt: skip

SUM, PROD, MEAN, VAR, AMAX, AMIN = (OPS[name] for name in ("sum", "prod", "mean", "var", "amax", "amin"))
ALL, ANY, ARGMAX, ARGMIN, CUMSUM = (OPS[name] for name in ("all", "any", "argmax", "argmin", "cumsum"))
MAX_DIM, MIN_DIM, SOFTMAX, LOG_SOFTMAX = (OPS[name] for name in ("max_dim", "min_dim", "softmax", "log_softmax"))
LOGSUMEXP, NE = OPS["logsumexp"], OPS["ne"]

Dims = int | Iterable[int] | None


class ValuesAndIndices(NamedTuple):
    """What max, min, sort and topk give along a dim."""

    values: Tensor
    indices: Tensor


# -- sums ----------------------------------------------------------------------------------


def _fold(op: Op, x: Tensor, dim: Dims, keepdim: bool, dtype: Any) -> Tensor:
    if not isinstance(x, Tensor):
        x = a_tensor(op.name, x)
    attrs = (("dim", many_dims(dim, x._type.ndim)), ("keepdim", keepdim), ("dtype", dtype_name(dtype)))
    return call(op, (x,), attrs)


def sum(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    return _fold(SUM, input, dim, keepdim, dtype)


def mean(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    return _fold(MEAN, input, dim, keepdim, dtype)


def prod(input: Tensor, dim: int | None = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    return _fold(PROD, input, dim, keepdim, dtype)


def var(
    input: Tensor,
    dim: Dims | bool = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: int | None = None,
) -> Tensor:
    """``var(x, False)`` is torch's old way to write ``var(x, correction=0)``."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if correction is None:
        correction = 0 if unbiased is False else 1
    x = a_tensor("var", input)
    attrs = (("dim", many_dims(dim, x._type.ndim)), ("keepdim", keepdim), ("correction", correction))
    return call(VAR, (x,), attrs)


def std(input: Tensor, *args: Any, **options: Any) -> Tensor:
    """The root of `var`, with the same arguments."""
    return pointwise.sqrt(var(input, *args, **options))


def cumsum(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    x = input if dtype is None else cast(input, dtype_of(dtype))
    return call(CUMSUM, (x,), (("dim", one_dim(dim, x._type.ndim)),))


def count_nonzero(input: Tensor, dim: Dims = None) -> Tensor:
    return sum(call(NE, (input, 0)), dim)


# -- truths --------------------------------------------------------------------------------


def _judge(op: Op, x: Tensor, dim: Dims, keepdim: bool) -> Tensor:
    if not isinstance(x, Tensor):
        x = a_tensor(op.name, x)
    if isinstance(dim, list | tuple) and not dim:  # here, unlike elsewhere, no dims means none
        return call(NE, (x, 0))
    return call(op, (x,), (("dim", many_dims(dim, x._type.ndim)), ("keepdim", keepdim)))


def any(input: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    return _judge(ANY, input, dim, keepdim)


def all(input: Tensor, dim: Dims = None, keepdim: bool = False) -> Tensor:
    return _judge(ALL, input, dim, keepdim)


def equal(input: Tensor, other: Tensor) -> bool:
    """Same shape and same values; reads the answer."""
    if input._type.shape != other._type.shape:
        return False
    return bool(all(pointwise.eq(input, other)).item())


def allclose(input: Tensor, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> bool:
    """Reads the answer."""
    return bool(all(pointwise.isclose(input, other, rtol, atol, equal_nan)).item())


# -- extremes ------------------------------------------------------------------------------


def _extreme(op: Op, x: Tensor, dim: Dims, keepdim: bool) -> Tensor:
    x = a_tensor(op.name, x)
    return call(op, (x,), (("dim", many_dims(dim, x._type.ndim)), ("keepdim", keepdim)))


def amax(input: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
    return _extreme(AMAX, input, dim, keepdim)


def amin(input: Tensor, dim: Dims = (), keepdim: bool = False) -> Tensor:
    return _extreme(AMIN, input, dim, keepdim)


def _three_forms(whole: Op, along: Op, pair: Callable[..., Tensor]) -> Callable[..., Any]:
    def extreme(input: Tensor, dim: Any = None, keepdim: bool = False, *, other: Any = None) -> Any:
        other = dim if isinstance(dim, Tensor) else other
        if other is not None:
            return pair(input, other)
        if dim is None:
            return _extreme(whole, input, None, False)
        x = a_tensor(along.name, input)
        attrs = (("dim", one_dim(dim, x._type.ndim)), ("keepdim", keepdim))
        return ValuesAndIndices(*call_many(along, (x,), attrs))

    return extreme


#: ``max(x)``, ``max(x, dim)`` with indices, and ``max(x, y)`` element by element
max = _three_forms(AMAX, MAX_DIM, pointwise.maximum)
min = _three_forms(AMIN, MIN_DIM, pointwise.minimum)


def _place(op: Op, x: Tensor, dim: int | None, keepdim: bool) -> Tensor:
    x = a_tensor(op.name, x)
    dim = None if dim is None else one_dim(dim, x._type.ndim)
    return call(op, (x,), (("dim", dim), ("keepdim", keepdim)))


def argmax(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return _place(ARGMAX, input, dim, keepdim)


def argmin(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Tensor:
    return _place(ARGMIN, input, dim, keepdim)


# -- softmax and its kin -------------------------------------------------------------------


def _normalise(op: Op, x: Tensor, dim: int, dtype: Any) -> Tensor:
    x = a_tensor(op.name, x)
    return call(op, (x,), (("dim", one_dim(dim, x._type.ndim)), ("dtype", dtype_name(dtype))))


def softmax(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    return _normalise(SOFTMAX, input, dim, dtype)


def log_softmax(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    return _normalise(LOG_SOFTMAX, input, dim, dtype)


def logsumexp(input: Tensor, dim: Dims, keepdim: bool = False) -> Tensor:
    return _extreme(LOGSUMEXP, input, dim, keepdim)


_NORMS: dict[Any, Callable[[Tensor, Dims, bool], Tensor]] = {
    2: lambda x, dim, keepdim: pointwise.sqrt(sum(pointwise.square(x), dim, keepdim)),
    1: lambda x, dim, keepdim: sum(pointwise.abs(x), dim, keepdim),
    0: lambda x, dim, keepdim: cast(sum(call(NE, (x, 0)), dim, keepdim), x._type.dtype),
    inf: lambda x, dim, keepdim: amax(pointwise.abs(x), dim, keepdim),
    -inf: lambda x, dim, keepdim: amin(pointwise.abs(x), dim, keepdim),
}
_NORMS["fro"] = _NORMS[2]


def norm(input: Tensor, p: float | str | None = "fro", dim: Dims = None, keepdim: bool = False) -> Tensor:
    x = a_tensor("norm", input)
    if x._type.dtype.kind != "f":
        raise refuse(DTypeError, "needs a floating tensor; use x.float()", "norm", x)
    p = 2 if p is None else p
    if p in _NORMS:
        return _NORMS[p](x, dim, keepdim)
    if not isinstance(p, int | float):
        raise refuse(DTypeError, "p is a number or 'fro'", "norm", x, p=p)
    return pointwise.pow(sum(pointwise.pow(pointwise.abs(x), p), dim, keepdim), 1 / p)
