"""Modules that change the size of an image: pools, padding, upsampling. Also distances between vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.client.tensor.tensor import Tensor
from gt.nn import functional as F
from gt.nn.module import Module
from gt.nn.simple import REQUIRED, FunctionModule, Options, layer, showing

__all__ = [
    "AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveAvgPool3d", "AdaptiveMaxPool1d", "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d", "AvgPool1d", "AvgPool2d", "AvgPool3d", "ChannelShuffle", "CircularPad1d", "CircularPad2d",
    "CircularPad3d", "ConstantPad1d", "ConstantPad2d", "ConstantPad3d", "CosineSimilarity", "Fold", "LPPool1d",
    "LPPool2d", "LPPool3d", "LocalResponseNorm", "MaxPool1d", "MaxPool2d", "MaxPool3d", "PairwiseDistance",
    "PixelShuffle", "PixelUnshuffle", "ReflectionPad1d", "ReflectionPad2d", "ReflectionPad3d", "ReplicationPad1d",
    "ReplicationPad2d", "ReplicationPad3d", "Unfold", "Upsample", "UpsamplingBilinear2d", "UpsamplingNearest2d",
    "ZeroPad1d", "ZeroPad2d", "ZeroPad3d",
]  # fmt: skip


MAX = {
    "kernel_size": REQUIRED, "stride": None, "padding": 0, "dilation": 1, "return_indices": False, "ceil_mode": False,
}  # fmt: skip
AVERAGE = {"kernel_size": REQUIRED, "stride": None, "padding": 0, "ceil_mode": False, "count_include_pad": True}
#: The dims of the windows, as words in a docstring.
SHAPES = {1: "a sequence", 2: "an image", 3: "a volume"}


def _fill_stride(options: Options) -> Options:
    """Without a stride, the stride is the size of the kernel."""
    return options if options["stride"] is not None else {**options, "stride": options["kernel_size"]}


def _max_pool(rank: int) -> type[FunctionModule]:
    return layer(
        f"MaxPool{rank}d",
        f"The greatest element of each window of {SHAPES[rank]}.",
        getattr(F, f"max_pool{rank}d"),
        MAX,
        showing("kernel_size", "stride", "padding", "dilation", "ceil_mode"),
        prepare=_fill_stride,
    )


def _as_tuple(x: Any) -> Any:
    return x if isinstance(x, tuple) else (x,)


def _show_average_1d(self: Any) -> str:
    shown = {name: _as_tuple(getattr(self, name)) for name in ("kernel_size", "stride", "padding")}
    return ", ".join(f"{k}={v}" for k, v in shown.items())


def _avg_pool(rank: int) -> type[FunctionModule]:
    return layer(
        f"AvgPool{rank}d",
        f"The mean of each window of {SHAPES[rank]}.",
        getattr(F, f"avg_pool{rank}d"),
        AVERAGE if rank == 1 else {**AVERAGE, "divisor_override": None},
        _show_average_1d if rank == 1 else showing("kernel_size", "stride", "padding"),
        prepare=_fill_stride,
    )


def _adaptive(name: str, function: Callable[..., Any], what: str) -> type[FunctionModule]:
    doc = f"{what} of windows that are chosen so that the result has the requested size."
    return layer(name, doc, function, {"output_size": REQUIRED}, showing("output_size"))


MaxPool1d, MaxPool2d, MaxPool3d = map(_max_pool, (1, 2, 3))
AvgPool1d, AvgPool2d, AvgPool3d = map(_avg_pool, (1, 2, 3))
AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d = (
    _adaptive(f"AdaptiveAvgPool{n}d", getattr(F, f"adaptive_avg_pool{n}d"), "The means") for n in (1, 2, 3)
)
AdaptiveMaxPool1d, AdaptiveMaxPool2d, AdaptiveMaxPool3d = (
    _adaptive(f"AdaptiveMaxPool{n}d", getattr(F, f"adaptive_max_pool{n}d"), "The greatest elements") for n in (1, 2, 3)
)
POWER = {"norm_type": REQUIRED, "kernel_size": REQUIRED, "stride": None, "ceil_mode": False}
LPPool1d, LPPool2d, LPPool3d = (
    layer(
        f"LPPool{n}d", f"The p-norm of each window of {SHAPES[n]}.", getattr(F, f"lp_pool{n}d"), POWER, showing(*POWER)
    )
    for n in (1, 2, 3)
)
WINDOWS = {"kernel_size": REQUIRED, "dilation": 1, "padding": 0, "stride": 1}
Unfold = layer("Unfold", "The windows of an image, each as one column.", F.unfold, WINDOWS, showing(*WINDOWS))
Fold = layer(
    "Fold",
    "An image from columns: each column is added at the position of its window.",
    F.fold,
    {"output_size": REQUIRED, **WINDOWS},
    showing("output_size", *WINDOWS),
)
ChannelShuffle = layer(
    "ChannelShuffle",
    "Reorder channels: the first of each group, then the second of each group, and so on.",
    F.channel_shuffle,
    {"groups": REQUIRED},
    showing("groups"),
)
LocalResponseNorm = layer(
    "LocalResponseNorm",
    "Divide each element by a power of the mean square of the neighbouring channels.",
    F.local_response_norm,
    {"size": REQUIRED, "alpha": 1e-4, "beta": 0.75, "k": 1.0},
    lambda self: f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}",
)


def _show_upsample(self: Any) -> str:
    first = f"scale_factor={self.scale_factor!r}" if self.scale_factor is not None else f"size={self.size!r}"
    return f"{first}, mode={self.mode!r}"


def _float_factor(options: Options) -> Options:
    factor = options["scale_factor"]
    if factor is None:
        return options
    return {**options, "scale_factor": tuple(map(float, factor)) if isinstance(factor, tuple) else float(factor)}


UPSAMPLE = {
    "size": None, "scale_factor": None, "mode": "nearest", "align_corners": None, "recompute_scale_factor": None,
}  # fmt: skip
Upsample = layer(
    "Upsample",
    "Resize an image to a size or by a factor.",
    F.interpolate,
    UPSAMPLE,
    _show_upsample,
    prepare=_float_factor,
)
Upsample.name = property(lambda self: type(self).__name__, doc="The name of the class.")  # type: ignore[attr-defined]


class UpsamplingNearest2d(Upsample):  # type: ignore[valid-type, misc]
    """Resize an image by repeating the nearest element. See `torch.nn.UpsamplingNearest2d`."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, mode="nearest")


class UpsamplingBilinear2d(Upsample):  # type: ignore[valid-type, misc]
    """Resize an image by linear interpolation in both dims. See `torch.nn.UpsamplingBilinear2d`."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, mode="bilinear", align_corners=True)


PixelShuffle = layer(
    "PixelShuffle",
    "Move channels into space: a larger image with fewer channels.",
    F.pixel_shuffle,
    {"upscale_factor": REQUIRED},
    showing("upscale_factor"),
)
PixelUnshuffle = layer(
    "PixelUnshuffle",
    "Move space into channels: a smaller image with more channels.",
    F.pixel_unshuffle,
    {"downscale_factor": REQUIRED},
    showing("downscale_factor"),
)
CosineSimilarity = layer(
    "CosineSimilarity",
    "The cosine of the angle between vectors along a dim.",
    F.cosine_similarity,
    {"dim": 1, "eps": 1e-8},
    inputs="x1 x2",
)


class PairwiseDistance(Module):
    """The p-norm of the difference of vectors. See `torch.nn.PairwiseDistance`."""

    def __init__(self, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False) -> None:
        super().__init__()
        self.norm, self.eps, self.keepdim = p, eps, keepdim

    def forward(self, x1: Tensor, x2: Tensor) -> Tensor:
        return F.pairwise_distance(x1, x2, self.norm, self.eps, self.keepdim)


class _Pad(Module):
    """Padding around the last dims, in one of the modes of `torch.nn.functional.pad`."""

    mode = "constant"
    dims = 1

    def __init__(self, padding: Any) -> None:
        super().__init__()
        self.padding = (padding,) * (2 * self.dims) if isinstance(padding, int) else tuple(padding)

    def forward(self, input: Any) -> Any:
        return F.pad(input, self.padding, self.mode)

    def extra_repr(self) -> str:
        return f"{self.padding}"


class _ZeroPad(_Pad):
    value = 0.0


class _ConstantPad(_Pad):
    def __init__(self, padding: Any, value: float = 0.0) -> None:
        super().__init__(padding)
        self.value = value

    def forward(self, input: Any) -> Any:
        return F.pad(input, self.padding, "constant", self.value)

    def extra_repr(self) -> str:
        return f"padding={self.padding}, value={self.value}"


def _pads(name: str, base: type[_Pad], mode: str, what: str) -> list[type[_Pad]]:
    """The classes for one, two and three dims."""
    return [
        type(
            f"{name}{dims}d",
            (base,),
            {
                "mode": mode,
                "dims": dims,
                "__doc__": f"Pad {SHAPES[dims]} with {what}. See `torch.nn.{name}{dims}d`.",
                "__module__": "gt.nn",
            },
        )
        for dims in (1, 2, 3)
    ]


ConstantPad1d, ConstantPad2d, ConstantPad3d = _pads("ConstantPad", _ConstantPad, "constant", "one value")
ZeroPad1d, ZeroPad2d, ZeroPad3d = _pads("ZeroPad", _ZeroPad, "constant", "zeros")
ReflectionPad1d, ReflectionPad2d, ReflectionPad3d = _pads(
    "ReflectionPad", _Pad, "reflect", "the elements next to the edge, mirrored"
)
ReplicationPad1d, ReplicationPad2d, ReplicationPad3d = _pads(
    "ReplicationPad", _Pad, "replicate", "copies of the elements at the edge"
)
CircularPad1d, CircularPad2d, CircularPad3d = _pads(
    "CircularPad", _Pad, "circular", "the elements from the opposite edge"
)
