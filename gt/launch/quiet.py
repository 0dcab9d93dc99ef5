"""Settings of Python's garbage collector for processes that create many small objects but few cycles."""

from __future__ import annotations

import gc


def calm_collector() -> None:
    """Exclude all present objects from collection, and collect a hundred times less often than by default."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(70_000, 20, 100)
