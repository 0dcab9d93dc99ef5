"""einops on GT's tensors: `rearrange`, `reduce`, `repeat`, `einsum`, `pack` and `unpack`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from einops._backends import AbstractBackend

from gt.client.tensor.tensor import Tensor
from gt.functions.creation import arange, from_numpy
from gt.functions.einsum import einsum
from gt.functions.joining import cat, stack


class GtBackend(AbstractBackend):  # type: ignore[misc]
    """What einops calls. It finds this class among the subclasses of its base class."""

    framework_name = "gt"

    def is_appropriate_type(self, tensor: Any) -> bool:
        return isinstance(tensor, Tensor)

    def from_numpy(self, x: Any) -> Tensor:
        return from_numpy(x)

    def to_numpy(self, x: Tensor) -> Any:
        return x.detach().numpy()

    def arange(self, start: int, stop: int) -> Tensor:
        return arange(start, stop)

    def reduce(self, x: Tensor, operation: str, axes: Any) -> Tensor:
        # min and max of a dim give indices too; amin and amax do not
        name = next(name for name in (f"a{operation}", operation) if hasattr(x, name))
        for dim in sorted(axes, reverse=True):  # one at a time: not every reduction accepts several
            x = getattr(x, name)(dim=dim)
        return x

    def transpose(self, x: Tensor, axes: Any) -> Tensor:
        return x.permute(tuple(axes))

    def stack_on_zeroth_dimension(self, tensors: list[Tensor]) -> Tensor:
        return stack(tensors)

    def add_axis(self, x: Tensor, new_position: int) -> Tensor:
        return x.unsqueeze(new_position)

    def add_axes(self, x: Tensor, n_axes: int, pos2len: dict[int, int]) -> Tensor:
        sizes = [-1] * n_axes
        for position, length in pos2len.items():
            x, sizes[position] = x.unsqueeze(position), length
        return x.expand(sizes)

    def tile(self, x: Tensor, repeats: Any) -> Tensor:
        return x.repeat(tuple(repeats))

    def concat(self, tensors: Any, axis: int) -> Tensor:
        return cat(tensors, dim=axis)

    def is_float_type(self, x: Tensor) -> bool:
        return x.is_floating_point()

    def layers(self) -> Any:
        return import_module("einops.layers.gt")

    def einsum(self, pattern: str, *x: Tensor) -> Tensor:
        return einsum(pattern, *x)


def adapt(module: Any) -> None:
    """Nothing more to do: the class above exists."""
