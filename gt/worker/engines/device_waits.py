"""For a moment before a graph is captured, calls that wait for the GPU raise: in the capture they would break it.

torch has one such switch for all threads. So what another thread does on the GPU meanwhile may raise too. It is
repeated as soon as waiting is possible again.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

#: torch's message
MESSAGE = "called a synchronizing CUDA operation"
#: How often one call is repeated at most.
MAX_ATTEMPTS = 100

#: held while calls that wait raise
_refusing = threading.Lock()


@contextlib.contextmanager
def no_device_waits(device: Any) -> Iterator[None]:
    """In this block a call that waits for the GPU raises."""
    if device.type != "cuda":
        yield
        return
    with _refusing:
        try:
            _switch("error")
            yield
        finally:
            _switch("default")


def repeated(act: Callable[[], T]) -> T:
    """``act()``, in a thread that may wait for the GPU while another one is in `no_device_waits`."""
    for _ in range(MAX_ATTEMPTS - 1):
        try:
            return act()
        except Exception as error:
            if MESSAGE not in str(error):
                raise
            with _refusing:
                pass
    return act()


def _switch(mode: str) -> None:
    import torch

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about the mode
        torch.cuda.set_sync_debug_mode(mode)
