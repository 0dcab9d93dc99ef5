"""Marks in the work of a GPU: CUDA events, read when the GPU has reached them.

An event tells only the time since another one, as a float of milliseconds. So the times are counted from the last mark
that was read: the numbers stay small, and their error below a tenth of a microsecond. The first mark is made on an idle
GPU, where host and device agree on the time; this is the only time that recording waits for the GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


class CudaMarks:
    #: recording an event takes about as long as starting a small kernel
    cheap = False

    def __init__(self, device: torch.device, clock: Callable[[], int]) -> None:
        #: events that were read and can be recorded again
        self._free: list[Any] = []
        torch.cuda.synchronize(device)
        self._base = self.mark()
        self._base_ns = float(clock())

    def mark(self) -> Any:
        free = self._free
        event = free.pop() if free else torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def times(self, marks: list[Any], wait: bool) -> list[int] | None:
        last = marks[-1]
        if not last.query():
            if not wait:
                return None
            last.synchronize()
        since, start = self._base.elapsed_time, self._base_ns
        times = [start + since(event) * 1e6 for event in marks]
        self._free += marks[:-1]
        self._free.append(self._base)
        self._base, self._base_ns = last, times[-1]
        return [int(time) for time in times]
