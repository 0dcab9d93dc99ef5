"""``gt.backends.cudnn``: torch's switches of cuDNN. They may be set and read, and change nothing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from gt.missing import absent as _absent

__all__ = ["flags", "is_available", "version"]
_absent("backends.cudnn")

enabled, benchmark, deterministic, allow_tf32 = True, False, False, True
benchmark_limit: int | None = 10


def is_available() -> bool:
    """Always False: the client has no GPU."""
    return False


def version() -> int | None:
    """Always None: the client has no cuDNN."""
    return None


@contextlib.contextmanager
def flags(
    enabled: bool = False,
    benchmark: bool = False,
    benchmark_limit: int = 10,
    deterministic: bool = False,
    allow_tf32: bool = True,
    fp32_precision: Any = "none",
) -> Iterator[None]:
    """A context without an effect."""
    yield
