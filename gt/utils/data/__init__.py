"""``gt.utils.data``: torch's datasets, samplers and loaders, where torch is installed. Batches are tensors of GT."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from gt.missing import missing


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"gt.utils.data.{name} does not exist", name=name)
    try:
        dataloader = import_module("gt.utils.data.dataloader")
    except ModuleNotFoundError:
        # not an AttributeError: ``from gt.utils.data import …`` would replace its text
        raise ImportError(
            f"gt.utils.data.{name} is torch's, and torch is not installed; any iterable of arrays works in place of a "
            "loader, and gt.to_device sends its batches ahead: for x, y in gt.to_device(loader)"
        ) from None
    try:
        return getattr(dataloader, name, None) or getattr(dataloader.torch_data, name)
    except AttributeError:
        raise missing("utils.data", name) from None
