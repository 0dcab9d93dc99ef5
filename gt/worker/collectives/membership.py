"""The data of a group at one member: who is in it, and the backend that serves it."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

#: whether the group was left or broken meanwhile
Cancelled = Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Membership:
    """The members of a group as the dispatcher announced them, and the address and device of this worker."""

    group: int
    members: tuple[int, ...]
    rank: int
    store: str
    backend: str
    host: str
    device: str
    #: what only the workers of this server know (see `store`)
    data_secret: bytes = b""

    @property
    def prefix(self) -> str:
        """The beginning of the group's keys in the store."""
        return f"group {self.group}"


@dataclass(frozen=True, slots=True)
class GroupBackend:
    """A connected process group of gloo or NCCL."""

    process_group: Any
    #: whether a CUDA stream waits for its collectives
    on_stream: bool
    #: the connections to the other members, as far as they are visible -> the workers that may be at the other end
    connections: dict[socket.socket, tuple[int, ...]]
    #: called before the process group is released; may block
    shutdown: Callable[[], None]
    #: kept as long as the process group: torch holds no reference to its Python half
    store: Any = None
    #: a second backend that must stay alive as long as this one
    companion: GroupBackend | None = None
