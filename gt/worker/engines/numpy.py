"""The engine without torch. It is slow, has every op, and is an independent check of torch's kernels."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import array_api_compat.numpy as xp
import numpy as np

from gt.errors import DTypeError
from gt.ops import Signature
from gt.types import DTYPES, DType, TensorType, bfloat16
from gt.worker.engines import ArrayStorage
from gt.worker.engines.host_memory import HostMemory
from gt.worker.engines.marks import ClockMarks, Marks


def numpy_dtype(dtype: DType) -> np.dtype[Any]:
    if dtype.name == "bfloat16":
        raise DTypeError("the numpy backend has no bfloat16; use float32, or a worker with --backend torch")
    return np.dtype(dtype.name)


class NumpyEngine:
    name = "numpy"
    device = "cpu"

    _host_memory: HostMemory | None = None

    def claim_process(self) -> None:
        pass

    def limit_memory(self, nbytes: int | None, shared: bool) -> None:
        self._host_memory = HostMemory(nbytes)

    def link(self, signature: Signature) -> Any:
        op = signature.op
        for dtype in (
            *(t.dtype for t in signature.ins),
            *(t.dtype for t in signature.outs),
            *_dtype_attributes(signature),
        ):
            numpy_dtype(dtype)
        arguments: dict[str, Any] = dict(signature.attrs)
        if op.creates:
            arguments["device"] = "cpu"
        if op.wants_out:
            arguments["out"] = signature.outs
        kernel = partial(op.numpy or op.kernel, np if op.numpy or op.torch else xp)
        linked_kernel = _NumpyKernel(signature, partial(kernel, **arguments))
        return linked_kernel if self._host_memory is None else self._host_memory.guard(signature, linked_kernel)

    def allocate(self, nbytes: int) -> memoryview:
        if self._host_memory is not None:
            self._host_memory.check(nbytes)
        return np.empty(nbytes, dtype=np.uint8).data

    def to_host(self, array: np.ndarray[Any, Any]) -> memoryview:
        if not array.size:
            return memoryview(b"")
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data

    def copy(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return array.copy()

    def raw_storage(self, array: np.ndarray[Any, Any]) -> ArrayStorage:
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        if not array.size or not (owner.flags.c_contiguous or owner.flags.f_contiguous):
            owner = array = np.ascontiguousarray(array)
        raw = (owner if owner.flags.c_contiguous else owner.T).reshape(-1).view(np.uint8)
        return ArrayStorage(owner.ctypes.data, raw, array.ctypes.data - owner.ctypes.data, array.strides)

    def upload_storage(self, data: memoryview) -> np.ndarray[Any, Any]:
        return np.frombuffer(data, np.uint8).copy()

    def view_storage(
        self, storage: np.ndarray[Any, Any], type: TensorType, offset: int, strides: tuple[int, ...]
    ) -> np.ndarray[Any, Any]:
        return np.ndarray(type.shape, numpy_dtype(type.dtype), storage, offset, strides)

    def nbytes(self, array: np.ndarray[Any, Any]) -> int:
        return array.nbytes

    def storage(self, array: np.ndarray[Any, Any]) -> tuple[int, int, Callable[[], bool]]:
        while isinstance(array.base, np.ndarray):
            array = array.base
        reference = weakref.ref(array)
        return id(array), array.nbytes, lambda: reference() is None

    def zeros(self, type: TensorType) -> Any:
        # bfloat16 tensors are always failures here, so the values are never used; int16 has the same size
        return np.zeros(type.shape, np.int16 if type.dtype is bfloat16 else numpy_dtype(type.dtype))

    def shares_memory(self, a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
        return np.may_share_memory(a, b)

    def int_array(self, value: int) -> Any:
        return np.array([value], np.int64)

    def int_value(self, array: Any) -> int:
        return int(array[0])

    def gpu_id(self) -> str:
        return ""

    def pci_address(self) -> str:
        return ""

    def is_out_of_memory(self, error: BaseException) -> bool:
        return isinstance(error, MemoryError)

    def is_broken(self, error: BaseException) -> bool:
        return False

    def pace(self) -> None:
        pass

    def marks(self, clock: Callable[[], int]) -> Marks:
        return ClockMarks(clock)

    def memory(self, restart: bool = False) -> dict[str, int]:
        return {}


def _dtype_attributes(signature: Signature) -> list[DType]:
    return [DTYPES[value] for _, value in signature.attrs if isinstance(value, str) and value in DTYPES]


class _NumpyKernel:
    """A kernel with torch's dtype rules: operands are cast to torch's common dtype, results to the inferred one."""

    __slots__ = ("common", "dtypes", "into", "kernel")

    def __init__(self, signature: Signature, kernel: Any) -> None:
        op = signature.op
        self.kernel, self.into = kernel, signature.into
        self.common = numpy_dtype(op.common(*signature.ins, **dict(signature.attrs))) if op.common else None
        self.dtypes = [numpy_dtype(t.dtype) for t in signature.outs]

    def __call__(self, *operands: Any) -> Any:
        targets = operands[: len(self.dtypes)]
        if self.common is not None:
            operands = tuple(_cast(x, self.common) for x in operands)
        with np.errstate(all="ignore"):
            results = self.kernel(*operands)
        if self.into:
            for target, result in zip(targets, results if len(targets) > 1 else (results,), strict=True):
                target[...] = result
            return targets if len(targets) > 1 else targets[0]
        if len(self.dtypes) > 1:
            return tuple(_cast(x, d) for x, d in zip(results, self.dtypes, strict=True))
        return _cast(results, self.dtypes[0])


def _cast(x: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Always an array: numpy returns scalars for 0-d results. A Python integer wraps around as in torch."""
    if isinstance(x, int) and dtype.kind in "iu":
        return np.asarray(x).astype(dtype)
    return np.asarray(x).astype(dtype, copy=False)
