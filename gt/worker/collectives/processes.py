"""The data plane between processes. It imports torch when it joins its first group, not before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gt.launch.backend import INSTALL_TORCH
from gt.wire.addresses import ANY_PORT, numeric_addresses
from gt.worker.collectives.collective import NotedCollective
from gt.worker.collectives.descriptors import WakeEvent
from gt.worker.collectives.groups import WorkerGroup
from gt.worker.collectives.interface import NOTED, CollectiveHandle, OnDone
from gt.worker.collectives.membership import Membership
from gt.worker.collectives.store import StoreServer

if TYPE_CHECKING:
    from gt.worker.collectives.adapter import ArrayAdapter


class ProcessPlane:
    """``engine`` and ``device`` are the worker's. They determine the kind of a result where a rank has no array.

    ``ports``: where it may listen.
    """

    def __init__(
        self, host: str = "127.0.0.1", engine: str = "torch", device: str = "cpu", ports: range = ANY_PORT
    ) -> None:
        host = numeric_addresses(host)[0]  # connections are recognised by numeric addresses
        self._host, self._engine, self._device = host, engine, device
        # it listens from the start, so that a refused connection means a lost worker
        self._store = StoreServer(host, ports)
        self.address = self._store.address
        self._data_secret = b""
        self._groups: dict[int, WorkerGroup] = {}
        self._adapters: dict[int, ArrayAdapter] = {}
        self._wakeup = WakeEvent()

    def admit(self, data_secret: bytes) -> None:
        """Join groups with the workers that have this secret, and no others."""
        self._data_secret = data_secret
        self._store.admit(data_secret)

    def join(self, group: int, members: tuple[int, ...], rank: int, store: str, backend: str) -> None:
        assert group not in self._groups, f"group {group} was joined already"
        membership = Membership(group, members, rank, store, backend, self._host, self._device, self._data_secret)
        self._groups[group] = WorkerGroup(membership, self._wakeup.set)

    def leave(self, group: int) -> None:
        self._adapters.pop(group, None)
        if (joined := self._groups.pop(group, None)) is not None:
            joined.leave()
            if joined.membership.rank == 0:
                self._store.leave(joined.membership.prefix)

    def start(
        self, group: int, kind: str, array: Any, options: dict[str, Any], on_done: OnDone | None = None, note: int = 0
    ) -> CollectiveHandle:
        adapter, joined = self._adapter(group), self._groups[group]
        collective, ready = adapter.collective(kind, array, options, note)
        collective.on_done = on_done
        joined.start(collective, ready)
        if kind not in NOTED or joined.membership.backend != "nccl":
            return collective
        notes, _ = adapter.collective("all_reduce", adapter.int_array(note), {"op": "max", "overwrite": True}, 0)
        joined.start(notes, None)
        return NotedCollective(collective, notes)

    def reduce_all(
        self, group: int, arrays: list[Any], options: dict[str, Any], on_done: OnDone | None = None
    ) -> list[CollectiveHandle]:
        adapter, options = self._adapter(group), {**options, "overwrite": True}
        try:
            if not adapter.can_bucket:
                last = len(arrays) - 1
                copies = enumerate(map(adapter.copy, arrays))
                return [self.start(group, "all_reduce", x, options, on_done if k == last else None) for k, x in copies]
            bucket = adapter.bucket(arrays)
        except Exception as error:  # no memory: the other members must not wait for this one
            self._groups[group].fail(error)
            return [self.start(group, "all_reduce", array, options) for array in arrays]
        bucket.handle, bucket.flat = self.start(group, "all_reduce", bucket.flat, options, on_done), None
        from gt.worker.collectives.bucket import BucketHandle

        return [BucketHandle(bucket, k) for k in range(len(arrays))]

    def _adapter(self, group: int) -> ArrayAdapter:
        adapter = self._adapters.get(group)
        if adapter is None:
            try:
                from gt.worker.collectives.adapter import ArrayAdapter
            except ModuleNotFoundError as error:
                raise RuntimeError(f"workers move tensors with torch ({error}): {INSTALL_TORCH}") from None
            adapter = self._adapters[group] = ArrayAdapter(self._groups[group].membership, self._engine)
        return adapter

    def ends_on_device(self, group: int) -> bool:
        return self._groups[group].membership.backend == "nccl"

    def wake_fd(self) -> int:
        return self._wakeup.fd

    def drain(self) -> None:
        self._wakeup.clear()

    def close(self) -> None:
        for group in list(self._groups):
            self.leave(group)
        self._wakeup.close()
        self._store.close()
