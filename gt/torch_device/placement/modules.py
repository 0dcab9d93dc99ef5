"""What a configuration says about modules of torch: where their parameters are, and under which signals they run.

A module's first call places its parameters by their names. Not ``model.to("gtx")``: a model may be created on the
device, or loaded there, and a configuration may be loaded later. The hooks of torch that see every call exist only
while a configuration needs them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any
from weakref import ref

import torch
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from gt.client.signals.signal import context
from gt.client.stream import configuration
from gt.client.tensor import placing
from gt.client.tensor.tensor import Tensor
from gt.torch_device.backend import is_on_device
from gt.torch_device.handles import unwrap

#: the hooks that are registered with torch
_hooks: list[Any] = []


class _Calls(threading.local):
    def __init__(self) -> None:
        #: the modules being called under a signal
        self.entered: list[tuple[torch.nn.Module, context]] = []


_calls = _Calls()


def install() -> None:
    placing.tensor_of, placing.watch_grads = _tensor_of(placing.tensor_of), _watch_grads
    configuration.on_change.append(_update_hooks)
    _update_hooks()


def _tensor_of(original: Callable[[Any], Tensor | None]) -> Callable[[Any], Tensor | None]:
    def tensor_of(parameter: Any) -> Tensor | None:
        if not isinstance(parameter, torch.Tensor):
            return original(parameter)
        return unwrap(parameter) if is_on_device(parameter) else None

    return tensor_of


def _update_hooks() -> None:
    now = configuration.current
    for hook in _hooks:
        hook.remove()
    _hooks.clear()
    if now.rules or now.auto:
        _hooks.append(register_module_forward_pre_hook(_before_call))
    if now.module_rules:
        _hooks.append(register_module_forward_hook(_after_call, always_call=True))


def _before_call(module: torch.nn.Module, arguments: Any) -> None:
    signal = placing.place_parameters(module)
    if signal:
        _calls.entered.append((module, context(signal).__enter__()))


def _after_call(module: torch.nn.Module, arguments: Any, result: Any) -> None:
    if _calls.entered and _calls.entered[-1][0] is module:
        _calls.entered.pop()[1].__exit__()


def _watch_grads(parameter: Any) -> None:
    """Place each new gradient of a sharded parameter like the parameter, so that no worker holds a whole one."""
    if parameter.requires_grad and not hasattr(parameter, "_grads_watched"):
        leaf = ref(parameter)  # torch's graph keeps the hook, which must not keep the parameter
        parameter.register_hook(lambda grad: placing.place_grad(leaf(), unwrap(grad)))
        parameter._grads_watched = True
