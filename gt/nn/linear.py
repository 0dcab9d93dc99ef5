"""Linear maps, and modules that only change shapes."""

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

__all__ = ["Bilinear", "Flatten", "Identity", "Linear", "Unflatten"]


class Identity(Module):
    """The input itself; all arguments of the constructor are ignored. See `torch.nn.Identity`."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Any) -> Any:
        return input


class Linear(Module):
    """x @ weight.T + bias, with a weight and a bias that are learned. See `torch.nn.Linear`."""

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(empty((out_features, in_features), dtype=dtype or float32))
        self.register_parameter("bias", Parameter(empty(out_features, dtype=dtype or float32)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight and the bias again, as torch draws them."""
        init.kaiming_uniform_(self.weight, a=sqrt(5))
        if self.bias is not None:
            bound = init._bias_bound(self.weight)
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        parameters = self.__dict__["_parameters"]
        try:
            weight, bias = parameters["weight"], parameters["bias"]
        except KeyError:  # one of them is computed, for example by `gt.nn.utils.parametrize`
            weight, bias = self.weight, self.bias
        return F.linear(input, weight, bias)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"


class NonDynamicallyQuantizableLinear(Linear):
    """The output projection of attention; torch's name, for the same repr."""


class Bilinear(Module):
    """x1 @ weight @ x2 + bias for each output, with a learned weight and bias. See `torch.nn.Bilinear`."""

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        if in1_features <= 0:
            raise ValueError(f"in1_features must be > 0, but got {in1_features}")
        self.in1_features, self.in2_features, self.out_features = in1_features, in2_features, out_features
        self.weight = Parameter(empty((out_features, in1_features, in2_features), dtype=dtype or float32))
        self.register_parameter("bias", Parameter(empty(out_features, dtype=dtype or float32)) if bias else None)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight and the bias again, as torch draws them."""
        bound = 1 / sqrt(self.weight.shape[1])
        init.uniform_(self.weight, -bound, bound)
        if self.bias is not None:
            init.uniform_(self.bias, -bound, bound)

    def forward(self, input1: Tensor, input2: Tensor) -> Tensor:
        out, n, m = self.weight.shape
        # x1 @ weight gives each output a row of the second input's size; then the product with x2 along that row
        rows = (input1 @ self.weight.permute(1, 0, 2).reshape(n, out * m)).unflatten(-1, (out, m))
        output: Tensor = (rows @ input2.unsqueeze(-1)).squeeze(-1)
        return output if self.bias is None else output + self.bias

    def extra_repr(self) -> str:
        return (
            f"in1_features={self.in1_features}, in2_features={self.in2_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )


class Flatten(Module):
    """Merge the dims from start_dim to end_dim into one. See `torch.nn.Flatten`."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, input: Tensor) -> Any:
        return input.flatten(self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Unflatten(Module):
    """Split one dim into several. See `torch.nn.Unflatten`."""

    def __init__(self, dim: int, unflattened_size: Any) -> None:
        super().__init__()
        self.dim, self.unflattened_size = dim, tuple(unflattened_size)

    def forward(self, input: Tensor) -> Any:
        return input.unflatten(self.dim, self.unflattened_size)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, unflattened_size={self.unflattened_size}"
