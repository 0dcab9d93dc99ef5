"""GT's own operators of torch, which traced code calls by their names: it runs where these files are imported."""

from __future__ import annotations

import contextlib
from importlib import import_module

#: the files that register them
FILES = ("gt.ops.random.philox_compiled", "gt.ops.random.philox_gpu", "gt.ops.nn.cross_entropy_gpu")


def register_operators() -> None:
    for name in FILES:
        with contextlib.suppress(ImportError):  # torch without Triton
            import_module(name)
