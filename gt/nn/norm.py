"""Normalisation over the last dims, over groups of channels, or over a batch."""

from __future__ import annotations

from typing import Any

from gt.client.grad.backward import no_grad
from gt.client.tensor.tensor import Tensor
from gt.functions.creation import ones, tensor, zeros
from gt.nn import functional as F
from gt.nn import init
from gt.nn.module import Module
from gt.nn.parameter import Parameter
from gt.types import float32, int64

__all__ = [
    "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "GroupNorm", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d",
    "LayerNorm", "RMSNorm", "SyncBatchNorm",
]  # fmt: skip


def _as_shape(shape: Any) -> tuple[int, ...]:
    return (shape,) if isinstance(shape, int) else tuple(shape)


def _add_affine(module: Module, shape: Any, weight: bool, bias: bool, dtype: Any) -> None:
    dtype = dtype or float32
    module.register_parameter("weight", Parameter(ones(shape, dtype=dtype)) if weight else None)
    module.register_parameter("bias", Parameter(zeros(shape, dtype=dtype)) if bias else None)


def _reset_affine(module: Module) -> None:
    if module.weight is not None:
        init.ones_(module.weight)
    if getattr(module, "bias", None) is not None:
        init.zeros_(module.bias)


class LayerNorm(Module):
    """Normalise the last dims of each example to mean 0 and variance 1. See `torch.nn.LayerNorm`."""

    def __init__(
        self,
        normalized_shape: Any,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape, self.eps, self.elementwise_affine = _as_shape(normalized_shape), eps, elementwise_affine
        _add_affine(self, self.normalized_shape, elementwise_affine, elementwise_affine and bias, dtype)

    def reset_parameters(self) -> None:
        """Set the weight to ones and the bias to zeros."""
        _reset_affine(self)

    def forward(self, input: Tensor) -> Tensor:
        parameters = self.__dict__["_parameters"]
        try:
            weight, bias = parameters["weight"], parameters["bias"]
        except KeyError:  # one of them is computed, for example by `gt.nn.utils.parametrize`
            weight, bias = self.weight, self.bias
        return F.layer_norm(input, self.normalized_shape, weight, bias, self.eps)

    def extra_repr(self) -> str:
        affine = f"elementwise_affine={self.elementwise_affine}, bias={self.bias is not None}"
        return f"{self.normalized_shape}, eps={self.eps}, {affine}"


class RMSNorm(Module):
    """Divide the last dims of each example by their root mean square. See `torch.nn.RMSNorm`."""

    def __init__(
        self,
        normalized_shape: Any,
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.normalized_shape, self.eps, self.elementwise_affine = _as_shape(normalized_shape), eps, elementwise_affine
        weight = Parameter(ones(self.normalized_shape, dtype=dtype or float32)) if elementwise_affine else None
        self.register_parameter("weight", weight)

    def reset_parameters(self) -> None:
        """Set the weight to ones."""
        _reset_affine(self)

    def forward(self, input: Tensor) -> Tensor:
        return F.rms_norm(input, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class GroupNorm(Module):
    """Normalise groups of channels of each example. See `torch.nn.GroupNorm`."""

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        if num_channels % num_groups:
            raise ValueError(f"num_channels ({num_channels}) must be divisible by num_groups ({num_groups})")
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        _add_affine(self, num_channels, affine, affine and bias, dtype)

    def reset_parameters(self) -> None:
        """Set the weight to ones and the bias to zeros."""
        _reset_affine(self)

    def forward(self, input: Tensor) -> Tensor:
        return F.group_norm(input, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        affine = f"affine={self.affine}, bias={self.bias is not None}"
        return f"{self.num_groups}, {self.num_channels}, eps={self.eps}, {affine}"


class _BatchStatistics(Module):
    """What batch and instance norms share: the running mean and variance of their inputs."""

    #: The numbers of dims that an input may have.
    dims: tuple[int, ...] = ()

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__()
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        _add_affine(self, num_features, affine, affine and bias, dtype)
        track = track_running_stats
        self.register_buffer("running_mean", zeros(num_features, dtype=dtype or float32) if track else None)
        self.register_buffer("running_var", ones(num_features, dtype=dtype or float32) if track else None)
        self.register_buffer("num_batches_tracked", tensor(0, dtype=int64) if track else None)

    def reset_running_stats(self) -> None:
        """Set the running mean to 0 and the running variance to 1."""
        if self.track_running_stats:
            self.running_mean.zero_()
            self.running_var.fill_(1)
            self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        """Set the running statistics, the weight and the bias to their first values."""
        self.reset_running_stats()
        _reset_affine(self)

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim not in self.dims:
            expected = " or ".join(f"{n}D" for n in self.dims)
            raise ValueError(f"expected {expected} input (got {input.ndim}D input)")

    def extra_repr(self) -> str:
        return (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"bias={self.bias is not None}, track_running_stats={self.track_running_stats}"
        )


class _BatchNorm(_BatchStatistics):
    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        training, momentum, track = self.training, self.momentum, self.track_running_stats
        mean, var, count = self._statistics()
        factor = 0.0 if momentum is None else momentum
        if training and track and count is not None:
            if count._node is None:
                count.add_(1)
            else:
                with no_grad():
                    count.add_(1)
            if momentum is None:  # the mean of all batches so far: their number must be read
                factor = 1.0 / count.item()
        use_batch = training or (mean is None and var is None)
        if training and not track:
            mean = var = None
        parameters = self.__dict__["_parameters"]
        try:
            weight, bias = parameters["weight"], parameters["bias"]
        except KeyError:  # one of them is computed, for example by `gt.nn.utils.parametrize`
            weight, bias = self.weight, self.bias
        return F.batch_norm(input, mean, var, weight, bias, use_batch, factor, self.eps)

    def _statistics(self) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """The running mean and variance, and the number of batches."""
        buffers = self.__dict__["_buffers"]
        try:
            return buffers["running_mean"], buffers["running_var"], buffers["num_batches_tracked"]
        except KeyError:  # one of them is an attribute of another kind
            return self.running_mean, self.running_var, self.num_batches_tracked


class BatchNorm1d(_BatchNorm):
    """Normalise each channel of a batch of vectors or sequences. See `torch.nn.BatchNorm1d`."""

    dims = (2, 3)


class BatchNorm2d(_BatchNorm):
    """Normalise each channel of a batch of images. See `torch.nn.BatchNorm2d`."""

    dims = (4,)


class BatchNorm3d(_BatchNorm):
    """Normalise each channel of a batch of volumes. See `torch.nn.BatchNorm3d`."""

    dims = (5,)


class SyncBatchNorm(_BatchNorm):
    """Normalise each channel over the whole batch, on all workers. See `torch.nn.SyncBatchNorm`.

    All batch norms of GT do this: one program has the whole batch, wherever its blocks are. So ``process_group`` has no
    effect.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Any = None,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)
        self.process_group = process_group

    def _check_input_dim(self, input: Tensor) -> None:
        if input.ndim < 2:
            raise ValueError(f"expected at least 2D input (got {input.ndim}D input)")

    @classmethod
    def convert_sync_batchnorm(cls, module: Module, process_group: Any = None) -> Module:
        """Replace the batch norms inside a module, in place; one that is itself a batch norm becomes a new module."""
        result = module
        if isinstance(module, _BatchNorm):
            options = module.num_features, module.eps, module.momentum, module.affine, module.track_running_stats
            result = cls(*options, process_group, bias=module.bias is not None).train(module.training)
            for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
                setattr(result, name, getattr(module, name))
        for name, child in module.named_children():
            result.add_module(name, cls.convert_sync_batchnorm(child, process_group))
        return result


class _InstanceNorm(_BatchStatistics):
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype, bias=bias)

    def forward(self, input: Tensor) -> Any:
        self._check_input_dim(input)
        unbatched = input.ndim == self.dims[0]
        output = F.instance_norm(
            input.unsqueeze(0) if unbatched else input,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or not self.track_running_stats,
            0.0 if self.momentum is None else self.momentum,
            self.eps,
        )
        return output.squeeze(0) if unbatched else output


class InstanceNorm1d(_InstanceNorm):
    """Normalise each channel of each sequence. See `torch.nn.InstanceNorm1d`."""

    dims = (2, 3)


class InstanceNorm2d(_InstanceNorm):
    """Normalise each channel of each image. See `torch.nn.InstanceNorm2d`."""

    dims = (3, 4)


class InstanceNorm3d(_InstanceNorm):
    """Normalise each channel of each volume. See `torch.nn.InstanceNorm3d`."""

    dims = (4, 5)
