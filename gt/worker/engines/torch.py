"""The engine that counts: torch, on the CPU or on one GPU."""

from __future__ import annotations

import os
from collections import deque
from functools import partial
from typing import Any

import array_api_compat.torch as xp
import numpy as np
import torch

from gt.errors import ConfigError
from gt.ops import Signature
from gt.types import TensorType
from gt.wire.messages import INLINE

#: How many pieces of a program the GPU may be behind.
PIECES_AHEAD = 3


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
        self._marks: deque[torch.cuda.Event] = deque()

    def alone(self) -> None:
        # the client asks for gradients as ops of their own: torch need not look whether to record any
        torch.set_grad_enabled(False)

    def link(self, signature: Signature) -> Any:
        op = signature.op
        if signature.into and op.inplace is not None:
            return partial(op.inplace, torch, **dict(signature.attrs))
        kernel = partial(op.torch, torch) if op.torch is not None else partial(op.kernel, xp)
        given: dict[str, Any] = dict(signature.attrs)
        if op.creates:
            given["device"] = self._device
        if op.wants_out:
            given["out"] = signature.outs
        linked = partial(kernel, **given)
        return _writing(linked, len(signature.outs)) if signature.into else linked

    def allocate(self, nbytes: int) -> memoryview:
        if self.on_gpu:  # pinned, and kept by torch for the next time: three times the speed of ordinary memory
            return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True).numpy().data
        return np.empty(
            nbytes, dtype=np.uint8
        ).data  # numpy asks for large pages, which are filled in a quarter of the time

    def to_host(self, array: torch.Tensor) -> memoryview:
        if array.dtype is torch.bfloat16:
            array = array.view(torch.int16)  # numpy has no such dtype, but the bytes are the same
        host = (self._fetched(array) if self.on_gpu else array).numpy()
        if host.nbytes <= INLINE:
            return memoryview(host.tobytes())
        return np.ascontiguousarray(host).reshape(-1).view(np.uint8).data

    def _fetched(self, array: torch.Tensor) -> torch.Tensor:
        if array.nbytes <= INLINE:
            return array.cpu()
        return torch.empty(array.shape, dtype=array.dtype, pin_memory=True).copy_(array)

    def nbytes(self, array: torch.Tensor) -> int:
        return array.numel() * array.element_size()

    def zeros(self, type: TensorType) -> Any:
        return torch.zeros(type.shape, dtype=getattr(torch, type.dtype.name), device=self._device)

    def number(self, value: int) -> Any:
        return torch.tensor([value], dtype=torch.int64, device=self._device)

    def value(self, array: Any) -> int:
        return int(array[0])

    def gpu(self) -> str:
        if not self.on_gpu:
            return ""
        uuid = str(torch.cuda.get_device_properties(self._device).uuid)
        # NCCL takes several workers for several hosts if they say so: slow, and the same code as on many GPUs
        return f"{uuid} {os.getpid()}" if os.environ.get("GT_NCCL_SHARED", "0") not in ("", "0") else uuid

    def is_out_of_memory(self, error: BaseException) -> bool:
        # on the CPU torch raises a plain RuntimeError; its allocator's name is the only sign
        return isinstance(error, torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)

    def is_broken(self, error: BaseException) -> bool:
        # an index out of range, for one, trips an assertion on a GPU, and with it the whole of this process's CUDA
        return self.on_gpu and "CUDA error" in str(error) and not self.is_out_of_memory(error)

    def pace(self) -> None:
        if not self.on_gpu:
            return
        mark = torch.cuda.Event()  # type: ignore[no-untyped-call]
        mark.record()
        self._marks.append(mark)
        if len(self._marks) > PIECES_AHEAD:
            self._marks.popleft().synchronize()

    def memory(self) -> dict[str, int]:
        if not self.on_gpu:
            return {}
        free, total = torch.cuda.mem_get_info(self._device)
        allocated, peak = (ask(self._device) for ask in (torch.cuda.memory_allocated, torch.cuda.max_memory_allocated))
        torch.cuda.reset_peak_memory_stats(self._device)
        return {"used": total - free, "total": total, "allocated": allocated, "peak": peak}


def _writing(linked: Any, count: int) -> Any:
    """Compute, then copy the results over the first operands."""

    def write(*operands: Any) -> Any:
        made = linked(*operands)
        for target, result in zip(operands, made if count > 1 else (made,), strict=False):
            target.copy_(result)
        return operands[0] if count == 1 else operands[:count]

    return write
