"""``gt.utils.data``: torch's datasets, samplers and loaders, where torch is installed. Batches are tensors of GT."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from gt.missing import refuse


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"gt.utils.data.{name} does not exist", name=name)
    try:
        dataloader = import_module("gt.utils.data.dataloader")
        return getattr(dataloader, name, None) or getattr(dataloader.torch_data, name)
    except (ModuleNotFoundError, AttributeError):
        refuse("utils.data", name)
