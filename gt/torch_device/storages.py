"""Storages of the device: the elements of a tensor in one row, which torch's own functions would look for in memory.

torch's storage has no memory and no size here, and reading it would end the process. So everything that reads or
writes one is replaced. It is done on a copy on the CPU, or refused with an error. A storage has one of:

- ``_gt``: GT's tensor, as in `gt.torch_device.handles`;
- ``_bytes``: a storage on the CPU. It is uploaded when a tensor with a shape and a dtype is set to it, as `torch.load`
  does it. If it is a mapped file, its pages are not read before.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, wraps
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import serialization
from torch.multiprocessing import reductions

from gt.client.tensor.emit import call
from gt.client.tensor.strides import memory_order, strides_of
from gt.client.tensor.tensor import Tensor
from gt.errors import GtError
from gt.torch_device.backend import NAME, Kernel, is_on_device, new_tensor, with_strides
from gt.torch_device.handles import CLONE, GT_DTYPES, TORCH_DTYPES, download, upload, wrap

Storage = Any  # torch.UntypedStorage, with the attributes above
# torch declares no types for these
_UntypedStorage: Any = torch.UntypedStorage
_validate_device: Any = serialization._validate_device
_reduce_tensor: Any = reductions.reduce_tensor
_dlpack: Any = torch.utils.dlpack


class NoMemory(GtError, RuntimeError):
    """A function of torch's asked for the memory of a tensor, which has none in the client."""


def _refuse(name: str) -> NoMemory:
    return NoMemory(f"{name}: a tensor on {NAME!r} has no memory in this process; copy it with .cpu() first")


# -- between the CPU and the device --------------------------------------------------------


def _new(content: Storage) -> Storage:
    """A storage of the device with the bytes of one on the CPU, which nobody else writes."""
    storage: Storage = new_tensor((0,), torch.uint8).untyped_storage()
    storage._bytes = content
    return storage


def to_device(storage: Storage, is_private: bool = False) -> Storage:
    """A storage on the CPU, on the device. One that is private, or a mapped file, is not copied in the client."""
    if storage.device.type == NAME:
        return storage
    content = storage.cpu()
    return _new(content if is_private or content.filename or content is not storage else content.clone())


def to_cpu(storage: Storage) -> Storage:
    """A copy of the bytes on the CPU."""
    value: Tensor | None = getattr(storage, "_gt", None)
    if value is not None:
        return download(_in_memory_order(value)).contiguous().untyped_storage()
    content = getattr(storage, "_bytes", None)
    return _UntypedStorage(0) if content is None else content.clone()


def _tensor(value: Tensor) -> torch.Tensor:
    """A tensor of torch's for a value that other tensors have too."""
    result = new_tensor(value._type.shape, TORCH_DTYPES[value._type.dtype])
    if value._strides is not None:
        result = with_strides(result, value._type.shape, value._strides)
    result.untyped_storage()._gt = value  # type: ignore[attr-defined]
    return result


def _in_memory_order(value: Tensor) -> torch.Tensor:
    """The same with its dims in the order in which they are stored."""
    return _tensor(value) if value._strides is None else _tensor(value).permute(memory_order(value._strides)[0])


def _nbytes(storage: Storage) -> int:
    value: Tensor | None = getattr(storage, "_gt", None)
    if value is not None:
        return value._type.nbytes
    content = getattr(storage, "_bytes", None)
    return 0 if content is None else int(content.nbytes())


def _copy_(storage: Storage, source: Storage, non_blocking: bool | None = None) -> Storage:
    """Write all bytes of a storage of the device, and so all tensors on it."""
    content = source.untyped().cpu()
    if content.nbytes() != _nbytes(storage):
        text = f"self was {_nbytes(storage)} bytes but src was {content.nbytes()} bytes"
        raise NoMemory(f"size does not match, {text}")
    if (value := getattr(storage, "_gt", None)) is None:
        storage._bytes = content.clone() if content is source.untyped() else content
    else:
        target = _in_memory_order(value)
        target.copy_(torch.empty(0, dtype=target.dtype).set_(content).reshape(target.shape))
    return storage


def _clone(storage: Storage) -> Storage:
    if (value := getattr(storage, "_gt", None)) is None:
        return _new(to_cpu(storage))
    return wrap(call(CLONE, (value,))).untyped_storage()


# -- tensors on a storage: `Tensor.set_`, `torch.load` -------------------------------------


def _set_storage(x: torch.Tensor, storage: Storage, offset: int = 0, size: Any = None, stride: Any = ()) -> Any:
    if storage.device.type != NAME:
        raise NoMemory(f"set_: the tensor is on {NAME!r} and the storage on {storage.device}")
    shape = (_nbytes(storage) // x.itemsize,) if size is None else tuple(size)
    strides = tuple(stride) or torch.empty(shape, device="meta").stride()
    x.data = _tensor_on(storage, x.dtype, offset, shape, strides)
    return x


def _tensor_on(
    storage: Storage, dtype: torch.dtype, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> torch.Tensor:
    if not hasattr(storage, "_gt"):
        content = getattr(storage, "_bytes", None) or _UntypedStorage(0)
        whole = torch.empty(0, dtype=dtype).set_(content)
        part = whole.as_strided(shape, strides, offset)
        # the usual case, a whole tensor, is uploaded in its own shape, as its placement may follow from that
        is_whole = part.is_contiguous() and part.numel() == whole.numel()
        storage._gt, storage._bytes = upload(part if is_whole else whole), None
    value: Tensor = storage._gt
    if GT_DTYPES.get(dtype) is not value._type.dtype:
        raise NoMemory(f"set_: the storage holds elements of {value._type.dtype}; GT cannot read them as {dtype}")
    same = _tensor(value)
    if (shape, strides, offset) == (value._type.shape, strides_of(value), 0):
        return same
    return same.as_strided(shape, strides, offset)


#: overload -> kernel
KERNELS: dict[str, Kernel] = {
    "set_.source_Storage": _set_storage,
    "set_.source_Storage_storage_offset": _set_storage,
}


def restorer(name: str) -> Callable[[Storage, str], Storage | None]:
    """For `torch.load`: puts storages on the device whose location is a device of type ``name``."""

    def restore(storage: Storage, location: str) -> Storage | None:
        if location.partition(":")[0] != name:
            return None
        _validate_device(location, name)
        return to_device(storage, is_private=True)

    return restore


# -- torch's functions ---------------------------------------------------------------------


def _item(storage: Storage, index: Any) -> Any:
    if not isinstance(index, int):
        raise _refuse("UntypedStorage[slice]")
    return to_cpu(storage)[index]


def _changed(name: str) -> Callable[..., Any]:
    """A method that changes a storage: it changes a copy on the CPU, which is written back."""

    def method(storage: Storage, *args: Any, **kwargs: Any) -> Storage:
        content = to_cpu(storage)
        getattr(content, name)(*args, **kwargs)
        return _copy_(storage, content)

    return method


def _read(name: str) -> Callable[..., Any]:
    """A method that reads a storage: it reads a copy on the CPU."""
    return lambda storage, *args, **kwargs: getattr(to_cpu(storage), name)(*args, **kwargs)


def _refused(name: str) -> Callable[..., Any]:
    def method(storage: Storage, *args: Any, **kwargs: Any) -> Any:
        raise _refuse(f"UntypedStorage.{name}")

    return method


#: The methods of `torch.UntypedStorage` that torch implements with memory.
_METHODS: dict[str, Callable[..., Any]] = {
    "__getitem__": _item,
    "__len__": _nbytes,
    "copy_": _copy_,
    "cpu": to_cpu,
    "is_pinned": lambda storage, device=None: False,
    "is_shared": lambda storage: False,
    "nbytes": _nbytes,
    "size": _nbytes,
    **{name: _changed(name) for name in ("__setitem__", "fill_", "byteswap", "_byteswap", "_set_from_file")},
    **{name: _read(name) for name in ("__iter__", "tolist", "_write_file")},
    **{name: _refused(name) for name in ("resize_", "share_memory_", "pin_memory")},
}


def install() -> None:
    storage = _UntypedStorage
    for name, method in _METHODS.items():
        setattr(storage, name, _on_device(method, getattr(storage, name)))
    storage.clone = _on_device(_clone, storage.clone)
    storage.to, storage.copy_ = _to(storage.to), _copy_from_device(storage.copy_)
    storage.__new__ = _construct(storage.__new__)
    tensor: Any = torch.Tensor
    tensor.share_memory_ = _refusing("Tensor.share_memory_", tensor.share_memory_)
    tensor.__dlpack__, tensor.__dlpack_device__ = _exported(tensor.__dlpack__), _exporter(tensor.__dlpack_device__)
    _dlpack.to_dlpack = _exported(_dlpack.to_dlpack)
    ForkingPickler.register(torch.Tensor, _reduce_for_process)
    ForkingPickler.register(torch.nn.Parameter, _reduce_for_process)
    serialization.register_package(5, lambda storage: None, restorer(NAME))


def _on_device(method: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def either(storage: Storage, *args: Any, **kwargs: Any) -> Any:
        return (method if storage.device.type == NAME else original)(storage, *args, **kwargs)

    return either


def _copy_from_device(original: Callable[..., Any]) -> Callable[..., Any]:
    """``storage.copy_(source)`` reads the source too."""

    @wraps(original)
    def copy_(storage: Storage, source: Storage, non_blocking: bool | None = None) -> Storage:
        source = source.untyped()
        return original(storage, source.cpu() if source.device.type == NAME else source, non_blocking)

    return copy_


def _to(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def to(storage: Storage, *, device: Any, non_blocking: bool = False) -> Storage:
        if torch.device(device).type == NAME:
            return to_device(storage)
        return original(storage.cpu() if storage.device.type == NAME else storage, device=device)

    return to


def _construct(original: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.UntypedStorage(8, device="gtx")``"""

    def construct(kind: Any, *args: Any, device: Any = None, **kwargs: Any) -> Storage:
        if device is None or torch.device(device).type != NAME:
            return original(kind, *args, **kwargs, **({} if device is None else {"device": device}))
        return _new(original(kind, *args, **kwargs).fill_(0))

    return construct


def _refusing(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def function(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if is_on_device(x):
            raise _refuse(name)
        return original(x, *args, **kwargs)

    return function


def _exported(original: Callable[..., Any]) -> Callable[..., Any]:
    """DLPack passes memory on: that of a copy on the CPU, unless the other side wants the tensor's own."""

    @wraps(original)
    def export(x: torch.Tensor, *args: Any, copy: bool | None = None, **options: Any) -> Any:
        if not is_on_device(x):
            export_own = partial(original, x, *args, **options)
            return export_own() if copy is None else export_own(copy=copy)
        if copy is False:
            raise BufferError(str(_refuse("__dlpack__(copy=False)")))
        return original(x.cpu(), *args, **options)

    return export


def _exporter(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def device(x: torch.Tensor) -> Any:
        return original(x if not is_on_device(x) else _ON_CPU)

    return device


_ON_CPU = torch.empty(0)


def _reduce_for_process(x: torch.Tensor) -> Any:
    """Queues of `torch.multiprocessing` share memory; the values of the device's tensors are sent instead."""
    if not is_on_device(x):
        return _reduce_tensor(x)
    return torch._utils._rebuild_device_tensor_from_cpu_tensor, (x.detach().cpu(), x.dtype, NAME, x.requires_grad)
