"""Which engine a worker uses if nobody says: torch where it is installed, otherwise numpy."""

from __future__ import annotations

import os
from importlib.util import find_spec

from gt.say import warn

#: How to install GT with torch.
INSTALL_TORCH = "pip install 'gt-tensor[worker]'"


def default_backend() -> str:
    """``GT_BACKEND``, or else "torch"; "numpy" without torch, which a line on stderr reports."""
    if backend := os.environ.get("GT_BACKEND"):
        return backend
    if find_spec("torch") is not None:
        return "torch"
    warn(f"torch is not installed, so GT computes with numpy, which is slow; for torch: {INSTALL_TORCH}")
    return "numpy"


def warn_about_moves(workers: int) -> None:
    """Say that several workers without torch can compute, but not exchange tensors."""
    if workers > 1 and find_spec("torch") is None:
        warn(f"torch is not installed, so the {workers} workers cannot move tensors to each other: {INSTALL_TORCH}")
