"""``gt.utils.data``: only an error, because datasets and loaders are torch's or any iterable."""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"gt.utils.data.{name} does not exist", name=name)
    # not an AttributeError: ``from gt.utils.data import …`` would replace its text
    raise ImportError(
        f"gt.utils.data.{name} does not exist: use torch's (from torch.utils.data import {name}) or any iterable "
        "of arrays, and send its batches ahead with: for x, y in gt.to_device(loader)"
    )
