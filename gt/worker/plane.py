"""How workers move tensors among each other: the interface; `gt.worker.collectives` is the real thing."""

from __future__ import annotations

from typing import Any, Protocol


class Broken(Exception):
    """A collective cannot end: a member is gone, or the group could not be made."""


class Flight(Protocol):
    def done(self) -> bool: ...

    def result(self) -> Any: ...


class Plane(Protocol):
    address: str

    def join(self, group: int, members: tuple[int, ...], rank: int, store: str, backend: str) -> None: ...

    def leave(self, group: int) -> None: ...

    def start(self, group: int, kind: str, array: Any, how: dict[str, Any]) -> Flight: ...
