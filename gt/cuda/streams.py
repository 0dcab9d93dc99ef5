"""Classes of ``torch.cuda`` that programs name in annotations. None can be created: the client has no device."""

from __future__ import annotations

from typing import Any

from gt.errors import ConfigError

__all__ = ["CUDAGraph", "Stream", "StreamContext", "graph"]

GRAPHS = "GT_AUTO_COMPILE=1 lets workers record CUDA graphs, docs/hot_paths.md"
STREAMS = "workers order their work themselves, docs/architecture.md"


def _refusal(name: str, instead: str) -> ConfigError:
    return ConfigError(f"gt.cuda.{name}: the client has no device; {instead}")


class CUDAGraph:
    """Only a name: workers record CUDA graphs themselves if ``GT_AUTO_COMPILE=1`` is set."""

    def __init__(self, keep_graph: bool = False) -> None:
        raise _refusal("CUDAGraph", GRAPHS)


class graph:  # noqa: N801, torch's name
    """Only a name: workers record CUDA graphs themselves if ``GT_AUTO_COMPILE=1`` is set."""

    def __init__(self, cuda_graph: Any, pool: Any = None, stream: Any = None) -> None:
        raise _refusal("graph", GRAPHS)


class Stream:
    """Only a name: each worker runs its instructions in one order, and communicates beside them."""

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        raise _refusal("Stream", STREAMS)


class StreamContext:
    """Only a name: workers have no streams that a client could choose."""

    def __init__(self, stream: Any) -> None:
        raise _refusal("StreamContext", STREAMS)
