"""Batches on their way to the workers. Datasets and loaders are torch's, or any iterable."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from gt.client.tensor.tensor import Tensor
from gt.nn.state import value_of

__all__ = ["to_device"]


class to_device:  # noqa: N801, used like a function
    """The batches with their arrays as tensors of GT, sent so many batches before they are used.

    A batch is an array of numpy's or torch's, or tuples, lists and dicts of them; what is no array stays as it is.
    Sending does not wait for the workers, so they find their next batches there when they are done with one. It can be
    gone through as often as what it was made of, and is as long.
    """

    def __init__(self, iterable: Iterable[Any], ahead: int = 2) -> None:
        if ahead < 0:
            raise ValueError(f"to_device(…, ahead={ahead}): at least none is sent ahead")
        self._iterable, self._ahead = iterable, ahead
        self._going: Iterator[Any] | None = None

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        sent: deque[Any] = deque()
        for batch in self._iterable:
            sent.append(uploaded(batch))
            if len(sent) > self._ahead:
                yield sent.popleft()
        yield from sent

    def __next__(self) -> Any:
        """One after the other, without a loop."""
        self._going = self._going or iter(self)
        return next(self._going)


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
