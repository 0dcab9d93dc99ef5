"""Inputs a piece is given for good: it may write a result where one of them lies.

``w = w - rate * g`` frees one tensor and makes another just like it. By steps both are there for a moment. A graph
would read the old one from where the last run wrote it, and so copy it to where it reads; with the result in the
input's place everything stays where it is, as if the program had said ``w -= …``.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from gt.types import TensorType
from gt.worker.hot.piece import Piece

#: who holds an input that nobody else does: the store, the list it is given in, and the call that asks
OWN_REFERENCES = 3


def donations(piece: Piece, inputs: list[Any]) -> dict[int, int]:
    """Which result (by its place among them) takes which input's memory."""
    types = _types(piece)
    if any(t.dtype.kind in "iu" for t in types.values()):
        return {}  # an index may be out of range: then what does not depend on it is computed all the same
    shown = roots(piece)
    written = {shown[k] for step in piece.steps if step.signature.into for k in step.results}
    behind_views = {shown[k] for k in piece.results}
    free: dict[TensorType, list[int]] = {}
    for i in piece.freed:
        if i in types and i not in written and i not in behind_views and exclusive(inputs, (i,)):
            free.setdefault(types[i], []).append(i)
    found = {}
    for at, k in enumerate(piece.results):
        if k >= piece.inputs and shown[k] == k and (same := free.get(types[k])):
            found[at] = same.pop(0)
    return found


def exclusive(inputs: list[Any], which: Any) -> bool:
    """Does nobody else hold them, or show their memory? They must be dense: a result is."""
    for i in which:
        if sys.getrefcount(inputs[i]) > OWN_REFERENCES or not inputs[i].is_contiguous():
            return False
        storage = inputs[i].untyped_storage()
        # the object just made holds it, too
        if torch._C._storage_Use_Count(storage._cdata) > 2 or storage.nbytes() != inputs[i].nbytes:
            return False
    return True


def roots(piece: Piece) -> dict[int, int]:
    """For each slot the one whose memory it shows: itself, but for views."""
    found = {k: k for k in range(piece.inputs)}
    for step in piece.steps:
        if not step.signature.into:
            base = step.operands[0] if step.signature.op.view else None
            found.update((k, k if base is None else found[base]) for k in step.results)
    return found


def _types(piece: Piece) -> dict[int, TensorType]:
    found: dict[int, TensorType] = {}
    for step in piece.steps:
        for k, t in zip(step.operands, step.signature.ins, strict=True):
            if isinstance(t, TensorType):
                found[k] = t
        found.update(zip(step.results, step.signature.outs, strict=True))
    return found
