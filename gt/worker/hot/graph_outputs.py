"""The results of a graph. Each run overwrites them, so a result that is still in use must be copied first."""

from __future__ import annotations

import sys
from typing import Any

import torch

from gt.worker.hot.guard import address


class GraphOutputs:
    """The results of one captured graph."""

    def __init__(
        self,
        results: list[Any],
        operands: list[Any],
        private: set[int],
        still_copied: set[int],
        donated: dict[int, int],
    ) -> None:
        """``private``: the operands that belong to the graph and change in each run. ``still_copied``: results that the
        earlier capture copied. ``donated``: results that are inputs; they are None in ``results``."""
        operand_at = {address(x): i for i, x in enumerate(operands) if x.numel()}
        sources = [donated[i] if i in donated else operand_at.get(address(x), -1) for i, x in enumerate(results)]
        self.donated = donated
        #: results that are copied after each run
        self.copied = {
            i
            for i, (x, k) in enumerate(zip(results, sources, strict=True))
            if i not in donated
            and (k in private or (k < 0 and i in still_copied) or (k >= 0 and x.dtype != operands[k].dtype))
        }
        #: (result, input, shape, strides, offset) of views of inputs; created in each run, so that they hold no memory
        self.views = [
            (i, k, x.shape, x.stride(), x.storage_offset() - operands[k].storage_offset())
            for i, (x, k) in enumerate(zip(results, sources, strict=True))
            if k >= 0 and i not in self.copied and i not in donated
        ]
        self.results = results
        for i, *_ in self.views:
            results[i] = None
        #: (result, its storage) of the results in the graph's memory
        self._storages: list[tuple[int, Any]] = [
            (i, results[i].untyped_storage()) for i, k in enumerate(sources) if k < 0
        ]
        self._unused_counts = self._reference_counts()

    def _reference_counts(self) -> list[tuple[int, int]]:
        """For each result in the graph's memory: Python's references to it, and the tensors that use its memory."""
        uses, references, results = torch._C._storage_Use_Count, sys.getrefcount, self.results
        return [(references(results[i]), uses(storage._cdata)) for i, storage in self._storages]

    def unused(self) -> bool:
        """Whether nothing uses a result of the last run."""
        return self._reference_counts() == self._unused_counts

    def release(self, store: dict[int, Any]) -> bool:
        """Replace the results in the store by copies. Whether nothing uses a result after that."""
        counts = zip(self._storages, self._reference_counts(), self._unused_counts, strict=True)
        for (i, storage), current, unused in counts:
            if current != unused:
                self.copied.add(i)
                _replace_by_copy(store, storage)
        return self.unused()

    def take(self, inputs: list[Any]) -> list[Any]:
        """The results of a run, for the caller."""
        copied = self.copied
        taken = [x.clone() if i in copied else x for i, x in enumerate(self.results)] if copied else self.results.copy()
        for i, k, shape, strides, offset in self.views:
            taken[i] = inputs[k].as_strided(shape, strides, inputs[k].storage_offset() + offset)
        for i, k in self.donated.items():
            taken[i] = inputs[k]
        return taken


def _replace_by_copy(store: dict[int, Any], storage: Any) -> None:
    """Copy this memory, and let every tensor of the store that uses it use the copy."""
    start, copy = storage.data_ptr(), None
    for id, x in store.items():
        if isinstance(x, torch.Tensor) and x.untyped_storage().data_ptr() == start and x.numel():
            copy = copy if copy is not None else storage.clone()
            fresh = torch.empty(0, dtype=x.dtype, device=x.device)
            store[id] = fresh.set_(copy, x.storage_offset(), x.shape, x.stride())
