"""Batches into microbatches.

A batch is a tensor, or a tuple or dict of tensors, which are the arguments of the first part. It is cut along dim 0;
sizes differ by at most one row. A list is a batch that is cut already: its items are the microbatches, and may have any
shapes.
"""

from __future__ import annotations

from typing import Any

from gt.client.tensor.tensor import Tensor
from gt.errors import ShapeError


def cut_batch(batch: Any, count: int, units: int | None = None) -> list[Any]:
    """The microbatches of a batch: ``count`` of them, or as many as a list has.

    With ``units``, a microbatch has whole units of rows: the batch has so many of them.
    """
    if isinstance(batch, list):
        if not batch:
            raise ShapeError("pipeline: a list of microbatches needs at least one")
        return batch
    rows = rows_of(batch)
    if rows is not None and rows < count:
        raise ShapeError(f"pipeline: a batch of {rows} rows cannot be cut into {count} microbatches")
    units = units or rows or 1
    sizes = [(rows or 0) // units * (units // count + (i < units % count)) for i in range(count)]
    return [_rows(batch, sum(sizes[:i]), sum(sizes[: i + 1]), rows) for i in range(count)]


def cut_targets(targets: Any, batch: Any, count: int) -> list[Any]:
    """The targets of each microbatch. They have as many rows as the batch, or a multiple, as flattened targets have."""
    rows, target_rows = rows_of(batch), rows_of(targets)
    if rows and target_rows is not None and target_rows % rows:
        raise ShapeError(f"pipeline: a batch of {rows} rows, and targets of {target_rows}")
    return cut_batch(targets, count, None if target_rows is None else rows)


def rows_of(batch: Any) -> int | None:
    """The number of rows of the first tensor in a batch; None if there is none."""
    if isinstance(batch, Tensor):
        return batch.shape[0] if batch.ndim else None
    if isinstance(batch, tuple | dict):
        items = batch.values() if isinstance(batch, dict) else batch
        return next((rows for item in items if (rows := rows_of(item)) is not None), None)
    return None


def _rows(batch: Any, start: int, end: int, rows: int | None) -> Any:
    if isinstance(batch, Tensor) and batch.ndim:
        if batch.shape[0] != rows:
            raise ShapeError(f"pipeline: the tensors of a batch have {rows} and {batch.shape[0]} rows")
        return batch[start:end]
    if isinstance(batch, tuple):
        return tuple(_rows(item, start, end, rows) for item in batch)
    if isinstance(batch, dict):
        return {key: _rows(item, start, end, rows) for key, item in batch.items()}
    return batch


def map_tensors(function: Any, batch: Any) -> Any:
    """The batch with each tensor replaced."""
    if isinstance(batch, Tensor):
        return function(batch)
    if isinstance(batch, tuple):
        return tuple(map_tensors(function, item) for item in batch)
    if isinstance(batch, dict):
        return {key: map_tensors(function, item) for key, item in batch.items()}
    return batch
