"""``gt.utils._pytree``: torch's nested containers, where torch is installed. Libraries register their classes there.

Torch's code looks only at containers, so tensors of GT may be leaves.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(f"gt.utils._pytree.{name} does not exist", name=name)
    return getattr(import_module("torch.utils._pytree"), name)
