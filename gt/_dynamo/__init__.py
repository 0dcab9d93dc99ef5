"""``gt._dynamo``: names of torch's tracer that libraries import. Nothing is traced, so they have no effect.

They are not public in torch, and exist here because other people's models import them.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gt.compiler import allow_in_graph, assume_constant_result, disable, is_compiling, reset

__all__ = [
    "allow_in_graph", "assume_constant_result", "config", "disable", "is_compiling", "mark_dynamic", "mark_static",
    "mark_static_address", "reset",
]  # fmt: skip

#: Settings of the tracer: what a program sets here is ignored.
config = SimpleNamespace()


def mark_static_address(t: Any, guard: bool = True) -> None:
    """Does nothing."""


def mark_static(t: Any, index: Any = None) -> None:
    """Does nothing."""


def mark_dynamic(t: Any, index: Any = None, **limits: Any) -> None:
    """Does nothing."""
