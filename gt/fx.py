"""``gt.fx``: only `wrap`, which models call for functions that torch's tracer should not look into."""

from __future__ import annotations

from typing import TypeVar

from gt.missing import absent as _absent

__all__ = ["wrap"]
_absent("fx")

F = TypeVar("F")


def wrap(fn_or_name: F) -> F:
    """The function or name itself: nothing is traced."""
    return fn_or_name
