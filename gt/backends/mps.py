"""``gt.backends.mps``: the client computes nothing, so there is no Metal here."""

from gt.missing import absent as _absent

__all__ = ["is_available", "is_built"]
_absent("backends.mps")


def is_available() -> bool:
    """Always False: the client has no GPU."""
    return False


def is_built() -> bool:
    """Always False: the client has no GPU."""
    return False
