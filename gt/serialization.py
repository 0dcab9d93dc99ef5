"""``gt.serialization``: `gt.load` runs no code from a file, so torch's lists of safe classes have no effect."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from gt.missing import absent as _absent
from gt.saving import load, save

__all__ = ["add_safe_globals", "clear_safe_globals", "get_safe_globals", "load", "safe_globals", "save"]
_absent("serialization")


def add_safe_globals(safe_globals: list[Any]) -> None:
    """Do nothing: `gt.load` runs no code from a file."""


def get_safe_globals() -> list[Any]:
    """Always empty: `gt.load` runs no code from a file."""
    return []


def clear_safe_globals() -> None:
    """Do nothing: there are none."""


@contextlib.contextmanager
def safe_globals(safe_globals: list[Any]) -> Iterator[None]:
    """A context without an effect."""
    yield
