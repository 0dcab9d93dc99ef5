"""Normalisation over the last dims, over groups of channels, and over the batch.

Each also returns its statistics, which the kernel of its gradient needs. Weight and bias are optional operands; the
attributes of the same names say which are present.
"""

from __future__ import annotations

from math import prod
from typing import Any

from gt.errors import DTypeError, ShapeError
from gt.ops.attributes import check_flags, check_mask, check_numbers
from gt.ops.elements import wide
from gt.ops.gradient_rules import chosen, differentiated
from gt.ops.infer import shown, sizes
from gt.ops.op import Types, op
from gt.ops.splits_nn import over_last, over_last_back
from gt.types import DType, Shape, TensorType, float32, float64

Mask = tuple[bool, ...]


def statistic(dtype: DType) -> DType:
    return float64 if dtype is float64 else float32


def floating_input(x: TensorType) -> None:
    if x.dtype.kind != "f":
        raise DTypeError(f"not defined for {x.dtype.name}; use x.float()")


def _affine(
    x: TensorType, parameters: tuple[TensorType, ...], shape: Shape, weight: bool, bias: bool, eps: float
) -> None:
    floating_input(x)
    check_flags(weight=weight, bias=bias)
    check_numbers(x.dtype, eps=eps)
    if len(parameters) != weight + bias:
        raise ShapeError(f"{len(parameters)} operands for weight={weight}, bias={bias}")
    for t in parameters:
        if t.shape != shape:
            raise ShapeError(f"weight and bias have the shape {shown(shape)}, not {t}")
    check_parameters(x, parameters)


def check_parameters(x: TensorType, params: tuple[TensorType, ...]) -> None:
    """All of x's dtype; or all of float32, where x is of half precision."""
    for t in params:
        if t.dtype is not params[0].dtype:
            raise DTypeError(f"dtypes of parameters differ: {params[0].dtype.name} and {t.dtype.name}")
        if t.dtype is not x.dtype and not (t.dtype is float32 and x.dtype.itemsize == 2):
            raise DTypeError(f"dtypes differ: {x.dtype.name} and {t.dtype.name}")


def _pair(parameters: Any, weight: bool, bias: bool) -> tuple[Any, Any]:
    """(weight, bias), each None if it is absent."""
    left = list(parameters)
    return (left.pop(0) if weight else None), (left.pop(0) if bias else None)


def _stats(x: Any, weight: Any, *stats: Any) -> list[Any]:
    """On a CPU torch's gradients need statistics in the dtype of the weights; on a GPU, in float32."""
    dtype = x.dtype if weight is None else weight.dtype
    return list(stats) if x.is_cuda or x.itemsize > 2 else [s.to(dtype) for s in stats]


def _widened(result: Any) -> Any:
    """(result, *statistics) as torch gives them, with the statistics in float32 at least."""
    y, *stats = result
    return (y, *(s.float() if s.itemsize < 4 else s for s in stats))


def _contiguous(*xs: Any) -> list[Any]:
    """The operands as contiguous tensors: torch's native functions ignore their strides."""
    return [x.contiguous() for x in xs]


def _fitting(g: TensorType, x: TensorType, stats: tuple[TensorType, ...], shape: Shape) -> None:
    """Refuses operands that torch's kernels would read beyond their end."""
    expected = TensorType(shape, statistic(x.dtype))
    if g is not x or any(s is not expected for s in stats):
        raise ShapeError(f"a gradient is {x} here, and statistics are {expected}")


def _gradients(x: TensorType, params: TensorType | None, mask: Mask, count: int = 3) -> Types:
    """``params``: the type of a weight and a bias; None where there are none, and so no gradients of them."""
    check_mask(mask, count)
    if params is None:
        if any(mask[1:]):
            raise ShapeError(f"without a weight there is a gradient of the input alone, not mask={mask}")
        return (x,)
    return tuple(t for t, wanted in zip((x, params, params), mask, strict=False) if wanted)


def _no_rows(torch: Any, x: Any, *stats: Shape) -> Any:
    """The results for an input without elements: torch's kernels leave its statistics unwritten, or NaN."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    return (torch.empty_like(x), *(x.new_zeros(shape, dtype=dtype) for shape in stats))


def _no_gradients(x: Any, weight: Any, mask: Mask) -> Any:
    """The same for gradients, which are sums without terms."""
    like = x if weight is None else weight
    return _wanted((x.new_zeros(x.shape), *(like.new_zeros(like.shape) for _ in mask[1:])), mask)


def _wanted(result: Any, mask: Mask) -> Any:
    """The results that the mask requests; a single one is not in a tuple."""
    kept = tuple(m for m, wanted in zip(result, mask, strict=True) if wanted)
    return kept if len(kept) > 1 else kept[0]


def _backward(
    name: str,
    needs: Mask,
    g: Any,
    stats: Any,
    x: Any,
    parameters: Any,
    dims: Any,
    weight: bool,
    bias: bool,
    **attrs: Any,
) -> list[Any]:
    """The gradients of (x, weight?, bias?); without a weight torch's kernels know no bias either."""
    w, b = _pair(parameters, weight, bias)
    needed = _pair(needs[-len(parameters) :] if parameters else (), weight, bias)
    mask = (needs[0], bool(needed[0]), bool(needed[1]) and weight)
    result = chosen(name, mask, g, x, *stats, *([w] if weight else []), **attrs, weight=weight)
    if needed[1] and not weight:
        result[2] = (g.sum(dims) if dims else g).reshape(b.shape)
    return [result[0], *([result[1]] if weight else []), *([result[2]] if bias else [])]


# -- over the last dims --------------------------------------------------------------------


def _layered(
    x: TensorType, *parameters: TensorType, normalized_shape: Shape, weight: bool, bias: bool, eps: float
) -> Types:
    _check_normalized(x, normalized_shape)
    _affine(x, parameters, normalized_shape, weight, bias, eps)
    stats = TensorType(_stats_shape(x, normalized_shape), statistic(x.dtype))
    return x, stats, stats


def _check_normalized(x: TensorType, normalized_shape: Shape) -> None:
    kept = x.ndim - len(sizes(normalized_shape))
    if not normalized_shape or kept < 0 or x.shape[kept:] != normalized_shape:
        raise ShapeError(f"normalized_shape {shown(normalized_shape)} is not how {x} ends")


def _stats_shape(x: Any, normalized_shape: Shape) -> Shape:
    return (*x.shape[: x.ndim - len(normalized_shape)], *(1,) * len(normalized_shape))


def _last(x: Any, normalized_shape: Shape) -> tuple[int, ...]:
    return tuple(range(x.ndim - len(normalized_shape), x.ndim))


def _first(x: Any, normalized_shape: Shape) -> tuple[int, ...]:
    return tuple(range(x.ndim - len(normalized_shape)))


def _layer_torch(
    torch: Any, x: Any, *parameters: Any, normalized_shape: Shape, weight: bool, bias: bool, eps: float
) -> Any:
    w, b = _pair(parameters, weight, bias)
    if not x.numel():
        return _no_rows(torch, x, *[_stats_shape(x, normalized_shape)] * 2)
    if bias and not weight:  # the CPU's kernel for mixed dtypes needs both
        y, *stats = torch.native_layer_norm(x, normalized_shape, None, None, eps)
        return _widened((y + b.to(y.dtype), *stats))
    return _widened(torch.native_layer_norm(x, normalized_shape, w, b, eps))


def _layer_numpy(
    np: Any, x: Any, *parameters: Any, normalized_shape: Shape, weight: bool, bias: bool, eps: float
) -> Any:
    (x,) = wide(np, x)
    w, b = _pair(parameters, weight, bias)
    dims = _last(x, normalized_shape)
    mean = x.mean(dims, keepdims=True) if x.size else x.sum(dims, keepdims=True)
    rstd = 1 / np.sqrt(x.var(dims, keepdims=True) + eps) if x.size else mean
    y = (x - mean) * rstd
    y = y if w is None else y * w
    return y if b is None else y + b, mean, rstd


def _layer_vjp(
    needs: Mask, g: Any, y12: Any, x: Any, *parameters: Any, normalized_shape: Shape, **attrs: Any
) -> list[Any]:
    return _backward(
        "layer_norm_backward",
        needs,
        g[0],
        y12[1:],
        x,
        parameters,
        _first(x, normalized_shape),
        attrs["weight"],
        attrs["bias"],
        normalized_shape=normalized_shape,
        eps=attrs["eps"],
    )


op(
    "layer_norm",
    autocast="float32",
    operands="t{1,3}",
    infer=_layered,
    split=over_last,
    vjp=_layer_vjp,
    torch=_layer_torch,
    kernel=_layer_numpy,
)


def _layered_back(
    g: TensorType,
    x: TensorType,
    mean: TensorType,
    rstd: TensorType,
    *parameters: TensorType,
    normalized_shape: Shape,
    eps: float,
    weight: bool,
    mask: Mask,
) -> Types:
    _check_normalized(x, normalized_shape)
    _fitting(g, x, (mean, rstd), _stats_shape(x, normalized_shape))
    _affine(x, parameters, normalized_shape, weight, False, eps)
    return _gradients(x, parameters[0] if parameters else None, mask)


def _layer_back_torch(
    torch: Any,
    g: Any,
    x: Any,
    mean: Any,
    rstd: Any,
    *parameters: Any,
    normalized_shape: Shape,
    eps: float,
    weight: bool,
    mask: Mask,
) -> Any:
    w = parameters[0] if weight else None
    if not x.numel():
        return _no_gradients(x, w, mask)
    mean, rstd = _contiguous(*_stats(x, w, mean, rstd))
    result = torch.ops.aten.native_layer_norm_backward(g, x, normalized_shape, mean, rstd, w, w, mask)
    return _wanted(result, mask)


def normal_gradient(np: Any, g: Any, normal: Any, rstd: Any, dims: tuple[int, ...]) -> Any:
    """The gradient of (x - mean) * rstd for x, where mean and rstd are x's own over the dims."""
    if not g.size:
        return g
    mean = g.mean(dims, keepdims=True)
    return (g - mean - normal * (g * normal).mean(dims, keepdims=True)) * rstd


def _layer_back_numpy(
    np: Any,
    g: Any,
    x: Any,
    mean: Any,
    rstd: Any,
    *parameters: Any,
    normalized_shape: Shape,
    eps: float,
    weight: bool,
    mask: Mask,
) -> Any:
    g, x = wide(np, g, x)
    normal, rows = (x - mean) * rstd, _first(x, normalized_shape)
    dx = normal_gradient(np, g * parameters[0] if weight else g, normal, rstd, _last(x, normalized_shape))
    return _wanted((dx, (g * normal).sum(rows), g.sum(rows)), mask)


def _mean(x: Any, dims: tuple[int, ...]) -> Any:
    return x.sum(dims, keepdim=True) / max(prod(x.shape[d] for d in dims), 1)


def back_formula(g: Any, x: Any, w: Any, eps: float, over: tuple[int, ...], rows: tuple[int, ...]) -> list[Any]:
    """The gradients of a normalisation over some dims, in plain ops."""
    centred = x - _mean(x, over)
    rstd = (_mean(centred * centred, over) + eps).rsqrt()
    normal = centred * rstd
    scaled = g if w is None else g * w
    dx = (scaled - _mean(scaled, over) - normal * _mean(scaled * normal, over)) * rstd
    return [dx, (g * normal).sum(rows) if rows else g * normal, g.sum(rows) if rows else g]


def _layer_back_formula(
    g: Any,
    x: Any,
    mean: Any,
    rstd: Any,
    *parameters: Any,
    normalized_shape: Shape,
    eps: float,
    weight: bool,
    mask: Mask,
) -> list[Any]:
    w = parameters[0] if weight else None
    result = back_formula(g, x, w, eps, _last(x, normalized_shape), _first(x, normalized_shape))
    return [m for m, wanted in zip(result, mask, strict=True) if wanted]


op(
    "layer_norm_backward",
    operands="t{4,5}",
    infer=_layered_back,
    split=over_last_back,
    vjp=differentiated(_layer_back_formula),
    torch=_layer_back_torch,
    kernel=_layer_back_numpy,
)
