"""Ops along one dim that keep it: running sums and extremes, softmax and logsumexp."""

from __future__ import annotations

from functools import partial
from typing import Any

from gt.errors import DTypeError, ShapeError
from gt.ops.infer import check_dim, common, floating, shown, without
from gt.ops.math.reduce import Dims, averaging, axes, cast, folded, in_, restored, total
from gt.ops.op import Types, op
from gt.ops.positions import in_dim
from gt.ops.split import Split, along, folding, summable
from gt.types import TensorType, int64, promote


def scanned(x: TensorType, *, dim: int) -> TensorType:
    check_dim(dim, x.ndim)
    return TensorType(x.shape, total(x.dtype))


# -- running -------------------------------------------------------------------------------


def _summing(x: TensorType, *, dim: int) -> Split:
    return along(x, dim=dim, linear=((0,),) if summable(x, total(x.dtype)) else ())


op(
    "cumsum",
    complex="rule",
    autocast="float32",
    operands="t",
    infer=scanned,
    split=_summing,
    vjp=(lambda g, _y, _x, *, dim: g._op("cumsum_reversed", dim=dim),),
    torch=lambda torch, x, *, dim: torch.cumsum(x, dim),
    kernel=lambda np, x, *, dim: accumulated(np, np.cumsum, x, dim).reshape(x.shape),
)


def accumulated(np: Any, scan: Any, x: Any, dim: int) -> Any:
    """A running sum or product, computed in a wider dtype, as in torch."""
    wider = {"float16": np.float32, "float32": np.float64, "complex64": np.complex128}.get(x.dtype.name)
    result = scan(x, axis=dim, dtype=wider)
    return result if wider is None else result.astype(x.dtype)


def _reversed(np: Any, scan: Any, x: Any, dim: int) -> Any:
    return np.flip(scan(np.flip(x, dim), dim), dim).copy() if x.ndim else scan(x.reshape(1), 0).reshape(())


op(
    "cumsum_reversed",
    complex="rule",
    operands="t",
    infer=scanned,
    split=_summing,
    vjp=(lambda g, _y, _x, *, dim: g.cumsum(dim),),
    torch=lambda torch, x, *, dim: x.flip(dim).cumsum(dim).flip(dim) if x.ndim else torch.cumsum(x, 0),
    kernel=lambda np, x, *, dim: _reversed(np, lambda a, d: accumulated(np, np.cumsum, a, d), x, dim),
)


def _logcumsumexp(x: TensorType, *, dim: int) -> TensorType:
    check_dim(dim, x.ndim)
    return TensorType(x.shape, averaging(x.dtype, None))


def _log_scan(np: Any, x: Any, dim: int) -> Any:
    return np.logaddexp.accumulate(x, axis=dim)


#: stands for the logarithm of 0, and is finite
_LEAST = {"float64": -1.7976931348623157e308, "float32": -3.4e38, "bfloat16": -3.38e38, "float16": -65504.0}


def _log_back(name: str) -> Any:
    """Positive and negative parts separately, in logarithms, so that no sum of exponentials overflows."""

    def back(g: Any, y: Any, x: Any, *, dim: int) -> Any:
        low, size = _LEAST[y.dtype.name], g.abs().log()
        parts = [(size.where(g > 0, low) - y), (size.where(g < 0, low) - y)]
        up, down = ((part._op(name, dim=dim) + x).exp() for part in parts)
        return up - down

    return back


op(
    "logcumsumexp",
    operands="t",
    infer=_logcumsumexp,
    split=along,
    vjp=(_log_back("logcumsumexp_reversed"),),
    torch=lambda torch, x, *, dim: torch.logcumsumexp(x, dim),
    kernel=lambda np, x, *, dim: _log_scan(np, x, dim) if x.ndim else x.copy(),
)

op(
    "logcumsumexp_reversed",
    operands="t",
    infer=_logcumsumexp,
    split=along,
    vjp=(_log_back("logcumsumexp"),),
    torch=lambda torch, x, *, dim: x.flip(dim).logcumsumexp(dim).flip(dim) if x.ndim else x.clone(),
    kernel=lambda np, x, *, dim: _reversed(np, lambda a, d: _log_scan(np, a, d), x, dim),
)


def _running(x: TensorType, *, dim: int) -> Types:
    check_dim(dim, x.ndim)
    return x, TensorType(x.shape, int64)


def _running_numpy(np: Any, run: Any, x: Any, dim: int) -> Any:
    """Of equal elements, torch gives the last."""
    if not x.ndim:
        return x.copy(), np.zeros((), dtype=np.int64)
    values = run.accumulate(x, axis=dim)
    shape = [-1 if d == dim else 1 for d in range(x.ndim)]
    at = np.arange(x.shape[dim]).reshape(shape)
    return values, np.maximum.accumulate(np.where((x == values) | (x != x), at, 0), axis=dim)


def _running_back_numpy(np: Any, g: Any, index: Any, *, dim: int) -> Any:
    if not g.ndim or not g.size:
        return g.copy()
    if index.min() < 0 or index.max() >= g.shape[dim]:
        raise IndexError(f"an index is outside dim {dim} of size {g.shape[dim]}")
    result, where = np.zeros_like(g), list(np.indices(g.shape))
    where[dim] = index
    np.add.at(result, tuple(where), g)
    return result


def _scattered_back(g: TensorType, index: TensorType, *, dim: int) -> TensorType:
    check_dim(dim, g.ndim)
    if index.shape != g.shape or index.dtype is not int64:
        raise ShapeError(f"the index is an int64 tensor of shape {shown(g.shape)}, not {index}")
    return g


op(
    "cummaxmin_backward",
    operands="tt",
    infer=_scattered_back,
    positions=in_dim,
    split=partial(along, linear=((0,),)),
    vjp=(lambda c, _y, _g, index, *, dim: c.gather(dim, index), None),
    torch=lambda torch, g, index, *, dim: g.new_zeros(g.shape).scatter_add_(dim, index, g),
    kernel=_running_back_numpy,
)

_RUNNING = (lambda g, y1, _x, *, dim: g[0]._op("cummaxmin_backward", y1[1], dim=dim),)

op(
    "cummax",
    operands="t",
    infer=_running,
    split=partial(along, results=2),
    vjp=_RUNNING,
    torch=lambda torch, x, *, dim: torch.cummax(x, dim),
    kernel=lambda np, x, *, dim: _running_numpy(np, np.maximum, x, dim),
)

op(
    "cummin",
    operands="t",
    infer=_running,
    split=partial(along, results=2),
    vjp=_RUNNING,
    torch=lambda torch, x, *, dim: torch.cummin(x, dim),
    kernel=lambda np, x, *, dim: _running_numpy(np, np.minimum, x, dim),
)

# -- softmax and its kin -------------------------------------------------------------------


def _normalised(x: TensorType, *, dim: int, dtype: str | None) -> TensorType:
    check_dim(dim, x.ndim)
    return TensorType(x.shape, averaging(x.dtype, dtype))


def _softmax_numpy(np: Any, x: Any, *, dim: int, dtype: str | None) -> Any:
    return np.exp(_log_softmax_numpy(np, x, dim=dim, dtype=dtype))


def _log_softmax_numpy(np: Any, x: Any, *, dim: int, dtype: str | None) -> Any:
    x, along = cast(x, dtype), axes(x, (dim,))
    x = x - np.max(x, axis=along, keepdims=True, initial=-np.inf)
    return x - np.log(np.sum(np.exp(x), axis=along, keepdims=True))


def _back_in(x: Any, y: Any) -> str | None:
    """The dtype of the gradient, if it differs: kernels write it directly."""
    return None if x.dtype is y.dtype else str(x.dtype.name)


def _pulled_back(g: TensorType, y: TensorType, *, dim: int, dtype: str | None) -> TensorType:
    check_dim(dim, g.ndim)
    if g.shape != y.shape:
        raise ShapeError(f"the gradient {shown(g.shape)} and the result {shown(y.shape)} differ")
    if y.dtype.kind != "f" or g.dtype.kind != "f" or promote(g.dtype, y.dtype) is not y.dtype:
        raise DTypeError(f"a gradient of {g.dtype.name} does not fit a result of {y.dtype.name}")
    return TensorType(g.shape, averaging(y.dtype, dtype))


def _along_linear(*types: TensorType, dtype: str | None, **attrs: Any) -> Split:
    # in a narrower dtype, each term would be rounded
    return along(*types, linear=((0,),) if dtype is None else (), dtype=dtype, **attrs)


def _pulled_torch(pull: str) -> Any:
    def run(torch: Any, g: Any, y: Any, *, dim: int, dtype: str | None) -> Any:
        into = in_(torch, dtype) or y.dtype
        if g.is_cuda and g.dtype is y.dtype is torch.float32 and into is torch.float16:
            return getattr(torch, pull)(g, y, dim, into)
        return getattr(torch, pull)(g.to(y.dtype), y, dim, y.dtype).to(into)

    return run


op(
    "softmax",
    autocast="float32_result",
    operands="t",
    infer=_normalised,
    split=along,
    vjp=(lambda g, y, _x, *, dim, dtype: g._op("softmax_backward", y, dim=dim, dtype=_back_in(_x, y)),),
    torch=lambda torch, x, *, dim, dtype: torch.softmax(x, dim, dtype=in_(torch, dtype)),
    kernel=_softmax_numpy,
)


def _softmax_second(c: Any, _z: Any, g: Any, y: Any, *, dim: int, dtype: str | None) -> Any:
    return c * (g - (g * y).sum(dim, keepdim=True)) - g * (c * y).sum(dim, keepdim=True)


def _wide(np: Any, *arrays: Any) -> tuple[Any, ...]:
    """Half precision as float32: torch computes in float32 and rounds the result."""
    return tuple(x.astype(np.float32) if x.dtype == np.float16 else x for x in arrays)


def _softmax_back_numpy(np: Any, g: Any, y: Any, *, dim: int, dtype: str | None) -> Any:
    narrow, (g, y) = y.dtype, _wide(np, g, y)
    return cast((y * (g - np.sum(g * y, axis=axes(g, (dim,)), keepdims=True))).astype(narrow), dtype)


def _log_softmax_back_numpy(np: Any, g: Any, y: Any, *, dim: int, dtype: str | None) -> Any:
    narrow, (g, y) = y.dtype, _wide(np, g, y)
    return cast((g - np.exp(y) * np.sum(g, axis=axes(g, (dim,)), keepdims=True)).astype(narrow), dtype)


op(
    "softmax_backward",
    operands="tt",
    infer=_pulled_back,
    common=common,
    split=_along_linear,
    vjp=(lambda c, _z, _g, y, *, dim, dtype: c._op("softmax_backward", y, dim=dim, dtype=None), _softmax_second),
    torch=_pulled_torch("_softmax_backward_data"),
    kernel=_softmax_back_numpy,
)

op(
    "log_softmax",
    autocast="float32_result",
    operands="t",
    infer=_normalised,
    split=along,
    vjp=(lambda g, y, _x, *, dim, dtype: g._op("log_softmax_backward", y, dim=dim, dtype=_back_in(_x, y)),),
    torch=lambda torch, x, *, dim, dtype: torch.log_softmax(x, dim, dtype=in_(torch, dtype)),
    kernel=_log_softmax_numpy,
)

op(
    "log_softmax_backward",
    operands="tt",
    infer=_pulled_back,
    common=common,
    split=_along_linear,
    vjp=(
        lambda c, _z, _g, y, *, dim, dtype: c - (c * y.exp()).sum(dim, keepdim=True),
        lambda c, _z, g, y, *, dim, dtype: -c * y.exp() * g.sum(dim, keepdim=True),
    ),
    torch=_pulled_torch("_log_softmax_backward_data"),
    kernel=_log_softmax_back_numpy,
)


def _logsumexp_numpy(np: Any, x: Any, *, dim: Dims, keepdim: bool) -> Any:
    along = axes(x, dim)
    most = np.max(x.real, axis=along, keepdims=True, initial=-np.inf)
    most = np.where(np.isinf(most), 0, most).astype(x.dtype)  # inf - inf would be NaN
    result = np.log(np.sum(np.exp(x - most), axis=along, keepdims=True)) + most
    return result if keepdim else result.reshape(without(x.shape, along, False))


def _logsumexp_back(g: Any, y: Any, x: Any, *, dim: Dims, keepdim: bool) -> Any:
    return restored(g, x, dim, keepdim) * (x - restored(y, x, dim, keepdim)).exp()


op(
    "logsumexp",
    complex="holomorphic",
    autocast="float32",
    operands="t",
    infer=lambda x, *, dim, keepdim: TensorType(folded(x, dim, keepdim), floating(x.dtype)),
    common=lambda x, **attrs: floating(x.dtype),
    split=folding,
    vjp=(_logsumexp_back,),
    torch=lambda torch, x, *, dim, keepdim: torch.logsumexp(x, dim, keepdim),
    kernel=_logsumexp_numpy,
)
