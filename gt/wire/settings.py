"""Settings that only a server or only workers read. A client of a running server is told if it sets one in vain.

Peers tell each other which of these settings are on: their names, never their values.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable

SERVER_SETTINGS = (
    *("GT_CUDA_IPC", "GT_DEBUG_DISPATCHER", "GT_FLAT_COLLECTIVES", "GT_INSTRUCTION_LOG", "GT_NO_PREFETCH"),
    "GT_VERBOSE",
    "GT_WORKER_BATCH_SIZE",
)
WORKER_SETTINGS = (
    *("GT_AUTO_COMPILE", "GT_CACHE_DIR", "GT_COMPILE", "GT_DEBUG_COMPILE", "GT_DEBUG_WORKER", "GT_NCCL_SHARED"),
    "GT_VERBOSE",
)


def settings_on(names: Iterable[str]) -> list[str]:
    """Those of these settings that are on in this process."""
    return [name for name in names if os.environ.get(name, "0") not in ("", "0")]


def unread_settings(on: Collection[str], has_workers: bool) -> dict[str, str]:
    """Settings that are on in this process only, and who reads them. ``on``: those of the server and its workers.

    If no worker is connected, it is not known which settings workers will have.
    """
    readers = {name: "workers" for name in settings_on(WORKER_SETTINGS) if has_workers}
    readers |= dict.fromkeys(settings_on(SERVER_SETTINGS), "the server")
    return {name: reader for name, reader in sorted(readers.items()) if name not in on}
