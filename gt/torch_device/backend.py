"""The experimental parts of torch that the device needs, in one file: registration, tensors without memory, kernels.

torch calls a backend of its own the device type PrivateUse1. Its tensors have a storage without memory, whose Python
object torch keeps as long as the storage lives. `gt.torch_device.handles` attaches GT's tensor to that object.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from itertools import repeat
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils import backend_registration

from gt.client.stream import sites

#: The device in ``x.to("gtx")``. "gt" is not free: `torch.gt` and `Tensor.gt` compare.
NAME = "gtx"
#: The versions of torch that the tests of the device have passed with. What depends on the version is in this file.
TRIED_VERSIONS = ("2.11", "2.13", "2.15")
#: The dispatch keys of the device's kernels, of what is recorded for gradients, and of casts under `torch.autocast`.
KEY, AUTOGRAD_KEY, AUTOCAST_KEY = "PrivateUse1", "AutogradPrivateUse1", "AutocastPrivateUse1"
#: That of rules for `torch.vmap`, on all devices.
VMAP_KEY = "FuncTorchBatched"

Kernel = Callable[..., Any]

_DEVICE_KEY = torch._C.DispatchKey.PrivateUse1
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_reshape_alias: Any = torch.ops.aten._reshape_alias.default._handle.redispatch_boxed
#: torch forgets the kernels of a library that is freed.
_library: Any = torch.library.Library
_aten, _all_namespaces = _library("aten", "IMPL"), _library("_", "IMPL")


class _DeviceGuard(torch._C._acc.DeviceGuard):
    """What autograd asks for the kind of the device, for each op that it records."""

    def __init__(self) -> None:
        super().__init__()
        # a function without a frame: autograd's question is answered in half the time
        self.type_ = repeat(torch._C._autograd.DeviceType.PrivateUse1).__next__  # type: ignore


def register_device(module: object, around_backward: Callable[[], AbstractContextManager[None]]) -> None:
    """Register the device with torch; ``module`` becomes `torch.gtx`.

    Each backward pass runs in the context that ``around_backward`` returns.
    """
    setup: Any = backend_registration._setup_privateuseone_for_python_backend
    setup(NAME, backend_module=module, device_guard=_DeviceGuard())
    # A view is computed again from its base by the ops that made it; as_strided would need memory.
    torch._C._set_view_replay_enabled(True)
    _run_backward_in_the_calling_thread(around_backward)


def _run_backward_in_the_calling_thread(around_backward: Callable[[], AbstractContextManager[None]]) -> None:
    """Otherwise it runs in a thread of the device, where the signal and the user's source line are unknown.

    torch's own switch holds for one thread of the program only.
    """
    autograd: Any = torch.autograd
    run = autograd._engine_run_backward

    @wraps(run)
    def run_here(*args: Any, **kwargs: Any) -> Any:
        # One source line for all of it, the user's call: a look-up for each op would pass through torch's frames.
        with torch.autograd.set_multithreading_enabled(False), sites.held(), around_backward():
            return run(*args, **kwargs)

    autograd._engine_run_backward = run_here


#: The number that the next node of this thread's autograd graph gets.
next_node_number: Callable[[], int] = torch._C._autograd._get_sequence_nr
#: The node whose gradients are being computed in this thread, or None.
current_node: Callable[[], Any] = torch._C._current_autograd_node


def node_number(node: Any) -> int:
    """The number of a node. That of a leaf's node is greater than all others."""
    return node._sequence_nr()  # type: ignore[no-any-return]


#: (shape, dtype) -> a tensor on the device, contiguous, with a storage of its own
new_tensor: Callable[[tuple[int, ...], torch.dtype], torch.Tensor] = torch._C._acc.create_empty_tensor


def is_on_device(x: torch.Tensor) -> bool:
    """Whether a tensor is on the device. Under `gt.run`, ``x.device`` may answer ``cuda``."""
    return torch._C._dispatch_keys(x).has(_DEVICE_KEY)


#: Tensors of other classes may see the ops that torch puts together.
_PLAIN = frozenset((torch.Tensor, torch.nn.Parameter))


def is_plain(x: torch.Tensor) -> bool:
    """Whether a tensor is on the device, and nothing of torch stands between it and the kernels."""
    return type(x) in _PLAIN and not x.is_neg() and torch._C._dispatch_keys(x).has(_DEVICE_KEY)


def with_strides(x: torch.Tensor, shape: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    """A tensor with these strides on the same storage. The CPU's kernel does not compare them with its size."""
    result: torch.Tensor = _reshape_alias(_CPU, x, shape, strides)
    return result


def like_sample(sample: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """A tensor with the shape and strides of a sample, and a storage of its own. Half the time of `with_strides`."""
    result = sample.detach()
    _set_storage(result, new_tensor((0,), dtype))
    return result


_set_storage: Callable[[torch.Tensor, torch.Tensor], None] = torch._functionalize_unsafe_set


def has_saved_tensor_hooks() -> bool:
    """Whether hooks of `torch.autograd.graph.saved_tensors_hooks` see what is saved for gradients now."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


def is_transformed() -> bool:
    """Whether ops are traced, vectorized or differentiated forward by torch, and must be visible to it."""
    return (
        torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
    )


def without_transforms(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """``function.apply`` without its search for transforms, for calls where `is_transformed` is false."""
    return super(torch.autograd.Function, function).apply  # type: ignore[no-any-return, misc]


#: A context in which kernels of autograd are skipped.
below_autograd: Callable[[], AbstractContextManager[None]] = torch._C._AutoDispatchBelowAutograd


def is_forward_mode() -> bool:
    """Whether torch differentiates forward."""
    return forward_ad._current_level >= 0


#: The overloads whose kernel under autograd sees by itself that torch differentiates forward.
SEEING_FORWARD_MODE: set[str] = set()


def in_forward_mode(overloads: tuple[str, ...]) -> None:
    """Put these overloads together from others while torch differentiates forward: it has no rule for the whole.

    A kernel that decides in each call would cost all others."""
    libraries: list[Any] = []
    levels: Any = forward_ad
    enter, leave = levels.enter_dual_level, levels.exit_dual_level

    @wraps(enter)
    def enter_level() -> Any:
        level = enter()
        library = _library("aten", "IMPL")
        for overload in set(overloads) - SEEING_FORWARD_MODE if level == 0 else ():
            library.impl(overload, overload_packet(overload).decompose, AUTOGRAD_KEY)
        libraries.append(library)
        return level

    @wraps(leave)
    def leave_level(*args: Any, **kwargs: Any) -> None:
        leave(*args, **kwargs)
        libraries.pop()._destroy()

    levels.enter_dual_level, levels.exit_dual_level = enter_level, leave_level


#: the overloads that have a kernel of the device
OVERLOADS: set[str] = set()


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
    name = overload if "::" in overload else f"aten::{overload}"
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(name, key))


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
