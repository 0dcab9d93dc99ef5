"""Python's collector of cycles, for processes whose work makes none to speak of but many small objects."""

from __future__ import annotations

import gc


def calm_collector() -> None:
    """What is loaded stays; look for cycles a hundred times less often than usual."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(70_000, 20, 100)
