"""``gt.backends.openmp``: accepted and ignored, because the workers compute."""

from gt.missing import absent as _absent

__all__ = ["is_available"]
_absent("backends.openmp")


def is_available() -> bool:
    """Always False: the client computes nothing."""
    return False
