"""``gt.nn.functional``: convolutions, pools, and other functions of images."""

from __future__ import annotations

from collections.abc import Callable
from math import floor, prod
from typing import Any, TypeVar

from gt.client.tensor.arguments import cast, refuse, require_tensor
from gt.client.tensor.emit import call, call_many
from gt.client.tensor.tensor import Tensor
from gt.errors import DTypeError, ShapeError
from gt.functions import pointwise, scatter, views
from gt.functions.spectral.complex import complex
from gt.nn._functional.antialias import resized
from gt.ops import OPS, Attrs, Op
from gt.types import float32, float64, int64, uint8

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d", "adaptive_max_pool2d",
    "adaptive_max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d", "channel_shuffle", "conv1d", "conv2d", "conv3d",
    "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "fold", "interpolate", "lp_pool1d", "lp_pool2d",
    "lp_pool3d", "max_pool1d", "max_pool1d_with_indices", "max_pool2d", "max_pool2d_with_indices", "max_pool3d",
    "max_pool3d_with_indices", "pixel_shuffle", "pixel_unshuffle", "unfold", "upsample",
]  # fmt: skip

#: A function that may return indices too, and one that returns one tensor.
Function = Callable[..., Any]
TensorFunction = Callable[..., Tensor]
F = TypeVar("F", bound=Function)
Ints = tuple[int, ...]
Factors = tuple[float | None, ...]
CONVOLUTION = OPS["convolution"]


def _per_dim(name: str, values: Any, rank: int) -> Ints:
    """One int per dim; a single int stands for all dims."""
    if type(values) is tuple and len(values) == rank and [type(v) for v in values] == [int] * rank:
        return values
    numbers = tuple(values) if isinstance(values, tuple | list) else (values,)
    numbers = numbers * rank if len(numbers) == 1 else numbers
    if len(numbers) != rank or any(type(v) is not int for v in numbers):
        raise DTypeError(f"{name} is an int or a tuple of {rank} ints, not {values!r}")
    return numbers


#: The dims of the windows, as words in a docstring.
SHAPES = {1: "sequences", 2: "images", 3: "volumes"}


def _named(function: F, name: str, doc: str) -> F:
    function.__name__ = function.__qualname__ = name
    function.__doc__ = f"{doc} See `torch.nn.functional.{name}`."
    return function


# -- convolutions --------------------------------------------------------------------------


def _convolve(name: str, rank: int, input: Tensor, weight: Tensor, bias: Any, groups: int, **attrs: Any) -> Tensor:
    x = require_tensor(name, input)
    if x._type.dtype.kind == "c" and all(t._type.dtype is x._type.dtype for t in (weight, bias) if t is not None):
        return _complex_convolve(name, rank, x, weight, bias, groups=groups, **attrs)
    unbatched = x._type.ndim == rank + 1
    batch, kernel = views.unsqueeze(x, 0) if unbatched else x, require_tensor(name, weight)
    operands = (batch, kernel) if bias is None else (batch, kernel, bias)
    try:
        output = call(CONVOLUTION, operands, (*attrs.items(), ("groups", groups)))
    except (ShapeError, DTypeError) as problem:
        reason = str(problem).split("): ", 1)[-1]
        raise refuse(type(problem), reason, name, x, *operands[1:], **attrs, groups=groups) from None
    return views.squeeze(output, 0) if unbatched else output


def _complex_convolve(name: str, rank: int, x: Tensor, weight: Tensor, bias: Any, **attrs: Any) -> Tensor:
    """From three real convolutions, as in torch."""
    both = bias.real + bias.imag if bias is not None else None
    a = _convolve(name, rank, x.real, weight.real, None if bias is None else bias.real, **attrs)
    b = _convolve(name, rank, x.imag, weight.imag, None, **attrs)
    c = _convolve(name, rank, x.real + x.imag, weight.real + weight.imag, both, **attrs)
    return complex(a - b, c - a - b)


def _conv(rank: int) -> TensorFunction:
    name = f"conv{rank}d"

    def conv(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        steps, spread = _per_dim("stride", stride, rank), _per_dim("dilation", dilation, rank)
        drop = none = (0,) * rank
        if isinstance(padding, str):
            pads, drop = _named_padding(name, padding, weight, steps, spread)
        else:
            pads = _per_dim("padding", padding, rank)
        attrs = {"stride": steps, "padding": pads, "dilation": spread, "transposed": False, "output_padding": none}
        output = _convolve(name, rank, input, weight, bias, groups, **attrs)
        for d, n in enumerate(drop):
            if n:
                dim = output._type.ndim - rank + d
                output = views.narrow(output, dim, n, output._type.shape[dim] - n)
        return output

    return _named(conv, name, f"A convolution over {SHAPES[rank]}.")


def _named_padding(name: str, padding: str, weight: Tensor, stride: Ints, dilation: Ints) -> tuple[Ints, Ints]:
    """The padding on both sides, and the number of results to drop at the start: torch pads one more on the right."""
    rank = len(stride)
    if padding == "valid":
        return (0,) * rank, (0,) * rank
    if padding != "same":
        raise ShapeError(f"{name}: padding is 'valid', 'same' or numbers, not {padding!r}")
    if any(s != 1 for s in stride):
        raise ShapeError(f"{name}: padding='same' is not supported for strided convolutions")
    totals = [d * (k - 1) for d, k in zip(dilation, weight._type.shape[2:], strict=True)]
    return tuple(t - t // 2 for t in totals), tuple(t % 2 for t in totals)


def _conv_transpose(rank: int) -> TensorFunction:
    name = f"conv_transpose{rank}d"

    def conv(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Tensor:
        steps, spread = _per_dim("stride", stride, rank), _per_dim("dilation", dilation, rank)
        extra = _per_dim("output_padding", output_padding, rank)
        if any(e >= max(s, d) for e, s, d in zip(extra, steps, spread, strict=True)):
            raise refuse(ShapeError, "output_padding must be smaller than stride or dilation", name, input, weight)
        pads = _per_dim("padding", padding, rank)
        attrs = {"stride": steps, "padding": pads, "dilation": spread, "transposed": True, "output_padding": extra}
        return _convolve(name, rank, input, weight, bias, groups, **attrs)

    return _named(conv, name, f"The transpose of a convolution over {SHAPES[rank]}.")


conv1d, conv2d, conv3d = map(_conv, (1, 2, 3))
conv_transpose1d, conv_transpose2d, conv_transpose3d = map(_conv_transpose, (1, 2, 3))

# -- pools ---------------------------------------------------------------------------------


def _max_pool(rank: int, always_indices: bool) -> Function:
    def pool(
        input: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
        return_indices: bool = False,
    ) -> Any:
        kernel = _per_dim("kernel_size", kernel_size, rank)
        attrs = (
            ("kernel", kernel),
            ("stride", kernel if stride in (None, [], ()) else _per_dim("stride", stride, rank)),
            ("padding", _per_dim("padding", padding, rank)),
            ("dilation", _per_dim("dilation", dilation, rank)),
            ("ceil_mode", ceil_mode),
        )
        x = require_tensor(OPS["max_pool"].name, input)
        if x._type.dtype.kind == "f":
            values_and_indices = call_many(OPS["max_pool"], (x,), attrs)
        else:
            values_and_indices = _max_pool_integers(x, attrs, rank)
        return values_and_indices if return_indices or always_indices else values_and_indices[0]

    name = f"max_pool{rank}d" + "_with_indices" * always_indices
    return _named(pool, name, f"The greatest element of each window of {SHAPES[rank]}.")


max_pool1d, max_pool2d, max_pool3d = (_max_pool(r, False) for r in (1, 2, 3))
max_pool1d_with_indices, max_pool2d_with_indices, max_pool3d_with_indices = (_max_pool(r, True) for r in (1, 2, 3))


def _max_pool_integers(x: Tensor, attrs: Attrs, rank: int) -> tuple[Tensor, Tensor]:
    """Max pooling of integers: positions are computed in float64, values are gathered."""
    indices = call_many(OPS["max_pool"], (cast(x, float64),), attrs)[1]
    lead = x._type.shape[:-rank]
    flat, places = views.reshape(x, (*lead, -1)), views.reshape(indices, (*lead, -1))
    return views.reshape(scatter.gather(flat, -1, places), indices._type.shape), indices


def _avg_pool_integers(x: Tensor, attrs: Attrs) -> Tensor:
    """Average pooling of integers: sums, divided as C divides integers (towards 0)."""
    options = dict(attrs)

    def pool(x: Tensor, divisor: int | None) -> Tensor:
        return call(OPS["avg_pool"], (x,), tuple({**options, "divisor": divisor}.items()))

    wide = cast(x, float64)
    total = pointwise.round(pool(wide, 1))
    if options["divisor"] is not None:
        return cast(pointwise.div(total, options["divisor"], rounding_mode="trunc"), int64)
    ones = wide * 0 + 1
    counts = pointwise.round(pool(ones, 1) / pool(ones, None))
    return cast(pointwise.div(total, counts, rounding_mode="trunc"), int64)


def _avg_pool(rank: int) -> TensorFunction:
    def pool(
        input: Tensor,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor:
        kernel = _per_dim("kernel_size", kernel_size, rank)
        attrs = (
            ("kernel", kernel),
            ("stride", kernel if stride in (None, [], ()) else _per_dim("stride", stride, rank)),
            ("padding", _per_dim("padding", padding, rank)),
            ("ceil_mode", ceil_mode),
            ("count_include_pad", count_include_pad),
            ("divisor", divisor_override),
        )
        x = require_tensor(OPS["avg_pool"].name, input)
        return _avg_pool_integers(x, attrs) if x._type.dtype is int64 else call(OPS["avg_pool"], (x,), attrs)

    return _named(pool, f"avg_pool{rank}d", f"The mean of each window of {SHAPES[rank]}.")


avg_pool1d, avg_pool2d, avg_pool3d = map(_avg_pool, (1, 2, 3))


def _output_sizes(x: Tensor, output_size: Any, rank: int) -> Ints:
    """The output size as a tuple; None keeps the input's size."""
    requested = tuple(output_size) if isinstance(output_size, tuple | list) else (output_size,) * rank
    if len(requested) != rank:
        raise refuse(ShapeError, f"output_size is an int or {rank} of them", "adaptive_pool", x, output_size)
    sizes = (1,) * rank + x._type.shape  # the op refuses a tensor with too few dims
    return tuple(n if r is None else r for r, n in zip(requested, sizes[-rank:], strict=True))


def _adaptive_avg(rank: int) -> TensorFunction:
    def pool(input: Tensor, output_size: Any) -> Tensor:
        x = require_tensor(OPS["adaptive_avg_pool"].name, input)
        return call(OPS["adaptive_avg_pool"], (x,), (("size", _output_sizes(x, output_size, rank)),))

    return _named(pool, f"adaptive_avg_pool{rank}d", f"Means of {SHAPES[rank]}, in an output of this size.")


def _adaptive_max(rank: int) -> Function:
    def pool(input: Tensor, output_size: Any, return_indices: bool = False) -> Any:
        x = require_tensor(OPS["adaptive_max_pool"].name, input)
        values, indices = call_many(OPS["adaptive_max_pool"], (x,), (("size", _output_sizes(x, output_size, rank)),))
        return (values, indices) if return_indices else values

    return _named(pool, f"adaptive_max_pool{rank}d", f"Greatest elements of {SHAPES[rank]}, in an output of this size.")


adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d = map(_adaptive_avg, (1, 2, 3))
adaptive_max_pool1d, adaptive_max_pool2d, adaptive_max_pool3d = map(_adaptive_max, (1, 2, 3))

# -- resizing ---------------------------------------------------------------------------------


def interpolate(
    input: Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Tensor:
    """Resize images to a size or by a factor. See `torch.nn.functional.interpolate`."""
    x = require_tensor("interpolate", input)
    rank = x._type.ndim - 2
    if rank not in (1, 2, 3):
        raise refuse(ShapeError, "needs 3, 4 or 5 dims: batch, channels, and one to three more", "interpolate", x)
    smooth = mode in ("linear", "bilinear", "bicubic", "trilinear")
    if align_corners is not None and not smooth:
        raise refuse(ShapeError, "align_corners is for linear, bilinear, bicubic and trilinear", "interpolate", x)
    if (size is None) == (scale_factor is None):
        raise refuse(ShapeError, "give either size or scale_factor", "interpolate", x, size=size)
    sizes, scales = _target_sizes(x, rank, size, scale_factor, bool(recompute_scale_factor))
    if antialias:
        return resized(x, mode, sizes, bool(align_corners), scales)
    if mode == "area":
        return call(OPS["adaptive_avg_pool"], (x,), (("size", sizes),))
    attrs = (("size", sizes), ("mode", mode), ("align_corners", bool(align_corners)), ("scales", scales))
    if x._type.dtype is uint8 and not smooth:  # every value is copied from the image, so float32 is exact
        return cast(call(OPS["interpolate"], (cast(x, float32),), attrs), uint8)
    return call(OPS["interpolate"], (x,), attrs)


def _target_sizes(x: Tensor, rank: int, size: Any, factor: Any, recompute: bool) -> tuple[Ints, Factors]:
    none: Factors = (None,) * rank
    if size is not None:
        return _per_dim("size", size, rank), none
    factors = tuple(map(float, factor)) if isinstance(factor, tuple | list) else (float(factor),) * rank
    if len(factors) != rank:
        raise refuse(
            ShapeError, f"scale_factor is a number or {rank} of them", OPS["interpolate"].name, x, scale_factor=factor
        )
    sizes = tuple(floor(n * f) for n, f in zip(x._type.shape[2:], factors, strict=True))
    return sizes, none if recompute else factors


def upsample(
    input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest", align_corners: Any = None
) -> Tensor:
    """Resize images; the older name of `interpolate`."""
    return interpolate(input, size, scale_factor, mode, align_corners)


def pixel_shuffle(input: Tensor, upscale_factor: int) -> Tensor:
    """Move channels into space: (…, c·r·r, h, w) becomes (…, c, h·r, w·r)."""
    *lead, channels, h, w = _check_image("pixel_shuffle", input)
    r = upscale_factor
    if r < 1 or channels % (r * r):
        raise refuse(ShapeError, f"{channels} channels are not a multiple of {r}²", "pixel_shuffle", input, r)
    split = views.reshape(input, (*lead, channels // (r * r), r, r, h, w))
    n = len(lead)
    order = (*range(n), n, n + 3, n + 1, n + 4, n + 2)
    return views.reshape(views.permute(split, order), (*lead, channels // (r * r), h * r, w * r))


def pixel_unshuffle(input: Tensor, downscale_factor: int) -> Tensor:
    """Move space into channels: (…, c, h·r, w·r) becomes (…, c·r·r, h, w)."""
    *lead, channels, h, w = _check_image("pixel_unshuffle", input)
    r = downscale_factor
    if r < 1 or h % r or w % r:
        raise refuse(ShapeError, f"height and width must be multiples of {r}", "pixel_unshuffle", input, r)
    split = views.reshape(input, (*lead, channels, h // r, r, w // r, r))
    n = len(lead)
    order = (*range(n), n, n + 2, n + 4, n + 1, n + 3)
    return views.reshape(views.permute(split, order), (*lead, channels * r * r, h // r, w // r))


def channel_shuffle(input: Tensor, groups: int) -> Tensor:
    """Reorder channels: the first of each group, then the second of each group, and so on."""
    shape = _check_image("channel_shuffle", input)
    if groups < 1 or shape[1] % groups:
        raise refuse(
            ShapeError, f"{shape[1]} channels cannot be divided into {groups} groups", "channel_shuffle", input, groups
        )
    split = views.reshape(input, (shape[0], groups, shape[1] // groups, *shape[2:]))
    return views.reshape(views.transpose(split, 1, 2), shape)


def _check_image(name: str, x: Tensor) -> Ints:
    if x._type.ndim < 3:
        raise refuse(ShapeError, "needs at least three dims", name, x)
    return x._type.shape


# -- columns -------------------------------------------------------------------------------


def _columns(op: Op, x: Tensor, batched_ndim: int, size: Ints, windows: dict[str, Any]) -> Tensor:
    attrs = (("size", size), *((name, _per_dim(name, values, 2)) for name, values in windows.items()))
    unbatched = x._type.ndim == batched_ndim - 1
    output = call(op, (views.unsqueeze(x, 0) if unbatched else x,), attrs)
    return views.squeeze(output, 0) if unbatched else output


def unfold(input: Tensor, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1) -> Tensor:
    """The windows of images, each as one column. See `torch.nn.functional.unfold`."""
    x = require_tensor("unfold", input)
    windows = {"kernel": kernel_size, "dilation": dilation, "padding": padding, "stride": stride}
    return _columns(OPS["im2col"], x, 4, x._type.shape[-2:], windows)


def fold(
    input: Tensor, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Tensor:
    """Images from columns: each column is added at the position of its window. See `torch.nn.functional.fold`."""
    windows = {"kernel": kernel_size, "dilation": dilation, "padding": padding, "stride": stride}
    return _columns(OPS["col2im"], require_tensor("fold", input), 3, _per_dim("output_size", output_size, 2), windows)


def _power_pool(dims: int) -> TensorFunction:
    def pool(input: Tensor, norm_type: float, kernel_size: Any, stride: Any = None, ceil_mode: bool = False) -> Tensor:
        sizes = (kernel_size,) * dims if isinstance(kernel_size, int) else tuple(kernel_size)
        mean = average(require_tensor(pool.__name__, input) ** norm_type, sizes, stride, 0, ceil_mode)
        norms: Tensor = (pointwise.sign(mean) * pointwise.relu(pointwise.abs(mean)) * prod(sizes)) ** (1.0 / norm_type)
        return norms

    average = (avg_pool1d, avg_pool2d, avg_pool3d)[dims - 1]
    return _named(pool, f"lp_pool{dims}d", f"The p-norm of each window of {SHAPES[dims]}.")


lp_pool1d, lp_pool2d, lp_pool3d = map(_power_pool, (1, 2, 3))
