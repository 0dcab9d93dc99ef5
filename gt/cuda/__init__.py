"""``gt.cuda``: the functions of ``torch.cuda`` that scripts call. The client has no GPU; the workers have.

Here belongs what scripts call whether or not there is a GPU. It may import everything below it in the floors.
"""

from __future__ import annotations

from types import TracebackType
from typing import Any

from gt.cuda import amp
from gt.cuda.memory import (
    max_memory_allocated,
    max_memory_reserved,
    mem_get_info,
    memory_allocated,
    memory_reserved,
    memory_summary,
    reset_max_memory_allocated,
    reset_peak_memory_stats,
)
from gt.cuda.streams import CUDAGraph, Stream, StreamContext, graph
from gt.functions.legacy import (
    BFloat16Tensor,
    BoolTensor,
    ByteTensor,
    CharTensor,
    DoubleTensor,
    FloatTensor,
    HalfTensor,
    IntTensor,
    LongTensor,
    ShortTensor,
)
from gt.missing import absent as _absent

__all__ = [
    "BFloat16Tensor", "BoolTensor", "ByteTensor", "CUDAGraph", "CharTensor", "DoubleTensor", "FloatTensor",
    "HalfTensor", "IntTensor", "LongTensor", "ShortTensor", "Stream", "StreamContext", "amp", "current_device",
    "device", "device_count", "empty_cache", "graph", "init", "ipc_collect", "is_available", "is_bf16_supported",
    "is_current_stream_capturing", "is_initialized", "manual_seed", "manual_seed_all", "max_memory_allocated",
    "max_memory_reserved", "mem_get_info", "memory_allocated", "memory_reserved", "memory_summary",
    "reset_max_memory_allocated", "reset_peak_memory_stats", "set_device", "synchronize",
]  # fmt: skip
_absent("cuda")


def is_available() -> bool:
    """Always False: the client has no GPU. Tensors are placed on the workers whatever device a script names."""
    return False


def device_count() -> int:
    """Always 0: the client has no GPU."""
    return 0


def is_initialized() -> bool:
    """Always False: the client has no GPU."""
    return False


def is_current_stream_capturing() -> bool:
    """Always False: the client has no GPU."""
    return False


def init() -> None:
    """Do nothing: the client has no GPU."""


def current_device() -> int:
    """Always 0: the client has no GPU, and device numbers are ignored."""
    return 0


def set_device(device: Any) -> None:
    """Do nothing: the dispatcher decides where tensors are placed."""


class device:  # noqa: N801, torch's name
    """A context without an effect: the dispatcher decides where tensors are placed."""

    def __init__(self, device: Any) -> None:
        self.device = device

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Always True: workers with torch compute in bfloat16 on every device."""
    return True


def empty_cache() -> None:
    """Do nothing: workers manage their own memory."""


def ipc_collect() -> None:
    """Do nothing: workers manage their own memory."""


def synchronize(device: object = None) -> None:
    """Wait until the workers have finished everything submitted so far."""
    from gt.client.stream.connect import session

    session().worker_stats()


def manual_seed(seed: int) -> None:
    """Set the seed of all random numbers; the same as `gt.manual_seed`."""
    from gt.client.tensor.random_state import manual_seed

    manual_seed(seed)


manual_seed_all = manual_seed
