"""``gt.nn``: networks."""

from gt.nn import functional

__all__ = ["functional"]
