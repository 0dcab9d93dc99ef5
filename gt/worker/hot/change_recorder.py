"""What changes from run to run of a section: its numbers, its inputs, and where its inputs are."""

from __future__ import annotations

import weakref
from collections import deque
from typing import Any

from gt.worker.hot.section import Section

#: Runs in a row for which a section waits at most until other sections have become graphs.
MAX_SETTLING_RUNS = 16
#: Runs without a new graph after which inputs are known to stay where they are: in the first, the other section may
#: have been interpreted before its graph was captured, and fresh inputs are found by comparing two more.
SETTLED_RUNS = 3


class ChangeRecorder:
    """Records what changes from run to run."""

    def __init__(self, section: Section) -> None:
        self._numbers: list[Any] | None = None
        self._inputs: list[Any] = []
        #: the numbers that have changed
        self.varying: set[int] = set()
        #: inputs that were other tensors in the last run than in the one before
        self.fresh: frozenset[int] = frozenset(section.freed)

    def record(self, inputs: list[Any], numbers: list[Any]) -> None:
        before, self._numbers = self._numbers, list(numbers)
        if before is not None and before != numbers:
            self.varying.update(k for k, (a, b) in enumerate(zip(before, numbers, strict=True)) if a != b)
        if self._inputs:
            pairs = enumerate(zip(self._inputs, inputs, strict=True))
            self.fresh = frozenset(i for i, (ref, x) in pairs if ref() is not x)
        self._inputs = [weakref.ref(x) for x in inputs]


class Relocations:
    """Counts how often the results of graphs move to other addresses, for all sections of a worker."""

    def __init__(self) -> None:
        self.count = 0


class Settling:
    """Whether the graphs of other sections stay as they are, as one section sees it.

    The results of a graph are at the same addresses in each run, and a graph that reads them there needs no copy of
    them. But if it is captured while the other section is still interpreted, they are other tensors in each run, and
    it copies them: the tensors that a forward pass keeps for the backward pass would exist twice.
    """

    def __init__(self, relocations: Relocations) -> None:
        self._relocations = relocations
        self._own = 0
        #: runs in a row in which they did not stay as they are
        self._unsettled = 0
        #: the relocations of others at the begin of the last runs
        self._others: deque[int] = deque(maxlen=SETTLED_RUNS)

    def begin_run(self) -> None:
        others = self._others
        others.append(self._relocations.count - self._own)
        unchanged = len(others) == SETTLED_RUNS and others[0] == others[-1]
        self._unsettled = 0 if unchanged else self._unsettled + 1

    def relocated(self) -> None:
        """The results of this section are at other addresses from now on."""
        self._relocations.count += 1
        self._own += 1

    def settled(self, fresh: Any) -> bool:
        """Whether these inputs, which were other tensors in the last run, are to be so in later runs too."""
        return not fresh or self._unsettled == 0 or self._unsettled > MAX_SETTLING_RUNS
