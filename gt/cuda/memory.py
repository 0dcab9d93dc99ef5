"""Memory figures of the workers, under the names of ``torch.cuda``. Each function waits for the workers.

A worker with a GPU reports what torch has allocated there, for all clients. A worker on a CPU cannot, so the bytes of
this client's tensors count instead.
"""

from __future__ import annotations

from typing import Any

from gt.client.stream.connect import session
from gt.wire.structures import WorkerStats

#: worker -> the most bytes it has reported since `reset_peak_memory_stats`
_peaks: dict[int, int] = {}


def _stats() -> list[WorkerStats]:
    """The statistics of all workers. A worker reports its peak since the last report, so every report counts."""
    stats = session().worker_stats()
    for s in stats:
        _peaks[s.worker] = max(_peaks.get(s.worker, 0), s.memory.get("allocated_peak", s.client_bytes))
    return stats


def memory_allocated(device: Any = None) -> int:
    """The bytes in use, summed over all workers. The device is ignored."""
    return sum(s.memory.get("allocated", s.client_bytes) for s in _stats())


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes in use since `reset_peak_memory_stats`, summed over all workers. The device is ignored.

    Workers on CPUs do not keep a peak: for them it is the most that any call of these functions has seen.
    """
    return sum(_peaks[s.worker] for s in _stats())


def reset_peak_memory_stats(device: Any = None) -> None:
    """Let `max_memory_allocated` begin anew."""
    session().worker_stats()
    _peaks.clear()


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """The free and the total bytes of the workers' GPUs, summed; (0, 0) without GPUs."""
    memories = [s.memory for s in _stats() if s.memory]
    return sum(m["total"] - m["used"] for m in memories), sum(m["total"] for m in memories)


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """One line per worker: the bytes in use, and the peak."""
    lines = [
        f"worker {s.worker} ({s.device}): {s.memory.get('allocated', s.client_bytes):,} bytes, "
        f"at most {_peaks[s.worker]:,}"
        for s in _stats()
    ]
    return "\n".join(lines)


memory_reserved, max_memory_reserved = memory_allocated, max_memory_allocated
reset_max_memory_allocated = reset_peak_memory_stats
