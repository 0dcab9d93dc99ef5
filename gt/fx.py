"""``gt.fx``: only `wrap`, which models call for functions that torch's tracer should not look into, and `Proxy`."""

from __future__ import annotations

from typing import Any, TypeVar

from gt.errors import ConfigError
from gt.missing import absent as _absent

__all__ = ["Proxy", "wrap"]
_absent("fx")

F = TypeVar("F")


def wrap(fn_or_name: F) -> F:
    """The function or name itself: nothing is traced."""
    return fn_or_name


class Proxy:
    """Only a name: no tensor is one, because nothing is traced."""

    def __init__(self, node: Any = None, tracer: Any = None) -> None:
        raise ConfigError("gt.fx.Proxy: nothing is traced; gt.compile makes repeated calls fast")
