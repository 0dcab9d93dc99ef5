"""The main engine: torch, on the CPU or on one GPU."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import array_api_compat.torch as xp
import numpy as np
import torch

from gt.errors import ConfigError
from gt.ops import Signature
from gt.types import TensorType
from gt.wire.words import MAX_INLINE_BYTES
from gt.worker.engines.marks import ClockMarks, Marks

#: How many `Execute` messages the GPU may be behind.
MAX_EXECUTES_AHEAD = 3


class TorchEngine:
    name = "torch"

    def __init__(self, device: str | None = None, threads: int | None = None) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        self.device = device or ("cuda:0" if torch.cuda.is_available() else "cpu")
        try:
            self._device = torch.device(self.device)
            torch.empty(1, device=self._device)
        except (RuntimeError, AssertionError) as error:
            raise ConfigError(f"--device {self.device}: {str(error).splitlines()[0]}") from None
        self.on_gpu = self._device.type == "cuda"
        #: one event for each of the last `Execute` messages, recorded after its kernels
        self._events: deque[torch.cuda.Event] = deque()

    def claim_process(self) -> None:
        # the client computes gradients with separate instructions, so torch need not record any
        torch.set_grad_enabled(False)

    def link(self, signature: Signature) -> Any:
        op = signature.op
        if signature.into and op.inplace is not None:
            return partial(op.inplace, torch, **dict(signature.attrs))
        kernel = partial(op.torch, torch) if op.torch is not None else partial(op.kernel, xp)
        arguments: dict[str, Any] = dict(signature.attrs)
        if op.creates:
            arguments["device"] = self._device
        if op.wants_out:
            arguments["out"] = signature.outs
        linked = partial(kernel, **arguments)
        return _copying_back(linked, len(signature.outs)) if signature.into else linked

    def allocate(self, nbytes: int) -> memoryview:
        if self.on_gpu:  # pinned, and cached by torch: three times as fast as ordinary memory
            return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True).numpy().data
        # numpy requests large pages, which are filled in a quarter of the time
        return np.empty(nbytes, dtype=np.uint8).data

    def to_host(self, array: torch.Tensor) -> memoryview:
        if array.dtype is torch.bfloat16:
            array = array.view(torch.int16)  # numpy has no such dtype, but the bytes are the same
        host = (self._copy_to_host(array) if self.on_gpu else array).numpy()
        if host.nbytes <= MAX_INLINE_BYTES:
            return memoryview(host.tobytes())
        return np.ascontiguousarray(host).reshape(-1).view(np.uint8).data

    def _copy_to_host(self, array: torch.Tensor) -> torch.Tensor:
        if array.nbytes <= MAX_INLINE_BYTES:
            return array.cpu()
        return torch.empty(array.shape, dtype=array.dtype, pin_memory=True).copy_(array)

    def nbytes(self, array: torch.Tensor) -> int:
        return array.numel() * array.element_size()

    def zeros(self, type: TensorType) -> Any:
        return torch.zeros(type.shape, dtype=getattr(torch, type.dtype.name), device=self._device)

    def shares_memory(self, a: torch.Tensor, b: torch.Tensor) -> bool:
        return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()

    def int_array(self, value: int) -> Any:
        return torch.tensor([value], dtype=torch.int64, device=self._device)

    def int_value(self, array: Any) -> int:
        return int(array[0])

    def gpu_id(self) -> str:
        if not self.on_gpu:
            return ""
        uuid = str(torch.cuda.get_device_properties(self._device).uuid)
        # for tests with several workers on one GPU: NCCL accepts them if they seem to be on several hosts
        return f"{uuid} {os.getpid()}" if os.environ.get("GT_NCCL_SHARED", "0") not in ("", "0") else uuid

    def is_out_of_memory(self, error: BaseException) -> bool:
        # on the CPU torch raises a plain RuntimeError that only the name of the allocator identifies
        return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)

    def is_broken(self, error: BaseException) -> bool:
        # for example, an index out of range triggers an assertion on the GPU, which makes CUDA unusable in this process
        return self.on_gpu and "CUDA error" in str(error) and not self.is_out_of_memory(error)

    def pace(self) -> None:
        if not self.on_gpu:
            return
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record()
        self._events.append(event)
        if len(self._events) > MAX_EXECUTES_AHEAD:
            self._events.popleft().synchronize()

    def marks(self, clock: Callable[[], int]) -> Marks:
        if not self.on_gpu:
            return ClockMarks(clock)
        from gt.worker.engines.cuda_marks import CudaMarks

        return CudaMarks(self._device, clock)

    def memory(self) -> dict[str, int]:
        if not self.on_gpu:
            return {}
        free, total = torch.cuda.mem_get_info(self._device)
        allocated, peak = (
            read(self._device) for read in (torch.cuda.memory_allocated, torch.cuda.max_memory_allocated)
        )
        torch.cuda.reset_peak_memory_stats(self._device)
        return {"used": total - free, "total": total, "allocated": allocated, "peak": peak}


def _copying_back(linked: Any, count: int) -> Any:
    """A kernel that computes, then copies the ``count`` results over the first operands and returns those."""

    def write(*operands: Any) -> Any:
        results = linked(*operands)
        for target, result in zip(operands, results if count > 1 else (results,), strict=False):
            target.copy_(result)
        return operands[0] if count == 1 else operands[:count]

    return write
