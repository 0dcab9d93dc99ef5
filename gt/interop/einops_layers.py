"""``einops.layers.gt``: the layers of einops as modules of GT, as ``einops.layers.torch`` has them for torch."""

from __future__ import annotations

from typing import Any

from einops.layers import RearrangeMixin, ReduceMixin
from einops.layers._einmix import _EinmixMixin

from gt.functions.creation import empty
from gt.functions.einsum import einsum
from gt.nn import Module, Parameter
from gt.nn.init import uniform_

__all__ = ["EinMix", "Rearrange", "Reduce"]


class Rearrange(RearrangeMixin, Module):  # type: ignore[misc]
    """`einops.rearrange` as a module."""

    def forward(self, x: Any) -> Any:
        return self._apply_recipe(x)


class Reduce(ReduceMixin, Module):  # type: ignore[misc]
    """`einops.reduce` as a module."""

    def forward(self, x: Any) -> Any:
        return self._apply_recipe(x)


def _rearrange(pattern: str | None, lengths: Any) -> Any:
    layer: Any = Rearrange
    return None if pattern is None else layer(pattern, **lengths)


class EinMix(_EinmixMixin, Module):  # type: ignore[misc]
    """A linear map between dims named by a pattern."""

    def _create_parameters(self, weight_shape: Any, weight_bound: float, bias_shape: Any, bias_bound: float) -> None:
        self.weight = Parameter(uniform_(empty(weight_shape), -weight_bound, weight_bound))
        self.bias = None if bias_shape is None else Parameter(uniform_(empty(bias_shape), -bias_bound, bias_bound))

    def _create_rearrange_layers(self, before: Any, before_lengths: Any, after: Any, after_lengths: Any) -> None:
        self.pre_rearrange = _rearrange(before, before_lengths)
        self.post_rearrange = _rearrange(after, after_lengths)

    def forward(self, x: Any) -> Any:
        if self.pre_rearrange is not None:
            x = self.pre_rearrange(x)
        x = einsum(self.einsum_pattern, x, self.weight)
        if self.bias is not None:
            x = x + self.bias
        return x if self.post_rearrange is None else self.post_rearrange(x)
