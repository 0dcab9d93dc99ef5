"""The interface of a data plane.

A *group* is a set of workers with a number from the dispatcher; a member's rank is its index in the set. All members
start the same collectives in the same order, so the n-th collective of one member matches the n-th of the others. A
started collective is represented by a *handle*. It completes in the background. The plane's descriptor becomes readable
when a collective may have completed.

    ProcessPlane (processes.py)   between processes, over torch.distributed: gloo or NCCL
    LocalPlane (local.py)         between simulated workers in one thread

The ``options`` of `DataPlane.start`, by kind. Dims are non-negative; ``sizes`` has one entry a rank, which may be 0.

    all_reduce       op; overwrite: whether the array itself may be overwritten
    all_gather       dim, sizes: from blocks cut along dim to the whole
    reduce_scatter   dim, sizes, op: from whole terms to this rank's block of their combination
                     both: interleave: a block consists of this many pieces; in the whole the first pieces of all
                     blocks come first, then all second ones, and so on
    all_to_all       join, join_sizes, cut, cut_sizes: from S(join) to S(cut)
    broadcast        root, shape, dtype; only the root has an array
    exchange         sends, receives: (rank, starts, sizes) regions; keeps: (from_starts, to_starts, sizes);
                     shape and dtype of the result, or None if the rank receives and keeps nothing;
                     sources, targets: the ranks that have the value before and after

A broadcast and an exchange (`NOTED`) also carry a *note*, a number of each member that has the value.

Until a collective is done, the array it was started with must not be written; on its device, not before
`CollectiveHandle.wait_on_device` or `result`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

#: The kinds that carry a note.
NOTED = ("exchange", "broadcast")

#: called once, by any thread
OnDone = Callable[[], None]


class GroupBroken(Exception):
    """A collective cannot complete: a member is lost, or the group could not be created.

    ``certain``: the text names the cause. Otherwise another worker or the dispatcher may know better.
    """

    def __init__(self, text: str, certain: bool = False) -> None:
        super().__init__(text)
        self.certain = certain


class CollectiveHandle(Protocol):
    def done(self) -> bool:
        """Whether it is complete or broken. Never blocks."""

    def result(self) -> Any:
        """The engine's array, new and contiguous. Call it once, when done. Raises `GroupBroken`."""

    def wait_on_device(self) -> None:
        """When done: the device's later work begins after the collective has read its array. Returns at once."""

    def note(self) -> int:
        """For a `NOTED` kind, where there is a result: the largest note of all members. Call it after `result`."""


class DataPlane(Protocol):
    #: "host:port" that the other members can reach; "" if there is none
    address: str

    def join(self, group: int, members: tuple[int, ...], rank: int, store: str, backend: str) -> None:
        """Join a group. Returns at once: a thread creates the group. ``store`` is the address of members[0]'s plane."""

    def leave(self, group: int) -> None:
        """Leave a group. Pending collectives break, here and at the other members. Never blocks for long."""

    def start(
        self, group: int, kind: str, array: Any, options: dict[str, Any], on_done: OnDone | None = None, note: int = 0
    ) -> CollectiveHandle:
        """Start this member's part of a collective. ``on_done`` is called just before the handle is done."""

    def reduce_all(
        self, group: int, arrays: list[Any], options: dict[str, Any], on_done: OnDone | None = None
    ) -> list[CollectiveHandle]:
        """Several all-reduces of one dtype, run as one if that gives the same bits. The arrays are copied at once."""

    def ends_on_device(self, group: int) -> bool:
        """Whether collectives of a group are done when they are issued, and the device waits for the rest."""

    def wake_fd(self) -> int:
        """A descriptor that becomes readable when a collective may have completed; -1 if there is none."""

    def drain(self) -> None:
        """Make that descriptor unreadable again."""

    def close(self) -> None: ...
