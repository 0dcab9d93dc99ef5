"""torchvision on images that are tensors of GT: transforms give tensors of GT, `save_image` and others read them."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from gt.interop.values import with_values


def adapt(module: Any) -> None:
    """Let the module's own functions accept GT's tensors."""
    for name, function in list(vars(module).items()):
        if isinstance(function, FunctionType) and function.__module__ == module.__name__ and name[0] != "_":
            setattr(module, name, with_values(function, back=True))
