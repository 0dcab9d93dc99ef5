"""For `gt.run`: in the script, the device ``cuda`` is GT.

A mode of torch replaces the device in the arguments of torch's functions, and ``cuda:0`` is what a tensor of the device
answers for ``x.device``. Constructors that pass no mode, and `torch.cuda`, are replaced.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import serialization
from torch.overrides import TorchFunctionMode
from torch.utils import _device
from torch.utils import _pytree as pytree

from gt.torch_device import storages
from gt.torch_device.backend import NAME, is_on_device
from gt.torch_device.cuda import backward
from gt.torch_device.cuda import module as cuda_module
from gt.torch_device.cuda.generator import CudaGenerator

_CUDA, _DEVICE = torch.device("cuda:0"), torch.device(NAME)


def replace(device: Any) -> Any:
    """``gtx`` for a device of type cuda, as a text or an object; anything else as it is."""
    if isinstance(device, str) and device.partition(":")[0] == "cuda":
        device = torch.device(device)
    if not isinstance(device, torch.device) or device.type != "cuda":
        return device
    if device.index:
        raise RuntimeError(f"CUDA error: invalid device ordinal: {device}; torch.cuda.device_count() is 1")
    return _DEVICE


def _cuda(x: torch.Tensor, device: Any = None, *args: Any, **kwargs: Any) -> torch.Tensor:
    replace(torch.device("cuda", device) if isinstance(device, int) else device)
    return x.to(_DEVICE)


def _device_of(x: torch.Tensor) -> torch.device:
    return _CUDA if is_on_device(x) else x.device


def _new_device(*args: Any, **kwargs: Any) -> torch.device:
    """``torch.device(0)`` is the first device of the accelerator, which the script calls cuda."""
    device = torch.device(*args, **kwargs)
    names_it = any(NAME in str(value) for value in (*args, *kwargs.values()))
    return device if device.type != NAME or names_it else torch.device("cuda", device.index or 0)


_tensor: Any = torch.Tensor
#: what the mode calls instead of functions of torch
_INSTEAD: dict[Any, Callable[..., Any]] = {
    torch.device: _new_device,
    _tensor.cuda: _cuda,
    _tensor.device.__get__: _device_of,
    _tensor.is_cuda.__get__: is_on_device,
}


class CudaAsGT(TorchFunctionMode):
    """Inside, the device ``cuda`` in an argument of a function of torch is ``gtx``."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if (instead := _INSTEAD.get(function)) is not None:
            return instead(*args, **(kwargs or {}))
        if kwargs:
            if isinstance(kwargs.get("generator"), CudaGenerator):
                with kwargs["generator"].drawing():
                    return self.__torch_function__(function, types, args, kwargs | {"generator": None})
            kwargs = {name: replace(x) for name, x in kwargs.items()}
        return function(*[replace(x) for x in args], **(kwargs or {}))


def enter() -> None:
    """From now on ``cuda`` means GT, in this thread and in those that it starts."""
    cuda_module.install()
    modules: Any = torch.nn.Module
    classes: Any = torch.amp.autocast_mode.autocast, torch.amp.grad_scaler.GradScaler
    for kind in classes:
        kind.__init__ = _with_device_type(kind.__init__)
    for name in ("is_autocast_enabled", "get_autocast_dtype", "set_autocast_enabled", "set_autocast_dtype"):
        setattr(torch, name, _with_device_type_first(getattr(torch, name)))
    # `with torch.device("cuda")` and `torch.set_default_device` are below all modes
    _device.DeviceContext.__init__ = _with_device(_device.DeviceContext.__init__)  # type: ignore[method-assign]
    modules.cuda = lambda self, device=None: self._apply(lambda x: x.cuda(device))
    _tensor.pin_memory = lambda self, device=None: self
    _tensor.record_stream = lambda self, stream: None
    _enter_storages()
    torch.Generator = TorchGenerator  # type: ignore[assignment, misc]
    torch.nn.DataParallel.scatter = _scatter  # type: ignore[method-assign]
    torch.compile = _compile(torch.compile)
    cudnn: Any = torch.backends.cudnn
    cudnn.is_acceptable = _is_acceptable(cudnn.is_acceptable)
    backward.enter(CudaAsGT)
    _in_new_threads()
    _enter_mode()


def _enter_mode() -> None:
    mode: Any = CudaAsGT()
    mode.__enter__()


def _enter_storages() -> None:
    """`torch.load` with locations of type cuda, and files that name it."""
    storage: Any = torch.UntypedStorage
    storage.cuda = lambda self, device=None, non_blocking=False: storages.to_device(self)
    serialization.register_package(4, _location, storages.restorer("cuda"))


def _location(storage: Any) -> str | None:
    """What a file says about the device of a storage."""
    return str(_CUDA) if storage.device.type == NAME else None


class _GeneratorType(type):
    """`torch.Generator`: a class for ``isinstance``, and generators of two kinds."""

    def __instancecheck__(cls, x: object) -> bool:
        return isinstance(x, torch._C.Generator)

    def __call__(cls, device: Any = "cpu") -> Any:
        return CudaGenerator() if replace(device) is not device else torch._C.Generator(device)


class TorchGenerator(metaclass=_GeneratorType):
    """See `torch.Generator`."""


def _scatter(self: Any, inputs: Any, kwargs: Any, device_ids: Any) -> Any:
    """`torch.nn.DataParallel` on one device."""
    moved = pytree.tree_map(lambda x: x.cuda() if isinstance(x, torch.Tensor) else x, (inputs, kwargs or {}))
    return (moved[0],), (moved[1],)


def _is_acceptable(original: Any) -> Any:
    """Whether cudnn of the client takes a tensor. `torch.nn.LSTM` would arrange its weights in memory for it."""
    return lambda x: not is_on_device(x) and original(x)


def _compile(original: Any) -> Any:
    """`torch.compile` for torch's own compiler: nothing is compiled in the client."""

    @wraps(original)
    def compile(model: Any = None, *, backend: Any = "inductor", **options: Any) -> Any:
        if backend != "inductor":
            return original(model, backend=backend, **options)
        return model if model is not None else lambda function: function

    return compile


def _with_device_type(original: Any) -> Any:
    """A constructor whose first argument is the name of a device."""

    @wraps(original)
    def init(self: Any, device: str = "cuda", *args: Any, **kwargs: Any) -> None:
        name = kwargs.pop("device_type", device)
        original(self, NAME if replace(name) is not name else name, *args, **kwargs)

    return init


def _with_device_type_first(original: Any) -> Any:
    """A function whose first argument may be the name of a device."""

    @wraps(original)
    def function(*args: Any) -> Any:
        return original(*[NAME if isinstance(x, str) and x == "cuda" else x for x in args])

    return function


def _with_device(original: Any) -> Any:
    @wraps(original)
    def init(self: Any, device: Any) -> None:
        original(self, replace(device))

    return init


def _in_new_threads() -> None:
    """Modes of torch hold for one thread."""
    start = threading.Thread.start

    @wraps(start)
    def start_in_mode(thread: threading.Thread) -> None:
        run = thread.run

        def run_in_mode() -> None:
            _enter_mode()
            run()

        thread.run = run_in_mode  # type: ignore[method-assign]
        start(thread)

    threading.Thread.start = start_in_mode  # type: ignore[assignment, method-assign]
