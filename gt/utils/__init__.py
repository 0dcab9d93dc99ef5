"""``gt.utils``: the parts of torch.utils that scripts use. It only re-exports."""

from importlib import import_module as _import_module
from typing import Any

from gt.missing import refuse as _refuse
from gt.utils import checkpoint, data

__all__ = ["checkpoint", "data"]


def __getattr__(name: str) -> Any:
    if name != "tensorboard":
        _refuse("utils", name)
    return _import_module("gt.utils.tensorboard")  # it needs torch
