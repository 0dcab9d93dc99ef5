"""Dropout of elements and of whole channels, as modules."""

from __future__ import annotations

from typing import Any

from gt.nn import functional as F
from gt.nn.module import Module

__all__ = ["AlphaDropout", "Dropout", "Dropout1d", "Dropout2d", "Dropout3d", "FeatureAlphaDropout"]


class _Dropout(Module):
    function = staticmethod(F.dropout)

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        if not 0 <= p <= 1:
            raise ValueError(f"dropout probability has to be between 0 and 1, but got {p}")
        self.p, self.inplace = p, inplace

    def forward(self, input: Any) -> Any:
        if not self.training or self.p == 0:
            return input
        return self.function(input, self.p, True, self.inplace)

    def extra_repr(self) -> str:
        return f"p={self.p}, inplace={self.inplace}"


class Dropout(_Dropout):
    """In training, set elements to 0 with probability p and scale the others. See `torch.nn.Dropout`."""


class Dropout1d(_Dropout):
    """In training, set whole channels of a sequence to 0. See `torch.nn.Dropout1d`."""

    function = staticmethod(F.dropout1d)


class Dropout2d(_Dropout):
    """In training, set whole channels of an image to 0. See `torch.nn.Dropout2d`."""

    function = staticmethod(F.dropout2d)


class Dropout3d(_Dropout):
    """In training, set whole channels of a volume to 0. See `torch.nn.Dropout3d`."""

    function = staticmethod(F.dropout3d)


class AlphaDropout(_Dropout):
    """Dropout that keeps the mean and variance of selu. See `torch.nn.AlphaDropout`."""

    function = staticmethod(F.alpha_dropout)


class FeatureAlphaDropout(_Dropout):
    """Alpha dropout of whole channels. See `torch.nn.FeatureAlphaDropout`."""

    function = staticmethod(F.feature_alpha_dropout)
