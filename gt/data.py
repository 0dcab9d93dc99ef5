"""`gt.to_device`: batches sent to the workers ahead of time. Datasets and loaders are torch's, or any iterable."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from gt.client.stream import connect
from gt.client.tensor import foreign
from gt.client.tensor.arguments import array_bytes, cast
from gt.client.tensor.emit import upload
from gt.client.tensor.tensor import Tensor
from gt.functions.creation import as_tensor
from gt.types import DType

__all__ = ["to_device"]

#: Smaller arrays are sent at once: a thread for them would cost more than the copy.
MIN_BACKGROUND_BYTES = 1 << 20


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
        return batches_ahead(self._iterable, self._ahead, lambda: loads_in_processes(self._iterable))

    def __next__(self) -> Any:
        """The next batch, for use without a loop."""
        self._iterator = self._iterator or iter(self)
        return next(self._iterator)


def loads_in_processes(loader: Any) -> bool:
    """Whether the batches come from a loader's processes, so that this program has no other use of their memory."""
    processes = getattr(loader, "num_workers", 0)
    return isinstance(processes, int) and processes > 0


def batches_ahead(batches: Iterable[Any], ahead: int, unshared: Callable[[], bool]) -> Iterator[Any]:
    """The batches as tensors, each sent ``ahead`` batches before it is used.

    While nobody else uses the memory of the newest batch (``unshared``), its bytes are sent in the background until the
    next batch is requested. Its instructions are emitted then, by the program's thread as all others.
    """
    sent: deque[Any] = deque()
    for batch in batches:
        sent.append(_convert(batch, _begin_upload if ahead and unshared() else as_tensor))
        del batch  # freeing the memory of a large batch takes long, and the background does it
        if len(sent) > ahead:
            yield sent.popleft()
        if sent:
            sent[-1] = _convert(sent[-1], _tensor)
    yield from sent


class ArrayUpload:
    """An array whose bytes are sent in the background."""

    def __init__(self, array: Any) -> None:
        import numpy as np

        #: the dtype of the tensor, if numpy has no such dtype
        self._dtype: DType | None = None
        if foreign.is_torch_tensor(array):
            array, self._dtype = foreign.array_from_torch(array)
        data, self._type = array_bytes(np.asarray(array), self._dtype)
        self._session = connect.session()
        self._upload = self._session.begin_upload(data)

    def tensor(self) -> Tensor:
        """Wait until the bytes are sent, and emit the instruction that uses them."""
        tensor = upload(self._upload, self._type, self._session)
        return tensor if self._dtype is None else cast(tensor, self._dtype)


def _begin_upload(array: Any) -> Tensor | ArrayUpload:
    large = getattr(array, "nbytes", 0) >= MIN_BACKGROUND_BYTES
    return ArrayUpload(array) if large and connect.session().uploads.may_use_background else as_tensor(array)


def _tensor(x: Any) -> Tensor:
    return x.tensor() if isinstance(x, ArrayUpload) else as_tensor(x)


def _convert(batch: Any, convert: Callable[[Any], Any]) -> Any:
    """The same structure, with ``convert`` applied to its arrays."""
    if isinstance(batch, Tensor):
        return batch
    if isinstance(batch, dict):
        return {key: _convert(value, convert) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*[_convert(value, convert) for value in batch])
    if isinstance(batch, list | tuple):
        return type(batch)([_convert(value, convert) for value in batch])
    return convert(batch) if isinstance(batch, ArrayUpload) or hasattr(batch, "__array__") else batch
