"""The memory that a user's tensors take on a worker, held against the user's quota.

Only users with a quota have an account; the kernels of the others run as they are. An account knows an upper bound of
what is held: the sizes of all storages that were created, minus those that were found to be freed. When the bound
reaches the quota, or the list has grown enough, the freed ones are looked for. So an instruction costs the same however
many tensors there are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.errors import QuotaExceeded
from gt.ops import Signature
from gt.worker.engines import Engine, Kernel

#: A list of storages up to this length is not searched for freed ones before the quota is reached.
MIN_SEARCHED = 4096


class MemoryAccount:
    """What all sessions of one user hold on this worker; ``limit`` in bytes."""

    def __init__(self, engine: Engine, user: str, limit: int) -> None:
        self._engine, self.user, self.limit = engine, user, limit
        #: storage -> its bytes, and whether it is freed
        self._storages: dict[int, tuple[int, Callable[[], bool]]] = {}
        self._bound = 0
        self._next_search = MIN_SEARCHED

    def held(self) -> int:
        """The bytes of the storages that exist."""
        self._storages = {key: entry for key, entry in self._storages.items() if not entry[1]()}
        self._bound = sum(nbytes for nbytes, _ in self._storages.values())
        self._next_search = max(MIN_SEARCHED, 2 * len(self._storages))
        return self._bound

    def has_room(self, nbytes: int) -> bool:
        """Whether this many bytes more are within the quota."""
        return self._bound + nbytes <= self.limit or self.held() + nbytes <= self.limit

    def check(self, nbytes: int) -> None:
        """Raises QuotaExceeded if this many bytes more are not within the quota."""
        if not self.has_room(nbytes):
            raise QuotaExceeded(
                f"the memory quota of {self.user} on this worker is {_size(self.limit)}: {_size(self._bound)} are in "
                f"use, and this needs {_size(nbytes)}"
            )

    def add(self, array: Any) -> None:
        """Count the memory of an array, unless it is counted already: several arrays may share one storage."""
        key, nbytes, is_freed = self._engine.storage(array)
        known = self._storages.get(key)
        if known is not None:
            if not known[1]():
                return
            self._bound -= known[0]
        self._storages[key] = nbytes, is_freed
        self._bound += nbytes
        if len(self._storages) > self._next_search:
            self.held()

    def guard(self, signature: Signature, run: Kernel) -> Kernel:
        """The kernel of a signature, which checks the size of its results before it runs, and counts them after it."""
        if signature.op.view or signature.into:
            return run
        nbytes, several = sum(t.nbytes for t in signature.outs), len(signature.outs) > 1

        def guarded(*operands: Any) -> Any:
            self.check(nbytes)
            results = run(*operands)
            for result in results if several else (results,):
                self.add(result)
            return results

        return guarded


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f} GiB" if nbytes >= 1 << 28 else f"{nbytes / 2**20:.2f} MiB"
