"""For `gt.run`: the names of `torch.cuda`, which answer for GT's workers as for one GPU.

Figures of memory are those of `gt.cuda`: the sum over all workers. Streams are one stream: the order of the program.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import Any, NamedTuple

import torch

import gt.cuda
from gt.client.tensor import random_state
from gt.torch_device.module import DeviceModule

#: The compute capability that scripts compare with: bfloat16 and TF32 are there (8, 0).
CAPABILITY = (8, 0)


class DeviceProperties(NamedTuple):
    """`torch.cuda.get_device_properties(0)`"""

    name: str
    total_memory: int
    major: int = CAPABILITY[0]
    minor: int = CAPABILITY[1]
    multi_processor_count: int = 1
    warp_size: int = 32
    is_integrated: bool = False
    is_multi_gpu_board: bool = False
    gcnArchName: str = ""  # noqa: N815, torch's name


class CudaEvent:
    """A moment in the order of the program. With ``enable_timing=True`` recording waits for the workers."""

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, **_: Any
    ) -> None:
        self._is_timed, self._recorded_at = enable_timing, 0.0

    def record(self, stream: Any = None) -> None:
        if self._is_timed:
            gt.cuda.synchronize()
        self._recorded_at = time.perf_counter()

    def elapsed_time(self, end_event: CudaEvent) -> float:
        """Milliseconds between two recorded events."""
        if not (self._is_timed and end_event._is_timed):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if not (self._recorded_at and end_event._recorded_at):
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end_event._recorded_at - self._recorded_at) * 1000

    def query(self) -> bool:
        return True

    def wait(self, stream: Any = None) -> None:
        """Nothing: there is one stream."""

    def synchronize(self) -> None:
        """Wait for the workers."""
        gt.cuda.synchronize()


class CudaStream(contextlib.AbstractContextManager["CudaStream"]):
    """The one stream: what is in it runs in the order of the program."""

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.device, self.priority, self.cuda_stream = torch.device("cuda:0"), priority, 0

    def record_event(self, event: CudaEvent | None = None) -> CudaEvent:
        event = event or CudaEvent()
        event.record()
        return event

    def synchronize(self) -> None:
        """Wait for the workers."""
        gt.cuda.synchronize()

    def query(self) -> bool:
        return True

    def wait_stream(self, stream: Any) -> None:
        """Nothing: there is one stream."""

    wait_event = wait_stream

    def __exit__(self, *error: object) -> None: ...


class CudaStreamContext(contextlib.nullcontext[None]):
    """``torch.cuda.stream(s)``"""


def get_device_name(device: Any = None) -> str:
    return "GT"


def get_device_properties(device: Any = None) -> DeviceProperties:
    """Without GPUs, the memory is that of this machine."""
    memory = gt.cuda.mem_get_info()[1] or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return DeviceProperties(get_device_name(), memory)


def set_device(device: Any) -> None:
    """There is one device, with the number 0."""
    index = device if isinstance(device, int) else torch.device(device).index
    if index:
        raise RuntimeError(f"CUDA error: invalid device ordinal: {index}; torch.cuda.device_count() is 1")


def get_rng_state_all() -> list[torch.Tensor]:
    return [_MODULE.get_rng_state()]


def set_rng_state_all(new_states: Any) -> None:
    _MODULE.set_rng_state(new_states[0])


def set_rng_state(new_state: torch.Tensor, device: Any = None) -> None:
    _MODULE.set_rng_state(new_state)


def initial_seed() -> int:
    return random_state.default_generator.initial_seed()


_MODULE = DeviceModule()
#: Names with an answer that does not change.
_ANSWERS: dict[str, Any] = {
    "_is_in_bad_fork": False, "_lazy_init": None, "current_device": 0, "device_count": 1, "get_arch_list": ["sm_80"],
    "get_device_capability": CAPABILITY, "init": None, "is_available": True, "is_bf16_supported": True,
    "is_current_stream_capturing": False, "is_initialized": True, "memory_stats": {},
    "set_per_process_memory_fraction": None,
    "utilization": 0, "can_device_access_peer": False, "is_tf32_supported": True,
}  # fmt: skip
#: Names that are as in `gt.cuda`.
_GT_NAMES = (
    "empty_cache", "ipc_collect", "manual_seed", "manual_seed_all", "max_memory_allocated", "max_memory_reserved",
    "mem_get_info", "memory_allocated", "memory_reserved", "memory_summary", "reset_max_memory_allocated",
    "reset_peak_memory_stats", "synchronize",
)  # fmt: skip


def install() -> None:
    """Replace the names in `torch.cuda`."""
    names: dict[str, Any] = {name: (lambda *a, answer=answer, **k: answer) for name, answer in _ANSWERS.items()}
    names |= {name: getattr(gt.cuda, name) for name in _GT_NAMES}
    names |= {"Event": CudaEvent, "Stream": CudaStream, "StreamContext": CudaStreamContext}
    for function in (
        get_device_name, get_device_properties, get_rng_state_all, initial_seed, set_device, set_rng_state,
        set_rng_state_all,
    ):  # fmt: skip
        names[function.__name__] = function
    stream = CudaStream()
    names |= {
        "stream": CudaStreamContext,
        "device": gt.cuda.device,
        "device_of": gt.cuda.device,
        "get_rng_state": _MODULE.get_rng_state,
        # where checkpointing looks whether there is a state of random numbers to keep
        "_initialized": True,
    }
    names |= {name: lambda device=None: stream for name in ("current_stream", "default_stream")}
    names["set_stream"] = lambda stream: None
    for name, value in names.items():
        setattr(torch.cuda, name, value)
    for name in ("range_push", "range_pop", "mark"):
        setattr(torch.cuda.nvtx, name, lambda *args, **kwargs: None)
    torch.cuda.random.get_rng_state, torch.cuda.random.set_rng_state = names["get_rng_state"], set_rng_state
