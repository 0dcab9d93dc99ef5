"""Memory figures of the workers, under the names of ``torch.cuda``. Each function waits for the workers.

A worker with a GPU reports what torch has allocated there, for all clients. A worker on a CPU cannot, so the bytes of
this client's tensors count instead.
"""

from __future__ import annotations

from typing import Any

from gt.client.stream.connect import session


def _now(figure: str) -> int:
    return sum(s.memory.get(figure, s.client_bytes) for s in session().worker_stats())


def _most(figure: str) -> int:
    current = session()
    return sum(current.peak_memory[s.worker, figure] for s in current.worker_stats())


def memory_allocated(device: Any = None) -> int:
    """The bytes in use, summed over all workers. The device is ignored."""
    return _now("allocated")


def memory_reserved(device: Any = None) -> int:
    """The bytes that the workers' allocators keep, in use or not, summed. The device is ignored."""
    return _now("reserved")


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes in use since `reset_peak_memory_stats`, summed over all workers. The device is ignored.

    Workers on CPUs do not keep a peak: for them it is the most that any call of these functions has seen.
    """
    return _most("allocated_peak")


def max_memory_reserved(device: Any = None) -> int:
    """The most bytes that the workers' allocators kept since `reset_peak_memory_stats`, summed, likewise."""
    return _most("reserved_peak")


def reset_peak_memory_stats(device: Any = None) -> None:
    """Let `max_memory_allocated` and `max_memory_reserved` begin anew."""
    current = session()
    current.worker_stats()
    current.peak_memory.clear()


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """The free and the total bytes of the workers' GPUs, summed; (0, 0) without GPUs."""
    memories = [s.memory for s in session().worker_stats() if s.memory]
    return sum(m["total"] - m["used"] for m in memories), sum(m["total"] for m in memories)


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """One line per worker: the bytes in use, and the peak."""
    current = session()
    lines = [
        f"worker {s.worker} ({s.device}): {s.memory.get('allocated', s.client_bytes):,} bytes, "
        f"at most {current.peak_memory[s.worker, 'allocated_peak']:,}"
        for s in current.worker_stats()
    ]
    return "\n".join(lines)


reset_max_memory_allocated = reset_peak_memory_stats
