"""Batches on their way to the workers. Datasets and loaders are torch's, or any iterable."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from gt.client.tensor import Tensor
from gt.nn.state import value_of

__all__ = ["to_device"]


def to_device(iterable: Iterable[Any], ahead: int = 2) -> Iterator[Any]:
    """The batches with their arrays as tensors of GT, sent so many batches before they are used.

    A batch is an array of numpy's or torch's, or tuples, lists and dicts of them; what is no array stays as it is.
    Sending does not wait for the workers, so they find their next batches there when they are done with one.
    """
    if ahead < 0:
        raise ValueError(f"to_device(…, ahead={ahead}): at least none is sent ahead")
    sent: deque[Any] = deque()
    for batch in iterable:
        sent.append(uploaded(batch))
        if len(sent) > ahead:
            yield sent.popleft()
    yield from sent


def uploaded(batch: Any) -> Any:
    """The same structure with tensors of GT for arrays."""
    if isinstance(batch, Tensor) or not (hasattr(batch, "__array__") or isinstance(batch, dict | list | tuple)):
        return batch
    if isinstance(batch, dict):
        return {key: uploaded(value) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(uploaded, batch))
    if isinstance(batch, list | tuple):
        return type(batch)(map(uploaded, batch))
    return value_of(batch)
