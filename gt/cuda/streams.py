"""Classes of ``torch.cuda`` that programs name in annotations. None can be created: the client has no device."""

from __future__ import annotations

from typing import Any, ClassVar

from gt.errors import ConfigError

__all__ = ["CUDAGraph", "Event", "Stream", "StreamContext", "graph"]


class _OfDevice:
    """A class whose objects belong to a device."""

    #: what to use instead
    instead: ClassVar[str]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        raise ConfigError(f"gt.cuda.{type(self).__name__}: the client has no device; {self.instead}")


class CUDAGraph(_OfDevice):
    """Only a name: workers record CUDA graphs themselves if ``GT_AUTO_COMPILE=1`` is set."""

    instead = "GT_AUTO_COMPILE=1 lets workers record CUDA graphs, docs/hot_paths.md"


class Event(_OfDevice):
    """Only a name: `gt.cuda.synchronize` waits for the workers, and `gt.debug.trace` records times."""

    instead = "gt.cuda.synchronize() waits for the workers, and gt.debug.trace records times"


class Stream(_OfDevice):
    """Only a name: each worker runs its instructions in one order, and communicates beside them."""

    instead = "workers order their work themselves, docs/architecture.md"


class StreamContext(_OfDevice):
    """Only a name: workers have no streams that a client could choose."""

    instead = Stream.instead


class graph(_OfDevice):  # noqa: N801, torch's name
    """Only a name: workers record CUDA graphs themselves if ``GT_AUTO_COMPILE=1`` is set."""

    instead = CUDAGraph.instead
