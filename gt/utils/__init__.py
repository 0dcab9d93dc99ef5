"""``gt.utils``: what scripts take from torch.utils."""

from gt.missing import absent as _absent
from gt.utils import checkpoint, data

__all__ = ["checkpoint", "data"]
__getattr__ = _absent("utils")
