"""The experimental parts of torch that the device needs, in one file: registration, tensors without memory, kernels.

torch calls a backend of its own the device type PrivateUse1. Its tensors have a storage without memory, whose Python
object torch keeps as long as the storage lives. `gt.torch_device.handles` attaches GT's tensor to that object.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.utils import backend_registration

#: The device in ``x.to("gtx")``. "gt" is not free: `torch.gt` and `Tensor.gt` compare.
NAME = "gtx"
#: The dispatch keys of the device's kernels, of what is recorded for gradients, and of casts under `torch.autocast`.
KEY, AUTOGRAD_KEY, AUTOCAST_KEY = "PrivateUse1", "AutogradPrivateUse1", "AutocastPrivateUse1"

Kernel = Callable[..., Any]

_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_reshape_alias: Any = torch.ops.aten._reshape_alias.default.redispatch
#: torch forgets the kernels of a library that is freed.
_library: Any = torch.library.Library
_aten, _all_namespaces = _library("aten", "IMPL"), _library("_", "IMPL")


def register_device(module: object) -> None:
    """Register the device with torch; ``module`` becomes `torch.gtx`."""
    backend_registration._setup_privateuseone_for_python_backend(NAME, backend_module=module)
    # A view is computed again from its base by the ops that made it; as_strided would need memory.
    torch._C._set_view_replay_enabled(True)
    _run_backward_in_the_calling_thread()


def _run_backward_in_the_calling_thread() -> None:
    """Otherwise it runs in a thread of the device, where the signal and the user's source line are unknown.

    torch's own switch holds for one thread of the program only.
    """
    autograd: Any = torch.autograd
    run = autograd._engine_run_backward

    @wraps(run)
    def run_here(*args: Any, **kwargs: Any) -> Any:
        with torch.autograd.set_multithreading_enabled(False):
            return run(*args, **kwargs)

    autograd._engine_run_backward = run_here


#: (shape, dtype) -> a tensor on the device, contiguous, with a storage of its own
new_tensor: Callable[[tuple[int, ...], torch.dtype], torch.Tensor] = torch._C._acc.create_empty_tensor


def with_strides(x: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    """A tensor with these strides on the same storage. The CPU's kernel does not compare them with its size."""
    result: torch.Tensor = _reshape_alias(_CPU, x, shape, strides)
    return result


def add_kernel(overload: str, kernel: Kernel, key: str = KEY) -> None:
    """Register a kernel for an overload of ATen, such as "add.Tensor"."""
    _aten.impl(overload, kernel, key)


def add_fallback(kernel: Kernel) -> None:
    """Register a kernel for all overloads without one. It gets the overload first."""
    _all_namespaces.fallback(kernel, KEY)


def skip_autocast() -> None:
    """Let ops without a cast of their own pass under `torch.autocast`."""
    _all_namespaces.fallback(torch.library.fallthrough_kernel, AUTOCAST_KEY)


def has_kernel(overload: str, key: str) -> bool:
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{overload}", key))


def overloads() -> list[str]:
    """All overloads of ATen: "add.Tensor", "relu"."""
    names = torch._C._dispatch_get_all_op_names()
    return sorted(name.removeprefix("aten::") for name in names if name.startswith("aten::"))


def overload_packet(overload: str) -> Any:
    """The function of torch that is an overload: `torch.ops.aten.add.Tensor`."""
    base, _, name = overload.partition(".")
    return getattr(getattr(torch.ops.aten, base), name or "default")


def schema_of(overload: str) -> Any:
    """The schema of an overload: its arguments, results, and which of them are written or alias each other."""
    base, _, name = overload.partition(".")
    return torch._C._get_schema(f"aten::{base}", name)
