"""torch's Python functions that need a tensor to have memory, or that treat devices of other people differently."""

from __future__ import annotations

import warnings
from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from gt.client.stream import scope
from gt.torch_device import handles
from gt.torch_device.backend import NAME, is_on_device

#: The name of a signal without a configuration: parameters and buffers are not placed as data that is uploaded.
CONVERSION = "@conversion"


def install() -> None:
    tensor: Any = torch.Tensor
    storage: Any = torch.UntypedStorage
    tensor.__deepcopy__ = _deep_copy(tensor.__deepcopy__)
    tensor._reduce_ex_internal = _reduce(tensor._reduce_ex_internal)
    # without their argument, which torch wants to drop, these two would ask GT's device
    warnings.filterwarnings("ignore", "The argument 'device' of Tensor", DeprecationWarning)
    tensor.pin_memory, tensor.is_pinned = _pin_memory(tensor.pin_memory), _is_pinned(tensor.is_pinned)
    tensor.data_ptr = _data_ptr(tensor.data_ptr, handles.address, is_on_device)
    storage.data_ptr = _data_ptr(storage.data_ptr, handles.storage_address, lambda s: s.device.type == NAME)
    torch.compile = _compile(torch.compile)
    torch.nn.Module._apply = _apply(torch.nn.Module._apply)  # type: ignore[method-assign]


def _compile(original: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.compile(backend="gt")``: the backend is registered when it is first named, because that takes seconds."""

    @wraps(original)
    def compile(*args: Any, backend: Any = "inductor", **options: Any) -> Any:
        if backend == "gt":
            import gt.torch_device.compiled  # noqa: F401
        return original(*args, backend=backend, **options)

    return compile


def _deep_copy(original: Callable[..., Any]) -> Callable[..., Any]:
    """torch copies the memory of a tensor that is not a Parameter."""

    @wraps(original)
    def deep_copy(x: torch.Tensor, memo: dict[int, Any]) -> Any:
        if not is_on_device(x) or type(x) is not torch.Tensor or not x.is_leaf:
            return original(x, memo)
        if id(x) not in memo:
            memo[id(x)] = x.detach().clone().requires_grad_(x.requires_grad)
            if x.grad is not None:
                memo[id(x)].grad = deep_copy(x.grad, memo)
        return memo[id(x)]

    return deep_copy


def _reduce(original: Callable[..., Any]) -> Callable[..., Any]:
    """`torch.save` and pickle read the storage of a tensor when they write it, one at a time."""
    typed_storage: Any = torch.storage.TypedStorage

    @wraps(original)
    def reduce(x: torch.Tensor, protocol: int) -> Any:
        if not is_on_device(x):
            return original(x, protocol)
        value = handles.unwrap(x)
        is_whole = value._view is None and value._strides is None and not x.is_conj() and not x.is_neg()
        whole = x.detach() if is_whole else x.detach().clone()
        storage = typed_storage(wrap_storage=whole.untyped_storage(), dtype=x.dtype, _internal=True)
        hooks: OrderedDict[int, Any] = OrderedDict()
        arguments = (storage, 0, tuple(whole.shape), whole.stride(), x.requires_grad, hooks)
        return torch._utils._rebuild_tensor_v2, arguments

    return reduce


def _pin_memory(original: Callable[..., Any]) -> Callable[..., Any]:
    """torch would ask the device of another for pinned memory, in the whole process. GT reads any memory as quickly."""

    @wraps(original)
    def pin_memory(x: torch.Tensor, device: Any = None) -> torch.Tensor:
        return original(x, "cuda") if torch.cuda.is_available() else x

    return pin_memory


def _is_pinned(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def is_pinned(x: torch.Tensor, device: Any = None) -> bool:
        return bool(original(x, "cuda")) if torch.cuda.is_available() else False

    return is_pinned


def _data_ptr(
    original: Callable[..., int], address: Callable[[Any], int], is_ours: Callable[[Any], bool]
) -> Callable[..., int]:
    """Programs compare addresses to find tensors that share memory; those of the device are made up."""

    @wraps(original)
    def data_ptr(x: Any) -> int:
        return original(x) or (address(x) if is_ours(x) else 0)

    return data_ptr


def _apply(original: Callable[..., Any]) -> Callable[..., Any]:
    """`Module.to` keeps its parameters the same objects, as on torch's own devices.

    Otherwise weights that two modules share would be two after ``model.to("gtx")``, and an optimizer would keep the old
    ones: torch replaces parameters that it cannot write into.
    """

    @wraps(original)
    def apply(module: torch.nn.Module, fn: Callable[..., Any], recurse: bool = True) -> torch.nn.Module:
        # Parameters without a shape yet have a class of their own, which the replacement would lose.
        lazy = [(p, type(p)) for p in module._parameters.values() if p is not None and is_lazy(p)]
        result = convert(module, fn, recurse)
        for parameter, kind in lazy:
            parameter.__class__ = kind
        return result

    def convert(module: torch.nn.Module, fn: Callable[..., Any], recurse: bool) -> torch.nn.Module:
        future = torch.__future__
        if future.get_swap_module_params_on_conversion() or not _changes_device(module, fn):
            return original(module, fn, recurse)  # type: ignore[no-any-return]
        future.set_swap_module_params_on_conversion(True)
        try:
            with scope.under(scope.thread.signal or CONVERSION):
                return original(module, fn, recurse)  # type: ignore[no-any-return]
        finally:
            future.set_swap_module_params_on_conversion(False)

    return apply


def _changes_device(module: torch.nn.Module, fn: Callable[..., Any]) -> bool:
    """Whether a conversion moves the module to the device or away from it, which an empty tensor shows."""
    first = next(module.parameters(), None)
    if first is None:
        return False
    sample = torch.empty(0, dtype=first.dtype, device=first.device)
    try:
        with torch.no_grad():
            return is_on_device(fn(sample)) != is_on_device(first)
    except Exception:  # a function of the user's that is no conversion, such as ``lambda t: t[0]``
        return False
