"""Overloads of ATen that are functions of GT with other arguments, or several instructions.

Each takes GT's tensors and the arguments of the overload, and returns new values; `gt.torch_device.kernels` makes the
kernels, also those in place and with ``out=``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.tensor.arguments import cast
from gt.client.tensor.tensor import Tensor
from gt.functions import indexing, joining, pointwise, reduce, scan, sort
from gt.functions.spectral import complex
from gt.torch_device import views
from gt.torch_device.compositions import bags, factorizations, images, layers, losses, recurrent
from gt.types import DType


def _rsub(x: Tensor, other: Any, alpha: Any = 1) -> Tensor:
    return pointwise.sub(other, x, alpha=alpha) if alpha != 1 else other - x


def _scaled(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    return lambda x, other, alpha=1: function(x, other, alpha=alpha)


def _cumulative(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def cumulated(x: Tensor, dim: int, *, dtype: DType | None = None) -> Tensor:
        return function(x if dtype is None else cast(x, dtype), dim)

    return cumulated


def _statistics(first: Callable[..., Tensor]) -> Callable[..., tuple[Tensor, Tensor]]:
    def function(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> tuple[Tensor, Tensor]:
        spread = first(x, dim, correction=1 if correction is None else correction, keepdim=keepdim)
        return spread, reduce.mean(x, dim, keepdim)

    return function


def _variance(first: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def function(x: Tensor, dim: Any = None, *, correction: Any = None, keepdim: bool = False) -> Tensor:
        return first(x, dim, correction=1 if correction is None else correction, keepdim=keepdim)

    return function


def _stable_sort(x: Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False) -> Any:
    return sort.sort(x, dim, descending, bool(stable))


def _index(x: Tensor, indices: Any) -> Tensor:
    at = tuple(slice(None) if i is None else i for i in indices)
    return indexing.getitem(x, at)


def _index_put(x: Tensor, indices: Any, values: Tensor, accumulate: bool = False, unsafe: bool = False) -> Tensor:
    result = x.clone()
    result.index_put_(tuple(indices), values, accumulate)
    return result


def _block_diagonal(xs: Any) -> Tensor:
    return joining.block_diag(*xs)


def _polygamma_(x: Tensor, n: int) -> Tensor:
    return pointwise.polygamma(n, x)


def _unique(x: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False) -> Any:
    return sort.unique(x, sorted, True, True)


def _unique_in_dim(x: Tensor, dim: int, sorted: bool = True, *options: bool) -> Any:
    return sort.unique(x, sorted, True, True, dim)


def _unique_consecutive(x: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: Any = None) -> Any:
    return sort.unique_consecutive(x, True, True, dim)


#: overload, or name of all its overloads -> function
OVERLOADS: dict[str, Callable[..., Any]] = {
    **views.GRADIENTS,
    **layers.OVERLOADS,
    **images.OVERLOADS,
    **losses.OVERLOADS,
    **bags.OVERLOADS,
    **factorizations.OVERLOADS,
    **recurrent.OVERLOADS,
    "_conj_physical": complex.conj,
    "conj_physical": complex.conj,
    "_index_put_impl": _index_put,
    "cumprod": _cumulative(scan.cumprod),
    "cumsum": _cumulative(scan.cumsum),
    "index.Tensor": _index,
    "_unsafe_index.Tensor": _index,
    "index_put": _index_put,
    "_unsafe_index_put": _index_put,
    "_unique2": _unique,
    "block_diag": _block_diagonal,
    "polygamma_": _polygamma_,
    "unique_consecutive": _unique_consecutive,
    "unique_dim": _unique_in_dim,
    "add": _scaled(pointwise.add),
    "sub": _scaled(pointwise.sub),
    "rsub": _rsub,
    "sort.stable": _stable_sort,
    "std.correction": _variance(reduce.std),
    "std_mean.correction": _statistics(reduce.std),
    "var.correction": _variance(reduce.var),
    "var_mean.correction": _statistics(reduce.var),
}
