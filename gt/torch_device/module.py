"""`torch.gtx`: what torch asks the module of a device for."""

from __future__ import annotations

import contextlib
from typing import Any

import torch

from gt.client.tensor import random_state
from gt.torch_device.backend import NAME


class DeviceStream:
    """The one stream: what is in it runs in the order of the program, and a read waits for the workers."""

    def synchronize(self) -> None: ...

    def wait_stream(self, stream: Any) -> None: ...


class DeviceModule:
    """One device: where its tensors are is for GT's dispatcher to decide."""

    _initialized = True

    def is_initialized(self) -> bool:
        return True

    def is_available(self) -> bool:
        return True

    def current_device(self) -> int:
        return 0

    def device_count(self) -> int:
        return 1

    def set_device(self, device: Any) -> None:
        """Nothing: there is one device."""

    def device(self, device: Any) -> contextlib.AbstractContextManager[None]:
        """A context in which a device is the current one; there is one device."""
        return contextlib.nullcontext()

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]

    def _is_in_bad_fork(self) -> bool:
        return False

    def synchronize(self, device: Any = None) -> None:
        """Nothing: a read waits for the workers."""

    # -- streams, which torch.distributed.checkpoint wants

    Stream = DeviceStream
    _stream = DeviceStream()

    def current_stream(self, device: Any = None) -> DeviceStream:
        return self._stream

    def stream(self, stream: Any) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    # -- random numbers: a seed and the number of draws since it was set

    def manual_seed(self, seed: int) -> None:
        random_state.manual_seed(seed)

    manual_seed_all = manual_seed

    def get_rng_state(self, device: Any = NAME) -> torch.Tensor:
        return torch.from_numpy(random_state.get_rng_state().numpy().copy())

    def set_rng_state(self, state: torch.Tensor, device: Any = NAME) -> None:
        random_state.set_rng_state(state)
