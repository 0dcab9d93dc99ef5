"""``gt.nn.attention``: how programs choose a kernel of attention, and attention with a function of the scores.

The workers choose the kernel, so the choice is accepted and ignored. It may import `gt.nn.functional` and below.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

from gt.missing import absent as _absent
from gt.nn.attention import flex_attention as flex_attention

__all__ = ["SDPBackend", "sdpa_kernel"]
_absent("nn.attention")


class SDPBackend(IntEnum):
    """Torch's names of its kernels of attention."""

    ERROR = -1
    MATH = 0
    FLASH_ATTENTION = 1
    EFFICIENT_ATTENTION = 2
    CUDNN_ATTENTION = 3
    OVERRIDEABLE = 4


@contextmanager
def sdpa_kernel(backends: Any, set_priority: bool = False) -> Iterator[None]:
    """A context without an effect: the workers choose the kernel of attention."""
    yield
