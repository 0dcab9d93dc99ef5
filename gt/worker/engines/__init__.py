"""The engines that compute: torch, and numpy without torch. An engine links each signature to a kernel once.

An engine imports its array library, `gt.launch.backend`, `gt.ops`, `gt.types` and `gt.wire`, but no other part of the
worker.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, NamedTuple, Protocol

from gt.errors import ConfigError
from gt.launch.backend import INSTALL_TORCH
from gt.ops import Signature
from gt.types import TensorType
from gt.worker.engines.marks import Marks as Marks

#: (*arrays and numbers) -> an array, or a tuple of arrays if the signature has several results
Kernel = Callable[..., Any]


class ArrayStorage(NamedTuple):
    """The memory of an array: all its bytes, and where the array is in it. Offset and strides are in bytes."""

    #: equal for arrays that share the memory
    key: int
    array: Any
    offset: int
    strides: tuple[int, ...]


class Engine(Protocol):
    #: "torch" or "numpy"
    name: str
    #: "cpu" or "cuda:0"
    device: str

    def claim_process(self) -> None:
        """Change global settings of the array library. Only for a process that does nothing else."""

    def limit_memory(self, nbytes: int | None, shared: bool) -> None:
        """The arrays and kernels of this process may take this much; None: what there is, less a headroom.
        ``shared``: several users need the device."""

    def link(self, signature: Signature) -> Kernel:
        """The kernel of a signature. Raises DTypeError if the engine does not support a dtype."""

    def allocate(self, nbytes: int) -> Any:
        """Fast host memory, in which a large tensor is assembled before it is uploaded."""

    def to_host(self, array: Any) -> memoryview:
        """The array's bytes, in row-major order; they may be the memory of the array itself."""

    def copy(self, array: Any) -> Any:
        """A copy on the device, in memory of its own."""

    def raw_storage(self, array: Any) -> ArrayStorage:
        """The memory that the array is a view of."""

    def upload_storage(self, data: memoryview) -> Any:
        """The bytes as an array on the device, in memory of its own. The data are not used later."""

    def view_storage(self, storage: Any, type: TensorType, offset: int, strides: tuple[int, ...]) -> Any:
        """An array in memory that `upload_storage` has made."""

    def nbytes(self, array: Any) -> int:
        """The size of the array's values."""

    def storage(self, array: Any) -> tuple[int, int, Callable[[], bool]]:
        """The memory behind an array, which other arrays may share: a number that identifies it while it exists, its
        bytes, and a function that tells whether it is freed."""

    def zeros(self, type: TensorType) -> Any:
        """An array of zeros."""

    def shares_memory(self, a: Any, b: Any) -> bool:
        """Whether writing one array may change the other."""

    def int_array(self, value: int) -> Any:
        """An array with one int64."""

    def int_value(self, array: Any) -> int:
        """The number in such an array."""

    def gpu_id(self) -> str:
        """The unique name of the GPU; empty if the device is not a GPU."""

    def pci_address(self) -> str:
        """The PCI address of the GPU, "0000:17:00.0"; empty if the device is not a GPU, or it is not known."""

    def is_out_of_memory(self, error: BaseException) -> bool: ...

    def is_broken(self, error: BaseException) -> bool:
        """Whether the device cannot be used any more in this process after this error."""

    def pace(self) -> None:
        """Called after each `Execute`: wait if the device is more than a few of them behind.

        So the measured time of an `Execute` is the time of the device, and other clients do not wait behind a long
        queue.
        """

    def marks(self, clock: Callable[[], int]) -> Marks:
        """What tells when the device got how far, for recording; the clock returns nanoseconds."""

    def memory(self, restart: bool = False) -> dict[str, int]:
        """The device's memory in bytes; {} if the device cannot report it.

        Of all processes: "used", the "peak" of that since this engine was made, and "total". Of the arrays of this
        process: "allocated", and "reserved" by the allocator for them; "allocated_peak" and "reserved_peak" are the
        most since the last call with ``restart``.
        """


def make_engine(name: str, device: str | None = None, threads: int | None = None) -> Engine:
    """The engine of a backend. ``threads``: CPU threads of one op, for torch. Raises ConfigError."""
    if name == "numpy":
        from gt.worker.engines.numpy import NumpyEngine

        if device not in (None, "cpu"):
            raise ConfigError(f"--device {device}: the numpy backend computes on the cpu only")
        return NumpyEngine()
    if name == "torch":
        if find_spec("torch") is None:
            raise ConfigError(f"--backend torch: torch is not installed; {INSTALL_TORCH}, or use --backend numpy")
        from gt.worker.engines.torch import TorchEngine

        return TorchEngine(device, threads)
    raise ConfigError(f"--backend {name}: must be torch or numpy")
