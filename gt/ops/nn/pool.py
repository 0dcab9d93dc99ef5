"""The maximum of each window, with its position in the input, counted over all spatial dims."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from gt.errors import ShapeError
from gt.ops.attributes import check_flags
from gt.ops.gradient_rules import one
from gt.ops.infer import shown
from gt.ops.nn.conv import Ints, _spatial, check_span, padded, seen
from gt.ops.nn.layer_norm import floating_input
from gt.ops.op import Types, op
from gt.ops.positions import Positions
from gt.ops.splits_nn import images
from gt.types import TensorType, int64

#: The largest padding of a pool: torch's kernels loop over it for each result.
MAX_PADDING = 1 << 20


def pooled_size(n: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    room = n + 2 * padding - dilation * (kernel - 1) - 1
    size = (room + (stride - 1 if ceil_mode else 0)) // stride + 1
    # the last window starts inside the input or its left padding
    return size - 1 if ceil_mode and (size - 1) * stride >= n + padding else size


def pooled(
    x: TensorType, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, ceil_mode: bool
) -> tuple[int, ...]:
    rank = len(kernel)
    floating_input(x)
    _check_rank(rank)
    check_flags(ceil_mode=ceil_mode)
    if not rank + 1 <= x.ndim <= rank + 2:
        raise ShapeError(f"needs {rank + 1} or {rank + 2} dims: a batch or not, channels, and {rank} more")
    for name, values, least in (("kernel_size", kernel, 1), ("stride", stride, 1), ("padding", padding, 0)):
        _spatial(name, values, rank, least)
    _spatial("dilation", dilation, rank, 1)
    check_span(kernel, dilation)
    for k, p in zip(kernel, padding, strict=True):
        if 2 * p > k:
            raise ShapeError(f"padding {p} is more than half of kernel size {k}")
        if p > MAX_PADDING:
            raise ShapeError(f"padding {p} is more than {MAX_PADDING}")
    modes = (ceil_mode,) * rank
    sizes = tuple(map(pooled_size, x.shape[-rank:], kernel, stride, padding, dilation, modes))
    if min(sizes) < 1:
        raise ShapeError(f"the window {shown(kernel)} is larger than the input")
    _check_filled(x, rank)
    return (*x.shape[:-rank], *sizes)


def _check_rank(rank: int) -> None:
    if not 1 <= rank <= 3:
        raise ShapeError(f"there are 1 to 3 spatial dims, not {rank}")


def _check_filled(x: TensorType, rank: int) -> None:
    if 0 in x.shape[x.ndim - rank - 1 :]:
        raise ShapeError(f"only the batch may be empty, not {x}")


def _greatest(x: TensorType, *, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, ceil_mode: bool) -> Types:
    shape = pooled(x, kernel, stride, padding, dilation, ceil_mode)
    return TensorType(shape, x.dtype), TensorType(shape, int64)


def planar(x: Any, rank: int) -> Any:
    """One spatial dim as two, which torch's kernels need at least."""
    return x.unsqueeze(-2) if rank == 1 else x


def two(values: Ints, first: int) -> Ints:
    return (first, *values) if len(values) == 1 else values


def unless_empty(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel, except for empty results or operands: torch's kernels divide by sizes, and so by 0."""

    def call(torch: Any, x: Any, *operands: Any, out: Types, **how: Any) -> Any:
        if x.numel() and out[0].numel:
            return kernel(torch, x, *operands, **how)
        result = tuple(x.new_zeros(t.shape, dtype=getattr(torch, t.dtype.name)) for t in out)
        return result if len(result) > 1 else result[0]

    return call


def _max_torch(
    torch: Any, x: Any, *, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, ceil_mode: bool
) -> Any:
    rank = len(kernel)
    call = torch.ops.aten.max_pool3d_with_indices if rank == 3 else torch.ops.aten.max_pool2d_with_indices
    how = two(kernel, 1), two(stride, 1), two(padding, 0), two(dilation, 1), ceil_mode
    result = call(planar(x, rank), *how)
    return tuple(m.squeeze(-2) for m in result) if rank == 1 else tuple(result)


def _max_numpy(
    np: Any,
    x: Any,
    *,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    ceil_mode: bool,
    out: Types,
) -> Any:
    rank = len(kernel)
    inner = x.shape[-rank:]
    sizes = tuple(map(pooled_size, inner, kernel, stride, padding, dilation, (ceil_mode,) * rank))
    # a window may extend beyond the end
    ends = [
        max(0, (n - 1) * s + d * (k - 1) + 1 - m - 2 * p)
        for n, s, d, k, m, p in zip(sizes, stride, dilation, kernel, inner, padding, strict=True)
    ]
    source = padded(np, x, padding, -np.inf, tuple(ends))
    places = padded(np, np.arange(prod(inner)).reshape(inner), padding, -1, tuple(ends))
    best = np.full((*x.shape[:-rank], *sizes), -np.inf, x.dtype)
    at = np.full(best.shape, -1)
    for _, slices in seen(kernel, sizes, stride, dilation):
        value, place = source[slices], np.broadcast_to(places[slices], best.shape)
        better = (place >= 0) & ((value > best) | np.isnan(value) | (at < 0))
        best, at = np.where(better, value, best), np.where(better, place, at)
    return best, at


def _max_vjp(g: Any, y1: Any, _x: Any, **window: Any) -> Any:
    rank = len(window["kernel"])
    how = tuple(window[name] for name in ("kernel", "stride", "padding", "dilation", "ceil_mode"))
    return one("max_pool_backward", g[0], y1[1], size=tuple(_x.shape[-rank:]), window=how)


op(
    "max_pool",
    operands="t",
    infer=_greatest,
    split=lambda x, **how: images(x, results=2, rank=len(how["kernel"])),
    vjp=(_max_vjp,),
    wants_out=True,
    torch=unless_empty(_max_torch),
    kernel=_max_numpy,
)


def _placed(g: TensorType, indices: TensorType, *, size: Ints, window: tuple[Any, ...]) -> TensorType:
    """``window``: the attributes of regular windows; empty for adaptive ones."""
    rank = len(size)
    floating_input(g)
    _check_rank(rank)
    _spatial("size", size, rank, 1)
    if not rank + 1 <= g.ndim <= rank + 2 or indices is not TensorType(g.shape, int64):
        raise ShapeError(f"there is a place for each gradient, in int64: {indices} for {g}")
    result = TensorType((*g.shape[:-rank], *size), g.dtype)
    if window and pooled(result, *window) != g.shape:
        raise ShapeError(f"{g} is not the gradient of windows {window} of {result}")
    return result


def _flat(x: Any, rank: int) -> Any:
    lead = x.shape[: x.ndim - rank]
    return x.reshape((*lead, prod(x.shape[x.ndim - rank :])))


def _place_torch(torch: Any, g: Any, indices: Any, *, size: Ints, window: tuple[Any, ...]) -> Any:
    rank, shape = len(size), (*g.shape[: -len(size)], *size)
    if window and rank < 3 and g.numel() and g.is_cuda:  # the CPU's kernel does not check indices
        *how, ceil_mode = window
        how = [two(v, d) for v, d in zip(how, (1, 1, 0, 1), strict=True)]
        like = planar(g.new_empty(shape), rank)  # used for its shape only
        result = torch.ops.aten.max_pool2d_with_indices_backward(
            planar(g, rank), like, *how, ceil_mode, planar(indices.clamp(0, prod(size) - 1), rank)
        )
        return result.reshape(shape)
    result = g.new_zeros((*g.shape[:-rank], prod(size)))
    return result.scatter_add_(-1, _flat(indices, rank), _flat(g, rank)).reshape(shape)


def _place_numpy(np: Any, g: Any, indices: Any, *, size: Ints, window: tuple[Any, ...]) -> Any:
    rank = len(size)
    values, at = _flat(g, rank), _flat(indices, rank)
    if at.size and at.min() < 0:
        raise IndexError(f"index {at.min()} is out of bounds")
    result = np.zeros((*values.shape[:-1], prod(size)), np.float32 if g.dtype == np.float16 else g.dtype)
    where = list(np.indices(at.shape))
    where[-1] = at
    np.add.at(result, tuple(where), values)
    return result.reshape((*g.shape[:-rank], *size))


op(
    "max_pool_backward",
    operands="tt",
    infer=_placed,
    positions=lambda g, at, *, size, window: (Positions(1, prod(size)),),
    split=lambda g, at, *, size, window: images(g, at, rank=len(size), linear=((0,),)),
    vjp=(
        lambda d, _y, _g, indices, *, size, window: (
            _flat(d, len(size)).gather(-1, _flat(indices, len(size))).reshape(_g.shape)
        ),
        None,
    ),
    torch=_place_torch,
    kernel=_place_numpy,
)

# -- windows that share out the input ------------------------------------------------------


def shares(n: int, size: int) -> list[tuple[int, int]]:
    """The start and the end of each window."""
    return [(i * n // size, -(-(i + 1) * n // size)) for i in range(size)]


def adapted(x: TensorType, size: Ints) -> tuple[int, ...]:
    rank = len(size)
    floating_input(x)
    _check_rank(rank)
    if not rank + 1 <= x.ndim <= rank + 2:
        raise ShapeError(f"needs {rank + 1} or {rank + 2} dims: a batch or not, channels, and {rank} more")
    _check_filled(x, rank)
    _spatial("output_size", size, rank, 0)
    return (*x.shape[:-rank], *size)


def _adapted(x: TensorType, *, size: Ints) -> Types:
    shape = adapted(x, size)
    return TensorType(shape, x.dtype), TensorType(shape, int64)


def _adapt_torch(torch: Any, x: Any, *, size: Ints) -> Any:
    rank = len(size)
    call = torch.ops.aten.adaptive_max_pool3d if rank == 3 else torch.ops.aten.adaptive_max_pool2d
    result = call(planar(x, rank), two(size, 1))
    return tuple(m.squeeze(-2) for m in result) if rank == 1 else tuple(result)


def _adapt_numpy(np: Any, x: Any, *, size: Ints, out: Types) -> Any:
    rank = len(size)
    inner = x.shape[-rank:]
    places = np.arange(prod(inner)).reshape(inner)
    best, at = np.empty((*x.shape[:-rank], *size), x.dtype), np.empty((*x.shape[:-rank], *size), np.int64)
    windows = [shares(n, m) for n, m in zip(inner, size, strict=True)]
    for cell in np.ndindex(*size):
        slices = tuple(slice(*windows[d][i]) for d, i in enumerate(cell))
        values = _flat(x[(..., *slices)], rank)
        # torch gives the last NaN, and the first of equal values
        nan = np.isnan(values)
        last = values.shape[-1] - 1 - nan[..., ::-1].argmax(-1)
        first = np.where(nan.any(-1), last, values.argmax(-1))
        best[(..., *cell)] = np.take_along_axis(values, first[..., None], -1)[..., 0]
        at[(..., *cell)] = places[slices].reshape(-1)[first]
    return best, at


op(
    "adaptive_max_pool",
    operands="t",
    infer=_adapted,
    split=lambda x, *, size: images(x, results=2, rank=len(size)),
    vjp=(
        lambda g, y1, _x, *, size: one("max_pool_backward", g[0], y1[1], size=tuple(_x.shape[-len(size) :]), window=()),
    ),
    wants_out=True,
    torch=unless_empty(_adapt_torch),
    kernel=_adapt_numpy,
)
