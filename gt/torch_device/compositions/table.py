"""Overloads of ATen that are functions of GT with other arguments, or several instructions.

Each takes GT's tensors and the arguments of the overload, and returns new values; `gt.torch_device.kernels` makes the
kernels, also those in place and with ``out=``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.tensor.arguments import cast
from gt.client.tensor.tensor import Tensor
from gt.errors import ShapeError
from gt.functions import creation, draw, indexing, joining, pointwise, reduce, scan, sort
from gt.functions.einsum import einsum
from gt.functions.spectral import complex
from gt.torch_device import views
from gt.torch_device.compositions import bags, factorizations, images, layers, losses, recurrent, whole_layers
from gt.torch_device.fallback import MissingKernel
from gt.types import DType, int64


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


def _as_strided_scatter(x: Tensor, source: Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> Tensor:
    """Written by positions: the view may be made of windows, which cannot be written."""
    places = creation.arange(x._type.numel).reshape(x._type.shape)
    try:
        at = views.ONE["as_strided"](places, size, stride, storage_offset)
    except MissingKernel as problem:
        raise ShapeError(str(problem)) from None
    if source._type.shape != at._type.shape:
        raise ShapeError(f"as_strided_scatter: a source of {source._type} for a view of {list(at._type.shape)}")
    result = x.reshape(-1).clone()
    return result.index_put_((at.reshape(-1),), cast(source, x._type.dtype).reshape(-1)).reshape(x._type.shape)


def _trilinear(
    a: Tensor, b: Tensor, c: Tensor, without_a: Any, without_b: Any, without_c: Any, sums: Any, unroll_dim: int = 1
) -> Tensor:
    """The product of three tensors with dims of size 1 at the places that each is without, summed over some dims."""
    places = range(a._type.ndim + len(without_a))
    names = ["".join(chr(97 + d) for d in places if d not in missing) for missing in (without_a, without_b, without_c)]
    kept = [d for d in places if d not in sums]
    present = [d for d in kept if any(chr(97 + d) in name for name in names)]
    result = einsum(f"{','.join(names)}->{''.join(chr(97 + d) for d in present)}", a, b, c)
    for k, d in enumerate(kept):
        result = result if d in present else result.unsqueeze(k)
    return result


def _nonzero_static(x: Tensor, *, size: int, fill_value: int = -1) -> Tensor:
    found = indexing.nonzero(x)[:size]
    rest = creation.full((size - found._type.shape[0], x._type.ndim), fill_value, dtype=int64)
    return joining.cat([found, rest])


def _sample_dirichlet(concentration: Tensor, generator: Any = None) -> Tensor:
    drawn = draw.standard_gamma(concentration, generator)
    return drawn / reduce.sum(drawn, -1, keepdim=True)


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
    **whole_layers.OVERLOADS,
    "__ilshift__": lambda x, n: x << n,
    "__irshift__": lambda x, n: x >> n,
    "_conj_physical": complex.conj,
    "conj_physical": complex.conj,
    "_index_put_impl": _index_put,
    "cumprod": _cumulative(scan.cumprod),
    "cumsum": _cumulative(scan.cumsum),
    "index.Tensor": _index,
    "_unsafe_index.Tensor": _index,
    "index_put": _index_put,
    "_unsafe_index_put": _index_put,
    "_sample_dirichlet": _sample_dirichlet,
    "_standard_gamma": draw.standard_gamma,
    "_trilinear": _trilinear,
    "_unique": lambda x, sorted=True, return_inverse=False: sort.unique(x, sorted, True),
    "_unique2": _unique,
    "alias_copy": Tensor.clone,
    "as_strided_copy": views.ONE["as_strided"],
    "as_strided_scatter": _as_strided_scatter,
    "nonzero_static": _nonzero_static,
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
