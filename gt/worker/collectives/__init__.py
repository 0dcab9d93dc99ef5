"""The data plane: arrays from worker to worker, never through the dispatcher.

A *group* is a set of workers under a number the dispatcher gave it; the members' ranks are their places in it. All
members start the same collectives in the same order, so the n-th of one meets the n-th of the others. A collective
under way is a *flight*: it ends on its own, and the plane's descriptor becomes readable when one may have.

    ProcessPlane (processes.py)   between processes, over torch.distributed: gloo or NCCL
    LocalPlane (../plane_local)   between simulated workers in one thread

What `start` takes in ``how``, by kind (dims are non-negative; ``sizes`` has one entry a rank, and may hold zeros):

    all_reduce       op, own: may the array itself be written into?
    all_gather       dim, sizes: from blocks cut along dim to the whole
    reduce_scatter   dim, sizes, op: from whole terms to the own block of their combination
    all_to_all       join, join_sizes, cut, cut_sizes: from S(join) to S(cut)
    broadcast        root, shape, dtype; only the root has an array
    exchange         sends, receives: (rank, starts, sizes) regions; keeps: (from_starts, to_starts, sizes);
                     shape and dtype of the result, or None where nothing is received or kept

Until a flight is done nobody may write into the array it was started with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

#: called once, by any thread
Ended = Callable[[], None]


class Broken(Exception):
    """A collective cannot end: a member is gone, or the group could not be made."""


class Flight(Protocol):
    def done(self) -> bool:
        """Never blocks."""

    def result(self) -> Any:
        """The engine's array, new and contiguous; only when done, and only once. Raises `Broken`."""


class Plane(Protocol):
    #: "host:port" that the other members can reach; "" if there is none
    address: str

    def join(self, group: int, members: tuple[int, ...], rank: int, store: str, backend: str) -> None:
        """Returns at once; the group is made in the background. ``store`` is the address of members[0]'s plane."""

    def leave(self, group: int) -> None:
        """Flights under way break, here and at the other members. Never blocks for long."""

    def start(self, group: int, kind: str, array: Any, how: dict[str, Any], ended: Ended | None = None) -> Flight:
        """``ended`` is called just before the flight is done."""

    def reduce_all(
        self, group: int, arrays: list[Any], how: dict[str, Any], ended: Ended | None = None
    ) -> list[Flight]:
        """Several all-reduces of one dtype as one, if that gives the same bits. The arrays are copied at once."""

    def wake_fd(self) -> int:
        """Becomes readable whenever a flight may have become done."""

    def drain(self) -> None:
        """Empty that descriptor."""

    def close(self) -> None: ...
