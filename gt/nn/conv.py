"""Convolutions and transposed convolutions, as modules."""

from __future__ import annotations

from math import sqrt
from typing import Any

from gt.client.tensor.tensor import Tensor
from gt.functions.creation import empty
from gt.nn import functional as F
from gt.nn import init
from gt.nn.module import Module
from gt.nn.parameter import Parameter
from gt.types import float32

__all__ = ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]


MODES = ("zeros", "reflect", "replicate", "circular")


def _per_dim(value: Any, dims: int) -> tuple[int, ...]:
    return (value,) * dims if isinstance(value, int) else tuple(value)


class _Conv(Module):
    dims = 1
    transposed = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self._check(in_channels, out_channels, groups, padding, stride, padding_mode)
        dims = self.dims
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size, self.stride = _per_dim(kernel_size, dims), _per_dim(stride, dims)
        self.padding: Any = padding if isinstance(padding, str) else _per_dim(padding, dims)
        self.dilation, self.padding_mode = _per_dim(dilation, dims), padding_mode
        self.output_padding = (0,) * dims
        sizes = (in_channels, out_channels // groups) if self.transposed else (out_channels, in_channels // groups)
        self.weight = Parameter(empty((*sizes, *self.kernel_size), dtype=dtype or float32))
        self.register_parameter("bias", Parameter(empty(out_channels, dtype=dtype or float32)) if bias else None)
        self.reset_parameters()

    def _check(self, inputs: int, outputs: int, groups: int, padding: Any, stride: Any, mode: str) -> None:
        if groups <= 0:
            raise ValueError("groups must be a positive integer")
        if inputs % groups:
            raise ValueError("in_channels must be divisible by groups")
        if outputs % groups:
            raise ValueError("out_channels must be divisible by groups")
        if isinstance(padding, str) and padding not in ("same", "valid"):
            raise ValueError(f"Invalid padding string {padding!r}, should be one of {{'valid', 'same'}}")
        if padding == "same" and any(s != 1 for s in _per_dim(stride, self.dims)):
            raise ValueError("padding='same' is not supported for strided convolutions")
        if mode not in MODES:
            raise ValueError(f"padding_mode must be one of {set(MODES)}, but got padding_mode='{mode}'")

    def reset_parameters(self) -> None:
        """Draw the kernel and the bias again, as torch draws them."""
        init.kaiming_uniform_(self.weight, a=sqrt(5))
        if self.bias is not None:
            bound = init._bias_bound(self.weight)
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Tensor) -> Any:
        conv = getattr(F, f"conv{self.dims}d")
        if self.padding_mode == "zeros":
            return conv(input, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups)
        padded = F.pad(input, self._pad_widths(), mode=self.padding_mode)
        return conv(padded, self.weight, self.bias, self.stride, 0, self.dilation, self.groups)

    def _pad_widths(self) -> tuple[int, ...]:
        """The padding as `pad` takes it: the last dim first, before and after."""
        if self.padding == "valid":
            return (0, 0) * self.dims
        pads: list[int] = []
        for d in reversed(range(self.dims)):
            total = self.dilation[d] * (self.kernel_size[d] - 1)
            pads += [total // 2, total - total // 2] if self.padding == "same" else [self.padding[d]] * 2
        return tuple(pads)

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        zeros, one = (0,) * self.dims, (1,) * self.dims
        text += f", padding={self.padding}" if self.padding != zeros else ""
        text += f", dilation={self.dilation}" if self.dilation != one else ""
        text += f", output_padding={self.output_padding}" if self.output_padding != zeros else ""
        text += f", groups={self.groups}" if self.groups != 1 else ""
        text += ", bias=False" if self.bias is None else ""
        return text + (f", padding_mode={self.padding_mode}" if self.padding_mode != "zeros" else "")


class Conv1d(_Conv):
    """A convolution over sequences, with a kernel that is learned. See `torch.nn.Conv1d`."""


class Conv2d(_Conv):
    """A convolution over images, with a kernel that is learned. See `torch.nn.Conv2d`."""

    dims = 2


class Conv3d(_Conv):
    """A convolution over volumes, with a kernel that is learned. See `torch.nn.Conv3d`."""

    dims = 3


class _ConvTranspose(_Conv):
    transposed = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Any = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        if padding_mode != "zeros":
            raise ValueError(f'Only "zeros" padding mode is supported for {type(self).__name__}')
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias, padding_mode, dtype=dtype
        )
        self.output_padding = _per_dim(output_padding, self.dims)

    def forward(self, input: Tensor, output_size: Any = None) -> Any:
        extra = self.output_padding if output_size is None else self._output_padding_for(input, list(output_size))
        conv = getattr(F, f"conv_transpose{self.dims}d")
        return conv(input, self.weight, self.bias, self.stride, self.padding, extra, self.groups, self.dilation)

    def _output_padding_for(self, input: Tensor, requested: list[int]) -> tuple[int, ...]:
        """The output padding for an output of this size."""
        requested = requested[-self.dims :]
        sizes: Any = input.shape[-self.dims :]
        least = [
            (n - 1) * s - 2 * p + d * (k - 1) + 1
            for n, s, p, d, k in zip(sizes, self.stride, self.padding, self.dilation, self.kernel_size, strict=True)
        ]
        for size, low, s in zip(requested, least, self.stride, strict=True):
            if not low <= size <= low + s - 1:
                raise ValueError(f"requested an output size of {requested}, but valid sizes start from {least}")
        return tuple(size - low for size, low in zip(requested, least, strict=True))


class ConvTranspose1d(_ConvTranspose):
    """The transpose of a convolution over sequences. See `torch.nn.ConvTranspose1d`."""


class ConvTranspose2d(_ConvTranspose):
    """The transpose of a convolution over images. See `torch.nn.ConvTranspose2d`."""

    dims = 2


class ConvTranspose3d(_ConvTranspose):
    """The transpose of a convolution over volumes. See `torch.nn.ConvTranspose3d`."""

    dims = 3
