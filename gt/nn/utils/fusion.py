"""``gt.nn.utils.fusion``: a layer and the batch norm after it as one layer, for inference."""

from __future__ import annotations

from copy import deepcopy
from typing import TypeVar

from gt.client.tensor.tensor import Tensor
from gt.errors import ConfigError
from gt.functions.creation import ones_like, zeros_like
from gt.nn.conv import _Conv
from gt.nn.linear import Linear
from gt.nn.norm import _BatchNorm
from gt.nn.parameter import Parameter

__all__ = ["fuse_conv_bn_eval", "fuse_conv_bn_weights", "fuse_linear_bn_eval", "fuse_linear_bn_weights"]

C = TypeVar("C", bound=_Conv)
L = TypeVar("L", bound=Linear)


def fuse_conv_bn_eval(conv: C, bn: _BatchNorm, transpose: bool = False) -> C:
    """A convolution that computes what a convolution and a batch norm compute, both in evaluation mode."""
    fused, (mean, var) = deepcopy(conv), _statistics(conv, bn)
    fused.weight, fused.bias = fuse_conv_bn_weights(
        conv.weight, conv.bias, mean, var, bn.eps, bn.weight, bn.bias, transpose
    )
    return fused


def fuse_linear_bn_eval(linear: L, bn: _BatchNorm) -> L:
    """A linear layer that computes what a linear layer and a batch norm compute, both in evaluation mode."""
    if linear.out_features != bn.num_features and bn.num_features != 1:
        raise ConfigError(f"fuse_linear_bn_eval: {linear.out_features} outputs, and a norm of {bn.num_features}")
    fused, (mean, var) = deepcopy(linear), _statistics(linear, bn)
    fused.weight, fused.bias = fuse_linear_bn_weights(linear.weight, linear.bias, mean, var, bn.eps, bn.weight, bn.bias)
    return fused


def _statistics(layer: _Conv | Linear, bn: _BatchNorm) -> tuple[Tensor, Tensor]:
    if layer.training or bn.training:
        raise ConfigError("fusion is only for evaluation mode: call eval() on both modules first")
    if bn.running_mean is None or bn.running_var is None:
        raise ConfigError("fusion needs a batch norm with track_running_stats=True")
    return bn.running_mean, bn.running_var


def fuse_conv_bn_weights(
    conv_w: Tensor,
    conv_b: Tensor | None,
    bn_rm: Tensor,
    bn_rv: Tensor,
    bn_eps: float,
    bn_w: Tensor | None,
    bn_b: Tensor | None,
    transpose: bool = False,
) -> tuple[Parameter, Parameter]:
    """The weight and bias of a convolution with a batch norm after it."""
    channels = (1, -1) if transpose else (-1, 1)
    return _fuse(conv_w, conv_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, channels + (1,) * (conv_w.ndim - 2))


def fuse_linear_bn_weights(
    linear_w: Tensor,
    linear_b: Tensor | None,
    bn_rm: Tensor,
    bn_rv: Tensor,
    bn_eps: float,
    bn_w: Tensor | None,
    bn_b: Tensor | None,
) -> tuple[Parameter, Parameter]:
    """The weight and bias of a linear layer with a batch norm after it."""
    return _fuse(linear_w, linear_b, bn_rm, bn_rv, bn_eps, bn_w, bn_b, (-1, 1))


def _fuse(
    weight: Tensor,
    bias: Tensor | None,
    mean: Tensor,
    var: Tensor,
    eps: float,
    scale: Tensor | None,
    shift: Tensor | None,
    channels: tuple[int, ...],
) -> tuple[Parameter, Parameter]:
    """``channels`` is the shape in which a factor per output channel multiplies the weight."""
    factor = (ones_like(mean) if scale is None else scale) * (var + eps).rsqrt()
    fused = weight * factor.reshape(channels).to(weight.dtype)
    offset = (zeros_like(mean) if bias is None else bias) - mean
    shifted = offset * factor + (zeros_like(mean) if shift is None else shift)
    return (
        Parameter(fused.detach(), weight.requires_grad),
        Parameter(shifted.detach(), True if bias is None else bias.requires_grad),
    )
