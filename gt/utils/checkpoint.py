"""``gt.utils.checkpoint``: torch's other place for `gt.checkpoint`, and checkpoints of a chain of modules."""

from gt.client.grad.checkpoint import checkpoint, checkpoint_sequential
from gt.missing import absent as _absent

__all__ = ["checkpoint", "checkpoint_sequential"]
_absent("utils.checkpoint")
