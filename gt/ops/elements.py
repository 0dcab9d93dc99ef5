"""Converts numbers and bytes to elements of a tensor, where the engines themselves would differ."""

from __future__ import annotations

from math import isinf, prod
from typing import Any


def element(np: Any, value: Any, dtype: Any) -> Any:
    """A Python number as a numpy element. As in torch, one that the dtype cannot hold is an error."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return np.asarray(value != 0)
    if dtype.kind == "c":
        return np.asarray(complex(value)).astype(dtype)
    if dtype.kind == "f":
        limit = float(np.finfo(dtype).max)
        fits = not abs(value) > limit or (isinstance(value, float) and isinf(value))  # NaN fits too
        value = float(value) if fits else value
    else:
        limits = np.iinfo(dtype)
        wraps = dtype.kind == "u" and isinstance(value, int)  # so does torch
        fits = (-limits.max if wraps else limits.min) <= value <= limits.max
        value = int(value) if fits else value
    if not fits:
        raise OverflowError(f"{value} does not fit into {dtype.name}")
    return np.asarray(value).astype(dtype)


def single_element(np: Any, value: Any, dtype: Any) -> Any:
    """The same where torch makes a tensor of one element first: too large a number is infinite in float16."""
    return np.asarray(float(value)).astype(dtype) if dtype == np.float16 else element(np, value, dtype)


def buffer(data: Any) -> Any:
    """Bytes that a tensor may use as its memory. Writable bytes were received for this tensor only."""
    return bytearray(data) if memoryview(data).readonly else data


def from_bytes_torch(torch: Any, data: Any, shape: tuple[int, ...], dtype: str) -> Any:
    """A tensor on the bytes, which are not copied unless it is bool."""
    kind = torch.uint8 if dtype == "bool" else getattr(torch, dtype)
    needed = _length(data, shape, kind.itemsize, dtype)
    flat = torch.frombuffer(data, dtype=kind) if needed else torch.empty(0, dtype=kind)
    # a bool that is neither 0 nor 1 would count as several, and kernels write as many elements as they count
    return (flat != 0 if dtype == "bool" else flat).view(shape)


def from_bytes_numpy(np: Any, data: Any, shape: tuple[int, ...], dtype: str) -> Any:
    kind = np.dtype("uint8" if dtype == "bool" else dtype)
    flat = np.frombuffer(data, kind, _length(data, shape, kind.itemsize, dtype) // kind.itemsize)
    return (flat != 0 if dtype == "bool" else flat).reshape(shape)


def _length(data: Any, shape: tuple[int, ...], itemsize: int, dtype: str) -> int:
    """The number of bytes of such a tensor; raises if the data has another number."""
    needed = itemsize * prod(shape)
    if memoryview(data).nbytes != needed:
        raise ValueError(f"{dtype}{list(shape)} takes {needed} bytes, not {memoryview(data).nbytes}")
    return needed


def wide(np: Any, *xs: Any) -> tuple[Any, ...]:
    """The operands, with float16 as float32: numpy would compute in float16."""
    return tuple(x.astype(np.float32) if getattr(x, "dtype", None) == np.float16 else x for x in xs)


def apart(source: Any, target: Any) -> Any:
    """A source that torch can copy to the target: torch refuses some that share its memory, and garbles others."""
    shared = source.untyped_storage().data_ptr() == target.untyped_storage().data_ptr()
    return source.clone() if shared else source
