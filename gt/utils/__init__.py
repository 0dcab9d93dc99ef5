"""``gt.utils``: the parts of torch.utils that scripts use. It only re-exports."""

from gt.missing import absent as _absent
from gt.utils import checkpoint, data

__all__ = ["checkpoint", "data"]
_absent("utils")
