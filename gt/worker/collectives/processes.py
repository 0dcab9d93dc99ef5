"""The data plane between processes. torch is imported when the first group is joined, not before."""

from __future__ import annotations

import os
import socket
import threading
from typing import TYPE_CHECKING, Any

from gt.worker.collectives import Ended, Flight
from gt.worker.collectives.descriptors import Bell
from gt.worker.collectives.groups import Group, Membership

if TYPE_CHECKING:
    from gt.worker.collectives.passage import Passage


class ProcessPlane:
    """``engine`` and ``device`` are the worker's: what results are made as where no array was given."""

    def __init__(self, host: str = "127.0.0.1", engine: str = "torch", device: str = "cpu") -> None:
        host = socket.gethostbyname(host)  # connections are recognised by their numbers
        self._host, self._engine, self._device = host, engine, device
        # it listens before there is a store behind it: early members wait in line, and a refusal means a death
        self._listener = socket.create_server((host, 0), backlog=1024)
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        self._store: Any = None
        self._serving = threading.Lock()
        self._groups: dict[int, Group] = {}
        self._passages: dict[int, Passage] = {}
        self._bell = Bell()

    def join(self, group: int, members: tuple[int, ...], rank: int, store: str, backend: str) -> None:
        assert group not in self._groups, f"group {group} was joined already"
        membership = Membership(group, members, rank, store, backend, self._host, self._device)
        self._groups[group] = Group(membership, self._serve, self._bell.ring)

    def leave(self, group: int) -> None:
        self._passages.pop(group, None)
        if (known := self._groups.pop(group, None)) is not None:
            known.leave()

    def start(self, group: int, kind: str, array: Any, how: dict[str, Any], ended: Ended | None = None) -> Flight:
        flight, ready = self._passage(group).departure(kind, array, how)
        flight.told = ended
        self._groups[group].start(flight, ready)
        return flight

    def reduce_all(
        self, group: int, arrays: list[Any], how: dict[str, Any], ended: Ended | None = None
    ) -> list[Flight]:
        passage, how = self._passage(group), {**how, "own": True}
        try:
            if not passage.bundles:
                last = len(arrays) - 1
                copies = enumerate(map(passage.copy, arrays))
                return [self.start(group, "all_reduce", x, how, ended if k == last else None) for k, x in copies]
            bucket = passage.bucket(arrays)
        except Exception as error:  # no memory: the others must not wait for this one
            self._groups[group].fail(error)
            return [self.start(group, "all_reduce", array, how) for array in arrays]
        bucket.flight, bucket.flat = self.start(group, "all_reduce", bucket.flat, how, ended), None
        from gt.worker.collectives.bucket import Share

        return [Share(bucket, k) for k in range(len(arrays))]

    def _passage(self, group: int) -> Passage:
        passage = self._passages.get(group)
        if passage is None:
            from gt.worker.collectives.passage import Passage

            passage = self._passages[group] = Passage(self._groups[group].membership, self._engine)
        return passage

    def wake_fd(self) -> int:
        return self._bell.fd

    def drain(self) -> None:
        self._bell.drain()

    def close(self) -> None:
        for group in list(self._groups):
            self.leave(group)
        self._bell.close()
        self._listener.close()

    def _serve(self) -> None:
        """The store that the groups this worker leads meet at; called in their threads."""
        from gt.worker.collectives.backends import dist

        with self._serving:
            if self._store is None:
                fd = os.dup(self._listener.fileno())  # the store closes what it is given
                port = self._listener.getsockname()[1]
                self._store = dist.TCPStore(
                    self._host, port, is_master=True, wait_for_workers=False, master_listen_fd=fd
                )
