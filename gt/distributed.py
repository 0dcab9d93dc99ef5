"""``gt.distributed``: as ``torch.distributed`` in a program of one process. One program has all workers here.

`gt.gpu_workers` and `gt.connect` give a program several workers; see docs/sharding.md.
"""

from __future__ import annotations

import os
from typing import Any

from gt.errors import ConfigError
from gt.missing import absent as _absent

__all__ = [
    "barrier", "destroy_process_group", "get_rank", "get_world_size", "init_process_group", "is_available",
    "is_gloo_available", "is_initialized", "is_mpi_available", "is_nccl_available", "is_torchelastic_launched",
]  # fmt: skip
_absent("distributed")


def is_available() -> bool:
    """Always False: a program is one process, which has all workers."""
    return False


def is_initialized() -> bool:
    """Always False: there are no process groups."""
    return False


is_nccl_available = is_gloo_available = is_mpi_available = is_torchelastic_launched = is_available


def get_rank(group: Any = None) -> int:
    """Always 0: there is one process."""
    return 0


def get_world_size(group: Any = None) -> int:
    """Always 1: there is one process."""
    return 1


def barrier(group: Any = None, async_op: bool = False, device_ids: Any = None) -> None:
    """Do nothing: there is one process."""


def init_process_group(
    backend: Any = None,
    init_method: Any = None,
    timeout: Any = None,
    world_size: int = -1,
    rank: int = -1,
    store: Any = None,
    group_name: str = "",
    pg_options: Any = None,
    device_id: Any = None,
) -> None:
    """Do nothing for a group of one process. Several processes are refused: one program has all workers here."""
    if world_size < 0:
        world_size = int(os.environ.get("WORLD_SIZE", 1))
    if world_size > 1:
        raise ConfigError(
            f"init_process_group(): this is one of {world_size} processes, and one program has all workers here; start "
            "it once, without torchrun, and call gt.gpu_workers(n) and gt.auto_shard(), see docs/sharding.md"
        )


def destroy_process_group(group: Any = None) -> None:
    """Do nothing: there are no process groups."""
