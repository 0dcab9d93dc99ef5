"""``gt.amp``: mixed precision. `autocast` lowers the precision of ops; `GradScaler` keeps gradients in range."""

from gt.amp.autocast_mode import (
    autocast,
    custom_bwd,
    custom_fwd,
    is_autocast_available,
    is_autocast_enabled,
)
from gt.amp.grad_scaler import GradScaler
from gt.missing import absent

__all__ = ["GradScaler", "autocast", "custom_bwd", "custom_fwd", "is_autocast_available", "is_autocast_enabled"]
absent("amp")
