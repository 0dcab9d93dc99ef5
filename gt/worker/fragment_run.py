"""One run of a fragment."""

from __future__ import annotations

from typing import Any, NamedTuple

from gt.worker.fragments import LinkedFragment
from gt.worker.space import ClientSpace


class FragmentRun(NamedTuple):
    """One run of a fragment."""

    space: ClientSpace
    client: int
    fragment: LinkedFragment
    #: the tensor id of each slot
    ids: list[int]
    #: the numbers of this run
    numbers: list[Any]

    def words(self, first: int, last: int) -> list[Any]:
        """The instructions ``first`` to ``last - 1`` as words of a stream."""
        return self.fragment.parsed.expand(self.ids, self.numbers, first, last)
