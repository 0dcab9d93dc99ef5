"""Batches into microbatches, and what parts hand to each other: trees of tensors.

A tree is a tensor, or a tuple, list or dict of trees; any other value in it is handed on as it is. A batch is a tree,
which holds the arguments of the first part. It is cut along dim 0; sizes differ by at most one row. A batch that is a
list is cut already: its items are the microbatches, and may have any shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from typing import Any

from gt.client.tensor.tensor import Tensor
from gt.errors import ConfigError, DTypeError, ShapeError
from gt.functions.joining import cat

# -- trees ---------------------------------------------------------------------------------


def tensors_in(tree: Any) -> Iterator[Tensor]:
    """The tensors of a tree, in order."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, tuple | list | dict):
        for item in tree.values() if isinstance(tree, dict) else tree:
            yield from tensors_in(item)


def map_tensors(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """The tree with each tensor replaced. ``others``: trees of the same form, whose tensors are further arguments."""
    if isinstance(tree, Tensor):
        return function(tree, *others)
    if isinstance(tree, dict):
        result = copy(tree)  # a subclass may have attributes of its own
        for key, item in tree.items():
            result[key] = map_tensors(function, item, *[other[key] for other in others])
        return result
    if not isinstance(tree, tuple | list):
        return tree
    items = [map_tensors(function, item, *rest) for item, *rest in zip(tree, *others, strict=True)]
    if all(a is b for a, b in zip(items, tree, strict=True)):
        return tree
    kind: Any = type(tree)
    return kind(*items) if hasattr(tree, "_fields") else kind(items)


def joined(trees: Sequence[Any]) -> Any:
    """The trees of all microbatches as one: tensors are joined along dim 0; other values are the first microbatch's."""
    return map_tensors(lambda *tensors: cat(list(tensors)), *trees)


# -- cutting -------------------------------------------------------------------------------


def cut_batch(batch: Any, count: int, units: int | None = None) -> list[Any]:
    """The microbatches of a batch: ``count`` of them, or as many as a list has.

    With ``units``, a microbatch has whole units of rows: the batch has so many of them.
    """
    _check_values(batch)
    if isinstance(batch, list):
        if not batch:
            raise ShapeError("pipeline: a list of microbatches needs at least one")
        return batch
    rows = rows_of(batch)
    if rows is not None and rows < count:
        raise ShapeError(
            f"pipeline: a batch of {rows} rows cannot be cut into {count} microbatches; "
            "a list of fewer microbatches can be passed instead"
        )
    units = units or rows or 1
    sizes = [(rows or 0) // units * (units // count + (i < units % count)) for i in range(count)]
    return [_rows(batch, sum(sizes[:i]), sum(sizes[: i + 1]), rows) for i in range(count)]


def cut_targets(targets: Any, batch: Any, count: int) -> list[Any]:
    """The targets of each microbatch. They have as many rows as the batch, or a multiple, as flattened targets have."""
    if isinstance(batch, list) and not isinstance(targets, list):
        raise ConfigError("pipeline: the batch is a list of microbatches; pass a list of their targets too")
    rows, target_rows = rows_of(batch), rows_of(targets)
    if rows and target_rows is not None and target_rows % rows:
        raise ShapeError(f"pipeline: a batch of {rows} rows, and targets of {target_rows}")
    return cut_batch(targets, count, None if target_rows is None else rows)


def rows_of(batch: Any) -> int | None:
    """The number of rows of the first tensor in a batch; None if there is none, or the batch is cut already."""
    if isinstance(batch, list):
        return None
    return next((x.shape[0] for x in tensors_in(batch) if x.ndim), None)


def _check_values(tree: Any) -> None:
    """Raise DTypeError for an array of another library: it would not be cut, and each microbatch would have it all."""
    if isinstance(tree, tuple | list | dict):
        for item in tree.values() if isinstance(tree, dict) else tree:
            _check_values(item)
    elif not isinstance(tree, Tensor) and getattr(tree, "ndim", None):
        kind = f"{type(tree).__module__}.{type(tree).__name__}"
        raise DTypeError(f"pipeline: the batch has a {kind}; gt.tensor(x) makes a tensor of GT from it")


def _rows(batch: Any, start: int, end: int, rows: int | None) -> Any:
    def cut(x: Tensor) -> Tensor:
        if not x.ndim:
            return x
        if x.shape[0] != rows:
            raise ShapeError(f"pipeline: the tensors of a batch have {rows} and {x.shape[0]} rows")
        return x[start:end]

    return map_tensors(cut, batch)
