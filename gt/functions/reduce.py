"""torch's functions that fold dims."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from gt.client.tensor.arguments import a_tensor, by_numpy_names, cast, dtype_name, dtype_of, many_dims, one_dim, refuse
from gt.client.tensor.emit import call, call_many
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.functions import pointwise
from gt.ops import OPS, Op
from gt.types import bool_, uint8

__all__ = [
    "all", "allclose", "amax", "amin", "aminmax", "any", "argmax", "argmin", "count_nonzero", "cummax", "cummin",
    "cumprod", "cumsum", "diff", "dist", "equal", "log_softmax", "logcumsumexp", "logsumexp", "max",
    "mean", "median", "min", "mode", "nanmean", "nanmedian", "nansum", "norm", "prod", "softmax", "std", "std_mean",
    "sum", "var", "var_mean",
]  # fmt: skip

SUM, PROD, MEAN, VAR, AMAX, AMIN = (OPS[name] for name in ("sum", "prod", "mean", "var", "amax", "amin"))
ALL, ANY, ARGMAX, ARGMIN, CUMSUM = (OPS[name] for name in ("all", "any", "argmax", "argmin", "cumsum"))
MAX_DIM, MIN_DIM, SOFTMAX, LOG_SOFTMAX = (OPS[name] for name in ("max_dim", "min_dim", "softmax", "log_softmax"))
LOGSUMEXP, NE, VECTOR_NORM = OPS["logsumexp"], OPS["ne"], OPS["vector_norm"]

Dims = int | Iterable[int] | None


class ValuesAndIndices(NamedTuple):
    """What max, min, sort, topk and others give along a dim."""

    values: Tensor
    indices: Tensor


class MinAndMax(NamedTuple):
    min: Tensor
    max: Tensor


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


def _spread(
    op: Op, input: Tensor, dim: Dims | bool, unbiased: bool | None, keepdim: bool, correction: float | None
) -> Tensor:
    """``var(x, False)`` is torch's old way to write ``var(x, correction=0)``."""
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    if correction is None:
        correction = 0 if unbiased is False else 1
    x = a_tensor(op.name, input)
    return call(op, (x,), (("dim", many_dims(dim, x._type.ndim)), ("keepdim", keepdim), ("correction", correction)))


def var(
    input: Tensor,
    dim: Dims | bool = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Tensor:
    return _spread(VAR, input, dim, unbiased, keepdim, correction)


def std(
    input: Tensor,
    dim: Dims | bool = None,
    unbiased: bool | None = None,
    keepdim: bool = False,
    *,
    correction: float | None = None,
) -> Tensor:
    return _spread(OPS["std"], input, dim, unbiased, keepdim, correction)


def _and_mean(spread: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
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

    return both


var_mean, std_mean = _and_mean(var), _and_mean(std)


def nansum(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    x = a_tensor("nansum", input)
    x = x if x._type.dtype.kind != "f" else pointwise.masked_fill(x, pointwise.isnan(x), 0)
    return sum(x, dim, keepdim, dtype=dtype)


def nanmean(input: Tensor, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    count = sum(pointwise.logical_not(pointwise.isnan(input)), dim, keepdim)
    return nansum(input, dim, keepdim, dtype=dtype) / count


def cumsum(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
    x = input if dtype is None else cast(input, dtype_of(dtype))
    made = call(CUMSUM, (x,), (("dim", one_dim(dim, x._type.ndim)),))
    return made if dtype is None else cast(made, x._type.dtype)


def _scan(name: str) -> Callable[..., Tensor]:
    def scan(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
        x = a_tensor(name, input) if dtype is None else cast(input, dtype_of(dtype))
        made = call(OPS[name], (x,), (("dim", one_dim(dim, x._type.ndim)),))
        return made if dtype is None else cast(made, x._type.dtype)

    return scan


cumprod = _scan("cumprod")


def logcumsumexp(input: Tensor, dim: int) -> Tensor:
    x = a_tensor("logcumsumexp", input)
    return call(OPS["logcumsumexp"], (x,), (("dim", one_dim(dim, x._type.ndim)),))


def _running(name: str) -> Callable[..., ValuesAndIndices]:
    def running(input: Tensor, dim: int) -> ValuesAndIndices:
        x = a_tensor(name, input)
        return ValuesAndIndices(*call_many(OPS[name], (x,), (("dim", one_dim(dim, x._type.ndim)),)))

    return running


cummax, cummin = _running("cummax"), _running("cummin")


def diff(
    input: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None
) -> Tensor:
    from gt.functions.rearrange import cat

    x = a_tensor("diff", input)
    if n < 0:
        raise refuse(ShapeError, f"order must be non-negative but got {n}", "diff", x)
    if not x._type.ndim:
        raise refuse(ShapeError, "needs a tensor of at least one dim", "diff", x)
    if n == 0:  # torch leaves out what would stand around it
        return pointwise.clone(x)
    around = [part for part in (prepend, x, append) if part is not None]
    x = x if len(around) == 1 else cat(around, dim)
    size = x._type.shape[dim]
    for k in range(builtins.min(n, size)):
        later, sooner = (x.narrow(dim, start, size - k - 1) for start in (1, 0))
        x = pointwise.ne(later, sooner) if x._type.dtype.kind == "b" else pointwise.sub(later, sooner)
    return x


def count_nonzero(input: Tensor, dim: Dims = None) -> Tensor:
    return sum(call(NE, (input, 0)), dim)


# -- truths --------------------------------------------------------------------------------


def _judge(op: Op, x: Tensor, dim: Dims, keepdim: bool) -> Tensor:
    if not isinstance(x, Tensor):
        x = a_tensor(op.name, x)
    if isinstance(dim, list | tuple) and not dim:  # here, unlike elsewhere, no dims means none
        return cast(call(NE, (x, 0)), x._type.dtype if x._type.dtype is uint8 else bool_)
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


def aminmax(input: Tensor, *, dim: int | None = None, keepdim: bool = False) -> MinAndMax:
    return MinAndMax(amin(input, dim, keepdim), amax(input, dim, keepdim))


def _in_the_middle(whole: str, along: str) -> Callable[..., Any]:
    """``median(x)``, a value; ``median(x, dim)``, with indices."""

    def found(input: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
        x = a_tensor(whole, input)
        if dim is None:
            return call(OPS[whole], (x,))
        attrs = (("dim", one_dim(dim, x._type.ndim)), ("keepdim", keepdim))
        return ValuesAndIndices(*call_many(OPS[along], (x,), attrs))

    return found


median, nanmedian = _in_the_middle("median", "median_dim"), _in_the_middle("nanmedian", "nanmedian_dim")


def mode(input: Tensor, dim: int = -1, keepdim: bool = False) -> ValuesAndIndices:
    x = a_tensor("mode", input)
    attrs = (("dim", one_dim(dim, x._type.ndim)), ("keepdim", keepdim))
    return ValuesAndIndices(*call_many(OPS["mode"], (x,), attrs))


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


# -- norms ---------------------------------------------------------------------------------


def vector_norm(x: Tensor, ord: float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: Any = None) -> Tensor:
    """`torch.linalg.vector_norm`."""
    x = a_tensor("vector_norm", x)
    attrs = (
        ("ord", float(ord)),
        ("dim", many_dims(dim, x._type.ndim)),
        ("keepdim", keepdim),
        ("dtype", dtype_name(dtype)),
    )
    return call(VECTOR_NORM, (x,), attrs)


def norm(
    input: Tensor, p: float | str | None = "fro", dim: Dims = None, keepdim: bool = False, dtype: Any = None
) -> Tensor:
    x = a_tensor("norm", input)
    if (x._type.dtype if dtype is None else dtype_of(dtype)).kind != "f":
        raise refuse(DTypeError, "needs a floating tensor; use x.float()", "norm", x)
    if p == "nuc":
        from gt.functions.linalg import matrix_norm

        return matrix_norm(x, p, (0, 1) if dim is None and x._type.ndim == 2 else dim, keepdim, dtype=dtype)  # type: ignore[arg-type]
    p = 2 if p in (None, "fro") else p
    if not isinstance(p, int | float):
        raise refuse(DTypeError, "p is a number, 'fro' or 'nuc'", "norm", x, p=p)
    return vector_norm(x, p, dim, keepdim, dtype=dtype)


def dist(input: Tensor, other: Tensor, p: float = 2) -> Tensor:
    return vector_norm(pointwise.sub(input, other), p)


for _name in set(__all__) - {"allclose", "dist", "equal"}:
    globals()[_name] = by_numpy_names(globals()[_name])
