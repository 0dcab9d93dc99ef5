"""The norm of vectors."""

from __future__ import annotations

from math import inf
from typing import Any

from gt.errors import DimError, DTypeError
from gt.ops.math.reduce import Dims, averaging, axes, cast, count, folded, in_, restored
from gt.ops.op import op
from gt.ops.split import Split, folding
from gt.types import TensorType, promote, real_of


def _normed(x: TensorType, *, ord: float, dim: Dims, keepdim: bool, dtype: str | None) -> TensorType:
    shape = folded(x, dim, keepdim)
    if type(ord) not in (int, float):
        raise DTypeError(f"ord is a number, not {ord!r}")
    averaging(x.dtype, None)
    if (ord < 0 or ord == inf) and 0 in (x.shape[d] for d in dim if x.ndim):
        raise DimError(f"there is no norm of order {ord} of nothing")
    result = averaging(x.dtype, dtype)
    if x.dtype.kind not in "fc":
        raise DTypeError(f"not defined for {x.dtype.name}; use x.float()")
    if promote(x.dtype, result) is not result:
        raise DTypeError(f"a norm of {x.dtype.name} in {result.name} would lose precision")
    return TensorType(shape, real_of(result))


def _norm_numpy(np: Any, x: Any, *, ord: float, dim: Dims, keepdim: bool, dtype: str | None) -> Any:
    x, fold = np.abs(cast(x, dtype)), {"axis": axes(x, dim), "keepdims": keepdim}
    if x.dtype == np.float16:
        x = x.astype(np.float32)
    if ord in (inf, -inf) or (ord != 0 and count(x, dim) == 1):  # its powers could overflow
        return (np.max if ord > 0 else np.min)(x, **fold)
    return np.sum(x != 0, **fold) if ord == 0 else np.sum(x**ord, **fold) ** (1 / ord)


def _norm_back(g: Any, y: Any, x: Any, *, ord: float, dim: Dims, keepdim: bool, dtype: str | None) -> Any:
    """The gradient is 0 where the norm is 0, as in torch."""
    g, y = restored(g, x, dim, keepdim), restored(y, x, dim, keepdim)
    x = x if dtype is None else x._op("to", dtype=dtype)
    if ord == 0:
        return (g * 0).expand(x.shape)
    if ord == 1:
        return x.sgn() * g
    if ord == 2:
        return g * (x / y).masked_fill(y == 0, 0)
    if ord in (inf, -inf):
        those = x.abs() == y
        return x.sgn() * (those / those.sum(dim, keepdim=True)) * g
    if ord < 1:
        return (x.sgn() * x.abs() ** (ord - 1)).masked_fill(x == 0, 0) * g * y ** (1 - ord)
    scale = (g / y ** (ord - 1)).masked_fill(y == 0, 0)
    return (x.sgn() * x.abs() ** (ord - 1) if ord < 2 else x * x.abs() ** (ord - 2)) * scale


def _norm_torch(torch: Any, x: Any, *, ord: float, dim: Dims, keepdim: bool, dtype: str | None) -> Any:
    return torch.linalg.vector_norm(x, ord, axes(x, dim), keepdim, dtype=in_(torch, dtype))


#: order -> how the norms of blocks are combined
_TERMS = {0: "sum", 1: "sum", inf: "max", -inf: "min"}


def _norms(x: TensorType, *, ord: float, **how: Any) -> Split:
    return folding(x, **how, how=_TERMS.get(ord, ""), fills=ord in (inf, -inf))


op(
    "vector_norm",
    complex="rule",
    autocast="float32",
    infer=_normed,
    split=_norms,
    vjp=(_norm_back,),
    torch=_norm_torch,
    kernel=_norm_numpy,
)
