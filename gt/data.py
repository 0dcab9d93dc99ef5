"""`gt.to_device`: batches sent to the workers ahead of time. Datasets and loaders are torch's, or any iterable."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

from gt.client.tensor.tensor import Tensor
from gt.functions.creation import as_tensor

__all__ = ["to_device"]


class to_device:  # noqa: N801, used like a function
    """Iterate over batches as GT tensors, sent to the workers ``ahead`` batches before they are used.

    A batch is a numpy array, a torch tensor, or tuples, lists and dicts of them; other values stay as they are. Sending
    does not wait for the workers, so the next batch is there when they finish one. The result can be iterated as
    often as the iterable itself, and has the same length.

    Example::

        for x, y in gt.to_device(loader):
            train_step(x, y)
    """

    def __init__(self, iterable: Iterable[Any], ahead: int = 2) -> None:
        if ahead < 0:
            raise ValueError(f"to_device(…, ahead={ahead}): must not be negative")
        self._iterable, self._ahead = iterable, ahead
        self._iterator: Iterator[Any] | None = None

    def __len__(self) -> int:
        return len(self._iterable)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        """The loader's own attributes: ``dataset``, ``batch_size``, ``sampler``."""
        if name.startswith("_"):  # not there yet, while a copy is made
            raise AttributeError(f"to_device has no attribute {name}", name=name)
        return getattr(self._iterable, name)

    def __iter__(self) -> Iterator[Any]:
        sent: deque[Any] = deque()
        for batch in self._iterable:
            sent.append(upload_batch(batch))
            if len(sent) > self._ahead:
                yield sent.popleft()
        yield from sent

    def __next__(self) -> Any:
        """The next batch, for use without a loop."""
        self._iterator = self._iterator or iter(self)
        return next(self._iterator)


def upload_batch(batch: Any) -> Any:
    """The same structure, with GT tensors in place of arrays."""
    if isinstance(batch, Tensor) or not (hasattr(batch, "__array__") or isinstance(batch, dict | list | tuple)):
        return batch
    if isinstance(batch, dict):
        return {key: upload_batch(value) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*map(upload_batch, batch))
    if isinstance(batch, list | tuple):
        return type(batch)(map(upload_batch, batch))
    return as_tensor(batch)
