"""``gt.utils.checkpoint.checkpoint``: torch's other name for `gt.checkpoint`."""

from gt.client.grad.checkpoint import checkpoint

__all__ = ["checkpoint"]
