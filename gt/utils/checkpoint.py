"""``gt.utils.checkpoint.checkpoint``, which is `gt.checkpoint`."""

from gt.client.grad.checkpoint import checkpoint

__all__ = ["checkpoint"]
