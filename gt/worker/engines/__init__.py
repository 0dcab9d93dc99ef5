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

    def alone(self) -> None:
        """This process is the engine's alone: it may settle in."""

    def link(self, signature: Signature) -> Linked:
        """Raises DTypeError if this engine has not all the dtypes."""

    def allocate(self, nbytes: int) -> Any:
        """Host memory, as quick as it can be had, that a large tensor is put together in before it is uploaded."""

    def to_host(self, array: Any) -> memoryview:
        """The array's bytes, in row-major order; they may be the array's own memory."""

    def nbytes(self, array: Any) -> int: ...

    def zeros(self, type: TensorType) -> Any: ...

    def number(self, value: int) -> Any:
        """An array of one int64."""

    def value(self, array: Any) -> int:
        """And back."""

    def gpu(self) -> str:
        """The device's name, as no other has it; empty if it is no GPU, or one that others use as well."""

    def is_out_of_memory(self, error: BaseException) -> bool: ...

    def is_broken(self, error: BaseException) -> bool:
        """Can the device do nothing more in this process after this error?"""

    def pace(self) -> None:
        """Called after each piece of a program: let the device fall back by a few pieces at most.

        So the time a piece takes is the device's time, not that of handing it over, and nobody who comes later waits
        behind a long queue.
        """

    def memory(self) -> dict[str, int]:
        """What the device says: bytes used, total, allocated, and at most since last asked; {} if it cannot say."""


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
