"""What a worker computes with. An engine turns a signature into a callable once, and the worker calls it ever after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from gt.errors import ConfigError
from gt.ops import Signature
from gt.types import TensorType

#: (*arrays and numbers) -> an array, or a tuple of them if the signature has several results
Linked = Callable[..., Any]


class Engine(Protocol):
    #: "torch" or "numpy"
    name: str
    #: "cpu" or "cuda:0"
    device: str

    def link(self, signature: Signature) -> Linked:
        """Raises DTypeError if this engine has not all the dtypes."""

    def from_host(self, data: memoryview, type: TensorType, *, adopt: bool) -> Any:
        """An array of these bytes; ``adopt`` allows it to live on in that very memory."""

    def to_host(self, array: Any) -> memoryview:
        """The array's bytes, in row-major order; they may be the array's own memory."""

    def nbytes(self, array: Any) -> int: ...

    def is_out_of_memory(self, error: BaseException) -> bool: ...

    def synchronize(self) -> None:
        """Wait until the device has done what it was given."""

    def memory(self) -> dict[str, int]:
        """What the device says: ``used`` and ``total`` bytes, as far as it can be asked."""


def make_engine(name: str, device: str | None = None, threads: int | None = None) -> Engine:
    if name == "numpy":
        from gt.worker.engines.numpy import NumpyEngine

        if device not in (None, "cpu"):
            raise ConfigError(f"--device {device}: the numpy backend computes on the cpu only")
        return NumpyEngine()
    if name == "torch":
        from gt.worker.engines.torch import TorchEngine

        return TorchEngine(device, threads)
    raise ConfigError(f"--backend {name}: there are torch and numpy")
