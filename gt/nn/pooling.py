"""Pools, upsampling, and what else changes the size of an image."""

from __future__ import annotations

from typing import Any

from gt.nn.module import Module
from gt.nn.simple import REQUIRED, Show, layer, showing

__all__ = [
    "AdaptiveAvgPool1d",
    "AdaptiveAvgPool2d",
    "AdaptiveAvgPool3d",
    "AdaptiveMaxPool1d",
    "AdaptiveMaxPool2d",
    "AdaptiveMaxPool3d",
    "AvgPool1d",
    "AvgPool2d",
    "AvgPool3d",
    "ChannelShuffle",
    "CircularPad1d",
    "CircularPad2d",
    "CircularPad3d",
    "ConstantPad1d",
    "ConstantPad2d",
    "ConstantPad3d",
    "CosineSimilarity",
    "Fold",
    "LPPool1d", "LPPool2d", "LPPool3d", "LocalResponseNorm",
    "MaxPool1d",
    "MaxPool2d",
    "MaxPool3d",
    "PairwiseDistance",
    "PixelShuffle",
    "PixelUnshuffle",
    "ReflectionPad1d",
    "ReflectionPad2d",
    "ReflectionPad3d",
    "ReplicationPad1d",
    "ReplicationPad2d",
    "ReplicationPad3d",
    "Unfold",
    "Upsample",
    "UpsamplingBilinear2d",
    "UpsamplingNearest2d",
    "ZeroPad1d",
    "ZeroPad2d",
    "ZeroPad3d",
]  # fmt: skip


MAX = {
    "kernel_size": REQUIRED,
    "stride": None,
    "padding": 0,
    "dilation": 1,
    "return_indices": False,
    "ceil_mode": False,
}
AVERAGE = {"kernel_size": REQUIRED, "stride": None, "padding": 0, "ceil_mode": False, "count_include_pad": True}


def _stride_filled(cls: type[Module]) -> type[Module]:
    """A stride that is not given is the kernel's size, and is shown as such."""
    plain = cls.__init__

    def start(self: Module, *args: Any, **kwargs: Any) -> None:
        plain(self, *args, **kwargs)
        if self.stride is None:
            self.stride = self.kernel_size

    cls.__init__ = start  # type: ignore[method-assign]
    return cls


def _max(self: Any) -> str:
    return showing("kernel_size", "stride", "padding", "dilation", "ceil_mode")(self)


def _single(x: Any) -> Any:
    return x if isinstance(x, tuple) else (x,)


def _average_1d(self: Any) -> str:
    shown = {name: _single(getattr(self, name)) for name in ("kernel_size", "stride", "padding")}
    return ", ".join(f"{k}={v}" for k, v in shown.items())


MaxPool1d = _stride_filled(layer("MaxPool1d", "max_pool1d", MAX, _max))
MaxPool2d = _stride_filled(layer("MaxPool2d", "max_pool2d", MAX, _max))
MaxPool3d = _stride_filled(layer("MaxPool3d", "max_pool3d", MAX, _max))
AvgPool1d = _stride_filled(layer("AvgPool1d", "avg_pool1d", AVERAGE, _average_1d))
AvgPool2d = _stride_filled(
    layer("AvgPool2d", "avg_pool2d", {**AVERAGE, "divisor_override": None}, showing("kernel_size", "stride", "padding"))
)
AvgPool3d = _stride_filled(
    layer("AvgPool3d", "avg_pool3d", {**AVERAGE, "divisor_override": None}, showing("kernel_size", "stride", "padding"))
)


def _adaptive(name: str, function: str) -> type[Module]:
    return layer(name, function, {"output_size": REQUIRED}, showing("output_size"))


AdaptiveAvgPool1d = _adaptive("AdaptiveAvgPool1d", "adaptive_avg_pool1d")
AdaptiveAvgPool2d = _adaptive("AdaptiveAvgPool2d", "adaptive_avg_pool2d")
AdaptiveMaxPool1d = _adaptive("AdaptiveMaxPool1d", "adaptive_max_pool1d")
AdaptiveMaxPool2d = _adaptive("AdaptiveMaxPool2d", "adaptive_max_pool2d")
AdaptiveAvgPool3d = _adaptive("AdaptiveAvgPool3d", "adaptive_avg_pool3d")
AdaptiveMaxPool3d = _adaptive("AdaptiveMaxPool3d", "adaptive_max_pool3d")
POWER = {"norm_type": REQUIRED, "kernel_size": REQUIRED, "stride": None, "ceil_mode": False}
LPPool1d, LPPool2d, LPPool3d = (layer(f"LPPool{n}d", f"lp_pool{n}d", POWER, showing(*POWER)) for n in (1, 2, 3))
WINDOWS = {"kernel_size": REQUIRED, "dilation": 1, "padding": 0, "stride": 1}
Unfold = layer("Unfold", "unfold", WINDOWS, showing(*WINDOWS))
Fold = layer("Fold", "fold", {"output_size": REQUIRED, **WINDOWS}, showing("output_size", *WINDOWS))
ChannelShuffle = layer("ChannelShuffle", "channel_shuffle", {"groups": REQUIRED}, showing("groups"))
LocalResponseNorm = layer(
    "LocalResponseNorm",
    "local_response_norm",
    {"size": REQUIRED, "alpha": 1e-4, "beta": 0.75, "k": 1.0},
    lambda self: f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}",
)


def _upsample(self: Any) -> str:
    first = f"scale_factor={self.scale_factor!r}" if self.scale_factor is not None else f"size={self.size!r}"
    return f"{first}, mode={self.mode!r}"


UPSAMPLE = {
    "size": None, "scale_factor": None, "mode": "nearest", "align_corners": None, "recompute_scale_factor": None,
}  # fmt: skip
_PlainUpsample = layer("Upsample", "interpolate", UPSAMPLE, _upsample)


class Upsample(_PlainUpsample):  # type: ignore[valid-type, misc]
    """See `torch.nn.Upsample`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        factor: Any = self.__dict__["scale_factor"]
        if factor is not None:
            self.scale_factor = tuple(map(float, factor)) if isinstance(factor, tuple) else float(factor)


class UpsamplingNearest2d(Upsample):
    """See `torch.nn.UpsamplingNearest2d`."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, mode="nearest")


class UpsamplingBilinear2d(Upsample):
    """See `torch.nn.UpsamplingBilinear2d`."""

    def __init__(self, size: Any = None, scale_factor: Any = None) -> None:
        super().__init__(size, scale_factor, mode="bilinear", align_corners=True)


PixelShuffle = layer("PixelShuffle", "pixel_shuffle", {"upscale_factor": REQUIRED}, showing("upscale_factor"))
PixelUnshuffle = layer("PixelUnshuffle", "pixel_unshuffle", {"downscale_factor": REQUIRED}, showing("downscale_factor"))
_distance: Show = lambda self: ""
CosineSimilarity = layer("CosineSimilarity", "cosine_similarity", {"dim": 1, "eps": 1e-8}, _distance)
PairwiseDistance = layer("PairwiseDistance", "pairwise_distance", {"p": 2.0, "eps": 1e-6, "keepdim": False}, _distance)


def _padding(name: str, mode: str, dims: int) -> type[Module]:
    from gt.nn import functional as F

    class Pad(Module):
        def __init__(self, padding: Any, value: float = 0.0) -> None:
            super().__init__()
            self.padding = (padding,) * (2 * dims) if isinstance(padding, int) else tuple(padding)
            if mode == "constant":
                self.value = value

        def forward(self, input: Any) -> Any:
            return F.pad(input, self.padding, mode, *([self.value] if mode == "constant" else []))

        def extra_repr(self) -> str:
            value = mode == "constant" and not name.startswith("Zero")
            return f"padding={self.padding}, value={self.value}" if value else f"{self.padding}"

    Pad.__name__ = Pad.__qualname__ = name
    return Pad


ConstantPad1d, ConstantPad2d, ConstantPad3d = (_padding(f"ConstantPad{n}d", "constant", n) for n in (1, 2, 3))
ZeroPad1d, ZeroPad2d, ZeroPad3d = (_padding(f"ZeroPad{n}d", "constant", n) for n in (1, 2, 3))
ReflectionPad1d, ReflectionPad2d, ReflectionPad3d = (_padding(f"ReflectionPad{n}d", "reflect", n) for n in (1, 2, 3))
ReplicationPad1d, ReplicationPad2d, ReplicationPad3d = (
    _padding(f"ReplicationPad{n}d", "replicate", n) for n in (1, 2, 3)
)
CircularPad1d, CircularPad2d, CircularPad3d = (_padding(f"CircularPad{n}d", "circular", n) for n in (1, 2, 3))
