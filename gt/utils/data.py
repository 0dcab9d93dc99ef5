"""Datasets and loaders are torch's: this says so to who looks for them here."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"gt.utils.data.{name} does not exist", name=name)
    # no AttributeError: ``from gt.utils.data import …`` would put a text of its own in its place
    raise ImportError(
        f"gt.utils.data.{name} will not be there: take torch's (from torch.utils.data import {name}) or any iterable "
        "of arrays, and send its batches ahead with: for x, y in gt.to_device(loader)"
    )
