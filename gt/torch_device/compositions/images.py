"""Pools, resized and sampled images, padding and columns, with their gradients."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from gt.client.tensor.emit import call
from gt.client.tensor.tensor import Tensor
from gt.errors import ShapeError
from gt.functions import creation
from gt.functions.windows import pad
from gt.nn import _spatial
from gt.nn._functional import antialias
from gt.ops import OPS, Attrs
from gt.torch_device.gradients import gradients, pulled
from gt.types import TensorType

MAX_POOL_BACKWARD = OPS["max_pool_backward"]
AVG_POOL, ADAPTIVE_AVG, INTERPOLATE = OPS["avg_pool"], OPS["adaptive_avg_pool"], OPS["interpolate"]
GRID_SAMPLE, IM2COL, COL2IM = OPS["grid_sample"], OPS["im2col"], OPS["col2im"]
MODES, PADDING_MODES = ("bilinear", "nearest", "bicubic"), ("zeros", "border", "reflection")


def _full(values: Any, rank: int) -> tuple[int, ...]:
    return tuple(values) * rank if len(values) == 1 else tuple(values)


# -- pools ---------------------------------------------------------------------------------


def _max_pool_backward(rank: int) -> Callable[..., Tensor]:
    def backward(
        grad: Tensor, x: Tensor, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool, at: Tensor
    ) -> Tensor:
        window = *(_full(v, rank) for v in (kernel, stride or kernel, padding, dilation)), ceil_mode
        return call(MAX_POOL_BACKWARD, (grad, at), (("size", x._type.shape[-rank:]), ("window", window)))

    return backward


def _avg_pool_backward(rank: int) -> Callable[..., Any]:
    def backward(
        grad: Tensor,
        x: Tensor,
        kernel: Any,
        stride: Any,
        padding: Any,
        ceil_mode: bool,
        with_padding: bool,
        divisor: Any,
    ) -> Any:
        attrs = (
            ("kernel", _full(kernel, rank)),
            ("stride", _full(stride or kernel, rank)),
            ("padding", _full(padding, rank)),
            ("ceil_mode", ceil_mode),
            ("count_include_pad", with_padding),
            ("divisor", divisor),
        )
        return gradients(AVG_POOL, (True,), [grad], (x._type,), attrs)[0]

    return backward


def _adaptive_avg_backward(rank: int) -> Callable[..., Any]:
    return lambda grad, x: gradients(ADAPTIVE_AVG, (True,), [grad], (x._type,), (("size", grad._type.shape[-rank:]),))[
        0
    ]


def _adaptive_max(rank: int) -> Callable[..., Any]:
    function = (_spatial.adaptive_max_pool2d, _spatial.adaptive_max_pool3d)[rank - 2]
    return lambda x, size: function(x, tuple(size), return_indices=True)


def _adaptive_max_backward(rank: int) -> Callable[..., Tensor]:
    return lambda grad, x, at: call(MAX_POOL_BACKWARD, (grad, at), (("size", x._type.shape[-rank:]), ("window", ())))


def _max_unpool(rank: int) -> Callable[..., Tensor]:
    def unpool(x: Tensor, at: Tensor, size: Any, *window: Any) -> Tensor:
        lead, size = x._type.shape[:-rank], tuple(size)
        if x._type.ndim not in (rank + 1, rank + 2):
            raise ShapeError(f"max_unpool{rank}d: needs {rank + 1} or {rank + 2} dims, not {x._type}")
        if x._type.shape != at._type.shape or len(size) != rank:
            raise ShapeError(f"max_unpool{rank}d: a value of {x._type} for each position of {at._type}, size {size}")
        zeros = creation.zeros((*lead, prod(size)), dtype=x._type.dtype)
        flat = (*lead, prod(x._type.shape[-rank:]))
        return zeros.scatter(-1, at.reshape(flat), x.reshape(flat)).reshape((*lead, *size))

    return unpool


# -- resizing ------------------------------------------------------------------------------


def _resize_attrs(mode: str, size: Any, aligned: bool, scales: tuple[float | None, ...]) -> Attrs:
    rank = len(size)
    scales = (*scales, *(None,) * (rank - len(scales)))
    return (("size", tuple(size)), ("mode", mode), ("align_corners", aligned), ("scales", scales))


def _resize(mode: str, takes_corners: bool) -> tuple[Callable[..., Tensor], Callable[..., Any]]:
    """The functions of an upsampling and of its gradient."""

    def forward(x: Tensor, size: Any, *rest: Any) -> Tensor:
        aligned, scales = (rest[0], rest[1:]) if takes_corners else (False, rest)
        return call(INTERPOLATE, (x,), _resize_attrs(mode, size, aligned, scales))

    def backward(grad: Tensor, size: Any, shape: Any, *rest: Any) -> Any:
        aligned, scales = (rest[0], rest[1:]) if takes_corners else (False, rest)
        x = TensorType(tuple(shape), grad._type.dtype)
        return gradients(INTERPOLATE, (True,), [grad], (x,), _resize_attrs(mode, size, aligned, scales))[0]

    return forward, backward


#: ATen's name -> GT's mode, and whether there is an argument ``align_corners``
_UPSAMPLE = {
    "upsample_linear1d": ("linear", True),
    "upsample_bilinear2d": ("bilinear", True),
    "upsample_bicubic2d": ("bicubic", True),
    "upsample_trilinear3d": ("trilinear", True),
    **{f"upsample_nearest{rank}d": ("nearest", False) for rank in (1, 2, 3)},
    **{f"_upsample_nearest_exact{rank}d": ("nearest-exact", False) for rank in (1, 2, 3)},
}


def _antialiased(mode: str) -> tuple[Callable[..., Tensor], Callable[..., Tensor]]:
    """The same with antialiasing."""

    def forward(x: Tensor, size: Any, aligned: bool, *factors: Any) -> Tensor:
        return antialias.resized(x, mode, size, aligned, factors or (None, None))

    def backward(grad: Tensor, size: Any, shape: Any, aligned: bool, *factors: Any) -> Tensor:
        rows, columns = antialias.matrices(mode, shape[-2:], size, aligned, factors or (None, None))
        return antialias.filtered(grad, rows.T, columns.T)

    return forward, backward


# -- sampling, padding, columns ------------------------------------------------------------


def _grid_attrs(mode: int, padding_mode: int, aligned: bool) -> Attrs:
    return (("mode", MODES[mode]), ("padding_mode", PADDING_MODES[padding_mode]), ("align_corners", aligned))


def _grid_sample(x: Tensor, grid: Tensor, mode: int, padding_mode: int, aligned: bool) -> Tensor:
    return call(GRID_SAMPLE, (x, grid), _grid_attrs(mode, padding_mode, aligned))


def _grid_sample_backward(
    grad: Tensor, x: Tensor, grid: Tensor, mode: int, padding_mode: int, aligned: bool, mask: Any
) -> Any:
    return tuple(gradients(GRID_SAMPLE, mask, [grad], (x, grid), _grid_attrs(mode, padding_mode, aligned)))


def _constant_pad(x: Tensor, padding: Any, value: Any = 0) -> Tensor:
    return pad(x, padding, value=value)


def _padded(mode: str) -> Callable[..., Tensor]:
    return lambda x, padding: pad(x, padding, mode)


def _columns_attrs(size: Any, *windows: Any) -> Attrs:
    names = ("kernel", "dilation", "padding", "stride")
    return (("size", tuple(size)), *((name, _full(v, 2)) for name, v in zip(names, windows, strict=True)))


def _im2col(x: Tensor, *windows: Any) -> Tensor:
    return _batched(x, 4, lambda b: call(IM2COL, (b,), _columns_attrs(x._type.shape[-2:], *windows)))


def _col2im(x: Tensor, size: Any, *windows: Any) -> Tensor:
    return _batched(x, 3, lambda b: call(COL2IM, (b,), _columns_attrs(size, *windows)))


def _batched(x: Tensor, ndim: int, function: Callable[[Tensor], Tensor]) -> Tensor:
    return function(x) if x._type.ndim == ndim else function(x.unsqueeze(0)).squeeze(0)


def _of_rank(rank: int) -> dict[str, Callable[..., Any]]:
    """The functions of images with this many dims."""
    return {
        f"_adaptive_avg_pool{rank}d": (_spatial.adaptive_avg_pool2d, _spatial.adaptive_avg_pool3d)[rank - 2],
        f"_adaptive_avg_pool{rank}d_backward": _adaptive_avg_backward(rank),
        f"adaptive_max_pool{rank}d": _adaptive_max(rank),
        f"adaptive_max_pool{rank}d_backward": _adaptive_max_backward(rank),
        f"avg_pool{rank}d_backward": _avg_pool_backward(rank),
        f"grid_sampler_{rank}d": _grid_sample,
        f"grid_sampler_{rank}d_backward": _grid_sample_backward,
        f"max_pool{rank}d_with_indices_backward": _max_pool_backward(rank),
        f"max_unpool{rank}d": _max_unpool(rank),
    }


_PADDING = {
    f"{kind}_pad{rank}d": _padded(mode)
    for rank in (1, 2, 3)
    for kind, mode in (("reflection", "reflect"), ("replication", "replicate"))
}
_RESIZING = {
    **{name: _resize(*how) for name, how in _UPSAMPLE.items()},
    **{f"_upsample_{mode}2d_aa": _antialiased(mode) for mode in antialias.FILTERS},
}
#: overload, or name of all its overloads -> function
OVERLOADS: dict[str, Callable[..., Any]] = {
    **_of_rank(2),
    **_of_rank(3),
    **_PADDING,
    **{f"{name}_backward": pulled(function) for name, function in _PADDING.items()},
    **{name: forward for name, (forward, _) in _RESIZING.items()},
    **{f"{name}_backward": backward for name, (_, backward) in _RESIZING.items()},
    "col2im": _col2im,
    "constant_pad_nd": _constant_pad,
    "im2col": _im2col,
}
