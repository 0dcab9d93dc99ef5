"""torch's functions that scan a dim: running sums, products and extremes, differences, softmax and logsumexp."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.tensor.arguments import (
    accept_numpy_names,
    cast,
    dtype_name,
    dtype_of,
    normalize_dim,
    normalize_dims,
    refuse,
    require_tensor,
)
from gt.client.tensor.emit import call, call_many
from gt.client.tensor.tensor import Tensor
from gt.errors import ShapeError
from gt.functions import pointwise
from gt.functions.derive import documented
from gt.functions.reduce import Dims, ValuesAndIndices
from gt.ops import OPS, Op

__all__ = [
    "cummax", "cummin", "cumprod", "cumsum", "diff", "log_softmax", "logcumsumexp", "logsumexp", "softmax",
]  # fmt: skip

SOFTMAX, LOG_SOFTMAX, LOGSUMEXP, LOGCUMSUMEXP = (
    OPS["softmax"],
    OPS["log_softmax"],
    OPS["logsumexp"],
    OPS["logcumsumexp"],
)


def _scan(op: Op, doc: str) -> Callable[..., Tensor]:
    def scan(input: Tensor, dim: int, *, dtype: Any = None) -> Tensor:
        x = require_tensor(op.name, input)
        x = x if dtype is None else cast(x, dtype_of(dtype))
        result = call(op, (x,), (("dim", normalize_dim(dim, x._type.ndim)),))
        return result if dtype is None else cast(result, x._type.dtype)

    return documented(scan, op.name, doc)


cumsum = _scan(OPS["cumsum"], "The running sum along a dim.")
cumprod = _scan(OPS["cumprod"], "The running product along a dim.")


def logcumsumexp(input: Tensor, dim: int) -> Tensor:
    """The logarithm of the running sum of exponentials along a dim."""
    x = require_tensor("logcumsumexp", input)
    return call(LOGCUMSUMEXP, (x,), (("dim", normalize_dim(dim, x._type.ndim)),))


def _running_extreme(op: Op, doc: str) -> Callable[..., ValuesAndIndices]:
    def running(input: Tensor, dim: int) -> ValuesAndIndices:
        x = require_tensor(op.name, input)
        return ValuesAndIndices(*call_many(op, (x,), (("dim", normalize_dim(dim, x._type.ndim)),)))

    return documented(running, op.name, doc)


cummax = _running_extreme(OPS["cummax"], "The greatest element so far along a dim, with its index.")
cummin = _running_extreme(OPS["cummin"], "The least element so far along a dim, with its index.")


def diff(
    input: Tensor, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None
) -> Tensor:
    """The differences of neighbours along a dim, n times."""
    x = require_tensor("diff", input)
    if n < 0:
        raise refuse(ShapeError, f"order must be non-negative but got {n}", "diff", x)
    if not x._type.ndim:
        raise refuse(ShapeError, "needs a tensor of at least one dim", "diff", x)
    if n == 0:  # torch ignores prepend and append
        return pointwise.clone(x)
    around = tuple(require_tensor("diff", part) for part in (prepend, x, append) if part is not None)
    x = x if len(around) == 1 else call(OPS["cat"], around, (("dim", normalize_dim(dim, x._type.ndim)),))
    size = x._type.shape[dim]
    for k in range(min(n, size)):
        later, sooner = (x.narrow(dim, start, size - k - 1) for start in (1, 0))
        x = pointwise.ne(later, sooner) if x._type.dtype.kind == "b" else pointwise.sub(later, sooner)
    return x


def _normalise(op: Op, x: Tensor, dim: int, dtype: Any) -> Tensor:
    x = require_tensor(op.name, x)
    return call(op, (x,), (("dim", normalize_dim(dim, x._type.ndim)), ("dtype", dtype_name(dtype))))


def softmax(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """exp(x), divided by its sum along a dim."""
    return _normalise(SOFTMAX, input, dim, dtype)


def log_softmax(input: Tensor, dim: int, dtype: Any = None) -> Tensor:
    """The logarithm of the softmax along a dim."""
    return _normalise(LOG_SOFTMAX, input, dim, dtype)


def logsumexp(input: Tensor, dim: Dims, keepdim: bool = False) -> Tensor:
    """The logarithm of the sum of exponentials over dims."""
    x = require_tensor("logsumexp", input)
    return call(LOGSUMEXP, (x,), (("dim", normalize_dims(dim, x._type.ndim)), ("keepdim", keepdim)))


for _name in __all__:
    globals()[_name] = accept_numpy_names(globals()[_name])
