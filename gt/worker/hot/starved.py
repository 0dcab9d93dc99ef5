"""Which sections become CUDA graphs by themselves: those whose instructions reach the device too slowly.

Where many small kernels follow each other, the device waits for the worker, which starts them one by one; a graph
starts all of them at once. Such a section has the same bits as before. A device that is busy anyway gains nothing, and
a graph takes memory of its own, so this is decided by what is seen: whether the device keeps up with the worker, or is
the slower of the two. The memory of all these graphs is limited.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from gt.worker.hot.section import Section

#: A shorter section gains little.
MIN_CALLS = 12
#: Of this many runs in a row ...
WINDOW = 8
#: ... the device had kept up before this many.
MIN_KEPT_UP = 6
#: The largest share of the device's memory that the results of one section, and of all of them, may take.
MAX_SECTION_SHARE, MAX_SHARE = 0.05, 0.15
#: The share of the device's memory that must be free.
MIN_FREE_SHARE = 0.5


class StarvedSections:
    """Decides for the sections of one device."""

    def __init__(self, keeps_up: Callable[[], bool], memory: Callable[[], tuple[int, int]]) -> None:
        """``keeps_up()``: whether the device is done with all but the last few messages; ``memory()``: its free bytes,
        and all of them."""
        self._keeps_up, self._memory = keeps_up, memory
        #: section -> whether the device kept up before its last runs
        self._kept_up: dict[Section, deque[bool]] = {}
        #: section -> the bytes of its results
        self._graphs: dict[Section, int] = {}

    def fits(self, section: Section) -> bool:
        """Whether the section may ever become a graph by itself."""
        total = self._memory()[1]
        return len(section.calls) >= MIN_CALLS and section.created_bytes() <= MAX_SECTION_SHARE * total

    def starves(self, section: Section) -> bool:
        """Called before each run of a section that fits: whether it becomes a graph now."""
        if section in self._graphs:
            return True
        kept_up = self._kept_up.setdefault(section, deque(maxlen=WINDOW))
        kept_up.append(self._keeps_up())
        if sum(kept_up) < MIN_KEPT_UP:
            return False
        nbytes = section.created_bytes()
        free, total = self._memory()
        if free < MIN_FREE_SHARE * total or sum(self._graphs.values()) + nbytes > MAX_SHARE * total:
            kept_up.clear()  # ask again later
            return False
        self._graphs[section] = nbytes
        return True

    def forget(self, section: Section) -> None:
        self._kept_up.pop(section, None)
        self._graphs.pop(section, None)


def on_engine(engine: Any) -> StarvedSections:
    """For the sections of an engine with a GPU."""
    import torch

    return StarvedSections(lambda: bool(engine.keeps_up), lambda: torch.cuda.mem_get_info(engine.device))
