"""Maps from one size to another, linear and separable: average pools and interpolation.

Each is a sparse matrix per spatial dim, and so numpy computes it; the gradient uses the transposed matrices. torch has
kernels for both. `resampler` declares the two ops.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import floor, prod
from typing import Any

from gt.errors import ShapeError
from gt.ops.attributes import MAX_INT32, check_flags, check_int, check_numbers
from gt.ops.elements import wide
from gt.ops.gradient_rules import one
from gt.ops.infer import shown
from gt.ops.nn.conv import Ints, _spatial
from gt.ops.nn.layer_norm import floating_input
from gt.ops.nn.pool import adapted, planar, pooled, pooled_size, shares, two, unless_empty
from gt.ops.op import op
from gt.ops.split import Split
from gt.ops.splits_nn import images
from gt.types import Shape, TensorType, float64

Kernel = Callable[..., Any]
#: For each result along a dim: the weights of the inputs that are summed, and the divisor of the sum.
Rows = list[tuple[dict[int, float], int]]


def _applied(np: Any, x: Any, sizes: Ints, rows: list[Rows], transposed: bool) -> Any:
    """x through the matrix of each dim, or through its transpose.

    Only nonzero weights are multiplied: a matrix product would spread a NaN to all results.
    """
    (x,) = wide(np, x)
    for d, weights in enumerate(rows):
        axis = x.ndim - len(sizes) + d
        x = np.moveaxis(x, axis, 0)
        divisors = np.array([divisor for _, divisor in weights], x.dtype).reshape(-1, *(1,) * (x.ndim - 1))
        result = np.zeros((sizes[d] if transposed else len(weights), *x.shape[1:]), x.dtype)
        x = x / divisors if transposed else x
        for results, inputs, factors in _terms(np, x, weights):
            if transposed:
                np.add.at(result, inputs, x[results] * factors)
            else:
                result[results] += x[inputs] * factors
        x = np.moveaxis(result if transposed else result / divisors, 0, axis)
    return np.ascontiguousarray(x)


def _terms(np: Any, x: Any, weights: Rows) -> Iterator[tuple[Any, Any, Any]]:
    """The first terms of all sums, then the second ones, …: (results, inputs, factors)."""
    terms = [list(row.items()) for row, _ in weights]
    for k in range(max(map(len, terms), default=0)):
        results = [i for i, row in enumerate(terms) if len(row) > k]
        inputs, factors = zip(*(terms[i][k] for i in results), strict=True)
        yield results, list(inputs), np.array(factors, x.dtype).reshape(-1, *(1,) * (x.ndim - 1))


def resampler(
    name: str, shape: Callable[..., Shape], rows: Callable[..., list[Rows]], forward: Kernel, back: Kernel
) -> None:
    """``shape``: (x's type, **how) -> the result's; ``rows``: (sizes, **how) -> for each dim, each result's weights."""
    backward = f"{name}_backward"

    def infer(x: TensorType, **how: Any) -> TensorType:
        return TensorType(shape(x, **how), x.dtype)

    def infer_back(g: TensorType, *, sizes: Ints, **how: Any) -> TensorType:
        _spatial("sizes", sizes, rank_of(how), 1)
        result = TensorType((*g.shape[: g.ndim - len(sizes)], *sizes), g.dtype)
        if infer(result, **how) is not g:
            raise ShapeError(f"{g} is not the gradient of a result for {result}")
        return result

    def split(x: TensorType, **how: Any) -> Split:
        return images(x, rank=rank_of(how), linear=((0,),))

    op(
        name,
        operands="t",
        infer=infer,
        split=split,
        vjp=(lambda g, _y, _x, **how: one(backward, g, sizes=tuple(_x.shape[-rank_of(how) :]), **how),),
        wants_out=True,
        torch=unless_empty(forward),
        kernel=lambda np, x, *, out, **how: _applied(np, x, s := x.shape[-rank_of(how) :], rows(s, **how), False),
    )
    op(
        backward,
        operands="t",
        infer=infer_back,
        split=split,
        vjp=(lambda d, _y, _g, *, sizes, **how: one(name, d, **how),),
        wants_out=True,
        torch=unless_empty(back),
        kernel=lambda np, g, *, out, sizes, **how: _applied(np, g, sizes, rows(sizes, **how), True),
    )


def rank_of(how: dict[str, Any]) -> int:
    return len(how["kernel"] if "kernel" in how else how["size"])


def _squeezed(x: Any, rank: int) -> Any:
    return x.squeeze(-2) if rank == 1 else x


# -- averages of windows -------------------------------------------------------------------


def _averaged(
    x: TensorType,
    *,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> Shape:
    check_flags(count_include_pad=count_include_pad)
    if divisor == 0:
        raise ShapeError("divisor must be not zero")
    if divisor is not None:
        check_int("divisor", divisor, -MAX_INT32, MAX_INT32)
    result = pooled(x, kernel, stride, padding, (1,) * len(kernel), ceil_mode)
    if len(kernel) == 3 and any(n < k for n, k in zip(x.shape[-3:], kernel, strict=True)):
        raise ShapeError(f"the window {shown(kernel)} is larger than the input without its padding")
    return result


def _average_rows(
    sizes: Ints,
    *,
    kernel: Ints,
    stride: Ints,
    padding: Ints,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: int | None,
) -> list[Rows]:
    result: list[Rows] = []
    for d, (n, k, s, p) in enumerate(zip(sizes, kernel, stride, padding, strict=True)):
        rows: Rows = []
        for i in range(pooled_size(n, k, s, p, 1, ceil_mode)):
            start, end = i * s - p, min(i * s - p + k, n + p)
            inside = range(max(start, 0), min(end, n))
            count = end - start if count_include_pad else len(inside)
            rows.append((dict.fromkeys(inside, 1.0), (divisor if d == 0 else 1) if divisor else count))
        result.append(rows)
    return result


def _average_arguments(how: dict[str, Any]) -> tuple[Any, ...]:
    return (
        two(how["kernel"], 1),
        two(how["stride"], 1),
        two(how["padding"], 0),
        how["ceil_mode"],
        how["count_include_pad"],
        how["divisor"],
    )


def _average_torch(torch: Any, x: Any, **how: Any) -> Any:
    rank = rank_of(how)
    call = torch.ops.aten.avg_pool3d if rank == 3 else torch.ops.aten.avg_pool2d
    return _squeezed(call(planar(_computable(x, rank), rank), *_average_arguments(how)), rank).to(x.dtype)


def _computable(x: Any, rank: int) -> Any:
    """On a CPU torch has no kernel for the average of float16 over three dims."""
    return x.float() if rank == 3 and not x.is_cuda and x.itemsize == 2 else x


def _average_back(torch: Any, g: Any, *, sizes: Ints, **how: Any) -> Any:
    rank = rank_of(how)
    wide = _computable(g, rank)
    like = wide.new_empty((*g.shape[:-rank], *sizes))  # used for its shape only
    call = torch.ops.aten.avg_pool3d_backward if rank == 3 else torch.ops.aten.avg_pool2d_backward
    return _squeezed(call(planar(wide, rank), planar(like, rank), *_average_arguments(how)), rank).to(g.dtype)


resampler("avg_pool", _averaged, _average_rows, _average_torch, _average_back)

# -- averages that share out the input -----------------------------------------------------


def _share_rows(sizes: Ints, *, size: Ints) -> list[Rows]:
    return [
        [(dict.fromkeys(range(a, b), 1.0), b - a) for a, b in shares(n, m)] for n, m in zip(sizes, size, strict=True)
    ]


def _share_torch(torch: Any, x: Any, *, size: Ints) -> Any:
    rank = len(size)
    if set(size) == {1}:  # torch does not call its kernel here either
        return x.mean(tuple(range(-rank, 0)), keepdim=True)
    aten = torch.ops.aten
    call = aten._adaptive_avg_pool3d if rank == 3 else aten._adaptive_avg_pool2d
    return _squeezed(call(planar(x, rank), two(size, 1)), rank)


def _share_back(torch: Any, g: Any, *, sizes: Ints, size: Ints) -> Any:
    rank = len(size)
    if set(size) == {1}:
        return (g / prod(sizes)).expand(*g.shape[:-rank], *sizes).contiguous()
    aten = torch.ops.aten
    like = g.new_empty((*g.shape[:-rank], *sizes))
    call = aten._adaptive_avg_pool3d_backward if rank == 3 else aten._adaptive_avg_pool2d_backward
    return _squeezed(call(planar(g, rank).contiguous(), planar(like, rank)), rank)


resampler("adaptive_avg_pool", lambda x, *, size: adapted(x, size), _share_rows, _share_torch, _share_back)

# -- interpolation -------------------------------------------------------------------------

#: (mode, spatial dims) -> torch's kernel, and whether it takes align_corners
KERNELS: dict[tuple[str, int], tuple[str, bool]] = {
    **{("nearest", r): (f"upsample_nearest{r}d", False) for r in (1, 2, 3)},
    **{("nearest-exact", r): (f"_upsample_nearest_exact{r}d", False) for r in (1, 2, 3)},
    ("linear", 1): ("upsample_linear1d", True),
    ("bilinear", 2): ("upsample_bilinear2d", True),
    ("trilinear", 3): ("upsample_trilinear3d", True),
    ("bicubic", 2): ("upsample_bicubic2d", True),
}


def _resized(x: TensorType, *, size: Ints, mode: str, align_corners: bool, scales: tuple[float | None, ...]) -> Shape:
    floating_input(x)
    rank = len(size)
    if (mode, rank) not in KERNELS:
        raise ShapeError(f"mode {mode!r} is not for {rank} spatial dims")
    if x.ndim != rank + 2 or len(scales) != rank:
        raise ShapeError(f"needs {rank + 2} dims: batch, channels, and {rank} more")
    _spatial("size", size, rank, 1)
    if 0 in x.shape[1:]:
        raise ShapeError(f"only the batch may be empty, not {x}")
    check_flags(align_corners=align_corners)
    if align_corners and not KERNELS[mode, rank][1]:
        raise ShapeError(f"align_corners is not for mode {mode!r}")
    for n, m, scale in zip(x.shape[2:], size, scales, strict=True):
        _check_scale(n, m, scale)
    return (*x.shape[:2], *size)


def _check_scale(n: int, m: int, scale: float | None) -> None:
    """torch's kernels step through the input by 1 / scale, and convert the position to an integer unchecked."""
    if scale is not None:
        check_numbers(float64, scale=scale)
        if not m - 1 < n * scale < m + 2:
            raise ShapeError(f"a scale of {scale} makes {n} not {m}")


def _resize_rows(
    sizes: Ints, *, size: Ints, mode: str, align_corners: bool, scales: tuple[float | None, ...]
) -> list[Rows]:
    weigh = WEIGHTS[mode]
    result = []
    for n, m, scale in zip(sizes, size, scales, strict=True):
        scale = None if _ignores_scale(n, m, mode, len(size)) else scale
        step = ((n - 1) / (m - 1) if m > 1 else 0.0) if align_corners else (1 / scale if scale else n / m)
        result.append([(weigh(i, n, step, align_corners), 1) for i in range(m)])
    return result


def _ignores_scale(n: int, m: int, mode: str, rank: int) -> bool:
    """torch uses the ratio of the sizes here, whatever the scale argument is."""
    if mode == "nearest":
        return rank == 2 and m in (n, 2 * n)
    return "linear" in mode and n == m


def _nearest(i: int, n: int, step: float, _: bool) -> dict[int, float]:
    return {min(floor(i * step), n - 1): 1.0}


def _nearest_exact(i: int, n: int, step: float, _: bool) -> dict[int, float]:
    return {min(floor((i + 0.5) * step), n - 1): 1.0}


def _linear(i: int, n: int, step: float, align_corners: bool) -> dict[int, float]:
    at = i * step if align_corners else max((i + 0.5) * step - 0.5, 0.0)
    left = min(floor(at), n - 1)
    share = at - left
    return {left: 1.0 - share, left + 1: share} if left < n - 1 else {left: 1.0}


def _cubic(i: int, n: int, step: float, align_corners: bool) -> dict[int, float]:
    at = i * step if align_corners else (i + 0.5) * step - 0.5
    left, a = floor(at), -0.75
    row: dict[int, float] = {}
    for k in range(-1, 3):
        x = abs(at - (left + k))
        near = ((a + 2) * x - (a + 3)) * x * x + 1
        far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
        j = min(max(left + k, 0), n - 1)
        row[j] = row.get(j, 0.0) + (near if x <= 1 else far)
    return row


WEIGHTS: dict[str, Callable[[int, int, float, bool], dict[int, float]]] = {
    "nearest": _nearest,
    "nearest-exact": _nearest_exact,
    "linear": _linear,
    "bilinear": _linear,
    "trilinear": _linear,
    "bicubic": _cubic,
}


def _resize_arguments(mode: str, align_corners: bool, size: Ints) -> tuple[str, tuple[bool, ...]]:
    name, takes = KERNELS[mode, len(size)]
    return name, (align_corners,) if takes else ()


def _resize_torch(torch: Any, x: Any, *, size: Ints, mode: str, align_corners: bool, scales: Any) -> Any:
    name, corners = _resize_arguments(mode, align_corners, size)
    return getattr(torch.ops.aten, name)(x, size, *corners, *scales)


def _resize_back(torch: Any, g: Any, *, sizes: Ints, size: Ints, mode: str, align_corners: bool, scales: Any) -> Any:
    name, corners = _resize_arguments(mode, align_corners, size)
    shape = (*g.shape[:2], *sizes)
    return getattr(torch.ops.aten, f"{name}_backward")(g, size, shape, *corners, *scales)


resampler("interpolate", _resized, _resize_rows, _resize_torch, _resize_back)
