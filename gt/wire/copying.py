"""Copies of large values, beside which other threads run."""

from __future__ import annotations


def copy_bytes(target: memoryview, source: memoryview) -> None:
    """Copy the bytes into memory of the same size. Other threads run meanwhile; they cannot if a slice is assigned."""
    import numpy as np

    np.copyto(np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8))
