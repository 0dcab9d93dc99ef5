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
from torch.multiprocessing.reductions import StorageWeakRef

from gt.errors import ConfigError
from gt.ops import Signature
from gt.types import TensorType
from gt.wire.words import MAX_INLINE_BYTES
from gt.worker.engines import ArrayStorage
from gt.worker.engines.host_memory import HostMemory, keep_freed_memory
from gt.worker.engines.marks import ClockMarks, Marks

#: How many `Execute` messages the GPU may be behind.
MAX_EXECUTES_AHEAD = 3
#: On a shared server an n-th of the GPU's memory stays free, for what torch's allocator does not count.
GPU_HEADROOM_PART = 64


class TorchEngine:
    name = "torch"
    _host_memory: HostMemory | None = None

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
        #: the stream that they are recorded in
        self._stream: Any = None
        #: whether the device had done what it got a few messages before; then it waits for instructions
        self.keeps_up = False
        #: see `memory`
        self._most_used = 0

    def claim_process(self) -> None:
        # the client computes gradients with separate instructions, so torch need not record any
        torch.set_grad_enabled(False)

    def limit_memory(self, nbytes: int | None, shared: bool) -> None:
        if not self.on_gpu:
            self._host_memory = HostMemory(nbytes)
            if nbytes is None:
                keep_freed_memory(self._host_memory.headroom)
        elif nbytes is not None or shared:
            total = torch.cuda.get_device_properties(self._device).total_memory
            part = 1 - 1 / GPU_HEADROOM_PART if nbytes is None else min(1.0, nbytes / total)
            torch.cuda.set_per_process_memory_fraction(part, self._device)

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
        linked_kernel = _copying_back(linked, len(signature.outs)) if signature.into else linked
        return linked_kernel if self._host_memory is None else self._host_memory.guard(signature, linked_kernel)

    def allocate(self, nbytes: int) -> memoryview:
        if self.on_gpu:  # pinned, and cached by torch: three times as fast as ordinary memory
            return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True).numpy().data
        if self._host_memory is not None:
            self._host_memory.check(nbytes)
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

    def copy(self, array: torch.Tensor) -> torch.Tensor:
        return array.clone()

    def raw_storage(self, array: torch.Tensor) -> ArrayStorage:
        array = array.resolve_conj().resolve_neg()
        storage, itemsize = array.untyped_storage(), array.element_size()
        raw = torch.empty(0, dtype=torch.uint8, device=self._device).set_(storage)
        strides = tuple(stride * itemsize for stride in array.stride())
        return ArrayStorage(storage.data_ptr(), raw, int(array.storage_offset()) * itemsize, strides)

    def upload_storage(self, data: memoryview) -> torch.Tensor:
        return torch.from_numpy(np.frombuffer(data, np.uint8).copy()).to(self._device)

    def view_storage(self, storage: torch.Tensor, type: TensorType, offset: int, strides: tuple[int, ...]) -> Any:
        dtype, itemsize = getattr(torch, type.dtype.name), type.dtype.itemsize
        empty = torch.empty(0, dtype=dtype, device=self._device)
        elements = [stride // itemsize for stride in strides]
        return empty.set_(storage.untyped_storage(), offset // itemsize, type.shape, elements)

    def nbytes(self, array: torch.Tensor) -> int:
        return array.numel() * array.element_size()

    def storage(self, array: torch.Tensor) -> tuple[int, int, Callable[[], bool]]:
        storage = array.untyped_storage()
        return storage.data_ptr(), storage.nbytes(), StorageWeakRef(storage).expired  # type: ignore[no-untyped-call]

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

    def pci_address(self) -> str:
        properties = torch.cuda.get_device_properties(self._device) if self.on_gpu else None
        if not hasattr(properties, "pci_bus_id"):  # torch before 2.8
            return ""
        at: Any = properties
        return f"{at.pci_domain_id:04x}:{at.pci_bus_id:02x}:{at.pci_device_id:02x}.0"

    def is_out_of_memory(self, error: BaseException) -> bool:
        # on the CPU torch raises a plain RuntimeError that only the name of the allocator identifies
        return isinstance(error, torch.OutOfMemoryError | MemoryError) or "DefaultCPUAllocator" in str(error)

    def is_broken(self, error: BaseException) -> bool:
        # for example, an index out of range triggers an assertion on the GPU, which makes CUDA unusable in this process
        return self.on_gpu and "CUDA error" in str(error) and not self.is_out_of_memory(error)

    def pace(self) -> None:
        if not self.on_gpu:
            return
        events = self._events
        if len(events) >= MAX_EXECUTES_AHEAD:
            event = events.popleft()
            self.keeps_up = bool(event.query())  # type: ignore[no-untyped-call]
            if not self.keeps_up:
                event.synchronize()
        else:
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._stream = torch.cuda.current_stream(self._device)
        event.record(self._stream)  # looking up the stream again would take longer than recording
        events.append(event)

    def marks(self, clock: Callable[[], int]) -> Marks:
        if not self.on_gpu:
            return ClockMarks(clock)
        from gt.worker.engines.cuda_marks import CudaMarks

        return CudaMarks(self._device, clock)

    def memory(self, restart: bool = False) -> dict[str, int]:
        if not self.on_gpu:
            return {}
        cuda, device = torch.cuda, self._device
        free, total = cuda.mem_get_info(device)
        used = total - free
        own = {
            "allocated": cuda.memory_allocated(device),
            "allocated_peak": cuda.max_memory_allocated(device),
            "reserved": cuda.memory_reserved(device),
            "reserved_peak": cuda.max_memory_reserved(device),
        }
        # what torch has given back since its own peak was in use then, too; what others gave back is not known
        returned = own["reserved_peak"] - own["reserved"]
        self._most_used = max(self._most_used, used, min(used + returned, total))
        if restart:
            cuda.reset_peak_memory_stats(device)
        return {"used": used, "peak": self._most_used, "total": total, **own}


def _copying_back(linked: Any, count: int) -> Any:
    """A kernel that computes, then copies the ``count`` results over the first operands and returns those."""

    def write(*operands: Any) -> Any:
        results = linked(*operands)
        for target, result in zip(operands, results if count > 1 else (results,), strict=False):
            target.copy_(result)
        return operands[0] if count == 1 else operands[:count]

    return write
