"""``gt.cuda.amp``: torch's older names for `gt.amp`."""

from __future__ import annotations

from typing import Any

from gt import amp
from gt.amp import GradScaler, custom_bwd, custom_fwd
from gt.missing import absent as _absent
from gt.types import float16

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd"]
_absent("cuda.amp")


def autocast(enabled: bool = True, dtype: Any = float16, cache_enabled: bool = True) -> amp.autocast:
    """`gt.autocast` for "cuda": a context or a decorator that runs ops in float16 where that is safe."""
    return amp.autocast("cuda", dtype, enabled, cache_enabled)
