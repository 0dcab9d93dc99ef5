"""For `gt.run`: in the script, the device ``cuda`` is ``gtx``.

A mode of torch replaces the device in the arguments of torch's functions. The names of `torch.cuda` that scripts ask
before they use a GPU answer for the device.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from gt.torch_device.backend import NAME

#: What `torch.cuda` says under `gt.run`.
_ANSWERS = {
    "is_available": True,
    "is_bf16_supported": True,
    "device_count": 1,
    "current_device": 0,
    "get_device_name": "GT",
    "set_device": None,
    "synchronize": None,
    "empty_cache": None,
}


def replace(device: Any) -> Any:
    """``gtx`` for a device of type cuda, as a text or an object; anything else as it is."""
    is_cuda = (isinstance(device, str) and device.partition(":")[0] == "cuda") or (
        isinstance(device, torch.device) and device.type == "cuda"
    )
    return torch.device(NAME) if is_cuda else device


class CudaAsGT(TorchFunctionMode):
    """Inside, the device ``cuda`` in an argument of a function of torch is ``gtx``."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.Tensor.cuda:
            return args[0].to(NAME)
        if kwargs:
            kwargs = {name: replace(x) for name, x in kwargs.items()}
        return function(*[replace(x) for x in args], **(kwargs or {}))


def enter() -> None:
    """From now on, in this thread, ``cuda`` means GT."""
    for name, answer in _ANSWERS.items():
        setattr(torch.cuda, name, lambda *args, answer=answer, **kwargs: answer)
    kinds: tuple[Any, ...] = torch.amp.autocast_mode.autocast, torch.amp.grad_scaler.GradScaler
    for kind in kinds:
        kind.__init__ = _with_device(kind.__init__)
    module: Any = torch.nn.Module
    tensor: Any = torch.Tensor
    mode: Any = CudaAsGT()
    module.cuda = lambda self, device=None: self.to(NAME)
    tensor.pin_memory = lambda self, device=None: self
    mode.__enter__()


def _with_device(original: Any) -> Any:
    """A constructor whose first argument is the name of a device."""

    @wraps(original)
    def init(self: Any, device: str = "cuda", *args: Any, **kwargs: Any) -> None:
        name = kwargs.pop("device_type", device)
        original(self, NAME if replace(name) is not name else name, *args, **kwargs)

    return init
