"""``gt.ao.quantization``: two modules that mark where a model would be quantized. They change nothing."""

from __future__ import annotations

from typing import Any

from gt.missing import absent as _absent
from gt.nn.linear import Identity

__all__ = ["DeQuantStub", "QuantStub"]
_absent("ao.quantization")


class QuantStub(Identity):
    """The input itself: GT has no quantized tensors."""

    def __init__(self, qconfig: Any = None) -> None:
        super().__init__()


class DeQuantStub(QuantStub):
    """The input itself: GT has no quantized tensors."""
