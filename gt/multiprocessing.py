"""``gt.multiprocessing``: Python's `multiprocessing`, under torch's name. Processes cannot share tensors of GT.

One program has all workers, so training needs no further processes; see docs/sharding.md.
"""

from __future__ import annotations

import multiprocessing as _python
from collections.abc import Callable
from typing import Any

from gt.errors import ConfigError
from gt.missing import ONE_PROGRAM, refuse

__all__ = ["get_all_sharing_strategies", "get_sharing_strategy", "set_sharing_strategy", "spawn"]


def __getattr__(name: str) -> Any:
    value = getattr(_python, name, None)
    return refuse("multiprocessing", name) if value is None else value


def spawn(
    fn: Callable[..., Any],
    args: tuple[Any, ...] = (),
    nprocs: int = 1,
    join: bool = True,
    daemon: bool = False,
    start_method: str = "spawn",
) -> None:
    """Call ``fn(0, *args)`` here if one process is wanted. Several are refused: one program has all workers."""
    if nprocs != 1:
        raise ConfigError(f"gt.multiprocessing.spawn(nprocs={nprocs}): {ONE_PROGRAM}")
    fn(0, *args)


def get_all_sharing_strategies() -> set[str]:
    """Torch's name for how tensors reach other processes; there is only the default."""
    return {"file_descriptor"}


def get_sharing_strategy() -> str:
    """Always torch's default."""
    return "file_descriptor"


def set_sharing_strategy(new_strategy: str) -> None:
    """Accepted and ignored: processes do not share tensors of GT."""
