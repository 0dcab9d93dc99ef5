"""Donated inputs: a section frees them, so it may write a result into their memory.

``w = w - rate * g`` frees one tensor and creates another one like it. The interpreter has both for a moment. A graph
would read ``w`` from a fixed address, and so the result of each run would have to be copied there. If the result is
written into the memory of the input, it is already at that address, as with ``w -= …``.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from gt.types import TensorType
from gt.worker.hot.section import Section

#: The references to an input that nothing else uses: the store, the list of inputs, and the argument of the call.
EXCLUSIVE_REFERENCES = 3


def donations(section: Section, inputs: list[Any]) -> dict[int, int]:
    """Which results take the memory of a freed input: index among the results -> input."""
    types = _types(section)
    if any(t.dtype.kind in "iu" for t in types.values()):
        return {}  # an index may be out of range: then the results that do not depend on it must still be computed
    roots = memory_roots(section)
    written = {roots[k] for call in section.calls if call.signature.into for k in call.results}
    roots_of_results = {roots[k] for k in section.results}
    donors: dict[TensorType, list[int]] = {}
    for i in section.freed:
        if i in types and i not in written and i not in roots_of_results and exclusive(inputs, (i,)):
            donors.setdefault(types[i], []).append(i)
    donated = {}
    for index, k in enumerate(section.results):
        if k >= section.inputs and roots[k] == k and (same_type := donors.get(types[k])):
            donated[index] = same_type.pop(0)
    return donated


def exclusive(inputs: list[Any], indices: Any) -> bool:
    """Whether nothing else refers to these inputs or their memory. They must be contiguous, because results are."""
    for i in indices:
        if sys.getrefcount(inputs[i]) > EXCLUSIVE_REFERENCES or not inputs[i].is_contiguous():
            return False
        storage = inputs[i].untyped_storage()
        # the new storage object counts as a use as well
        if torch._C._storage_Use_Count(storage._cdata) > 2 or storage.nbytes() != inputs[i].nbytes:
            return False
    return True


def memory_roots(section: Section) -> dict[int, int]:
    """For each register the register whose memory it uses: itself, except for views."""
    roots = {k: k for k in range(section.inputs)}
    for call in section.calls:
        if not call.signature.into:
            base = call.operands[0] if call.signature.op.view else None
            roots.update((k, k if base is None else roots[base]) for k in call.results)
    return roots


def _types(section: Section) -> dict[int, TensorType]:
    types: dict[int, TensorType] = {}
    for call in section.calls:
        for k, t in zip(call.operands, call.signature.ins, strict=True):
            if isinstance(t, TensorType):
                types[k] = t
        types.update(zip(call.results, call.signature.outs, strict=True))
    return types
