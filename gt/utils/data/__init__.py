"""``gt.utils.data``: torch's datasets, samplers and loaders, where torch is installed. Batches are tensors of GT."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from gt.launch.backend import INSTALL_TORCH
from gt.missing import refuse


def __getattr__(name: str) -> Any:
    if name == "__all__" and (dataloader := _dataloader()) is not None:  # for ``from gt.utils.data import *``
        return [name for name in dataloader.torch_data.__all__ if not name.startswith("_")]
    if name.startswith("_"):
        raise AttributeError(f"gt.utils.data.{name} does not exist", name=name)
    dataloader = _dataloader()
    if dataloader is None:
        refuse("utils.data", name, f"gt.utils.data.{name} is torch's, and torch is not installed; {INSTALL_TORCH}")
    found = getattr(dataloader, name, None) or getattr(dataloader.torch_data, name, None)
    return refuse("utils.data", name) if found is None else found


def _dataloader() -> Any:
    """The module that needs torch; None without torch."""
    try:
        return import_module("gt.utils.data.dataloader")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        return None
