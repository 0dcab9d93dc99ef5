"""Files for torch.load: torch.save writes them, so torch must be installed in the client's environment."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, BinaryIO

from gt.client.tensor.tensor import Tensor
from gt.errors import ConfigError
from gt.launch.backend import INSTALL_TORCH
from gt.nn.module import Module
from gt.nn.parameter import Parameter
from gt.types import DType, bfloat16, float32


def write(obj: Any, file: BinaryIO) -> None:
    """Write an object with torch's tensors in place of GT's. Raises TypeError for a module."""
    try:
        import torch
    except ModuleNotFoundError:
        raise ConfigError(f'save(format="torch"): torch is not installed; {INSTALL_TORCH}') from None
    torch.save(_as_torch(torch, obj, {}), file)


def _as_torch(torch: Any, x: Any, done: dict[int, Any]) -> Any:
    """The same with torch's tensors and dtypes. ``done``: the id of a tensor -> its copy, so that both appear once."""
    if isinstance(x, Tensor):
        if id(x) not in done:
            done[id(x)] = _tensor(torch, x)
        return done[id(x)]
    if isinstance(x, DType):
        return getattr(torch, x.name)
    if isinstance(x, Module):
        raise TypeError('save(format="torch"): torch has no class for a module of GT; save its state_dict()')
    if isinstance(x, dict):
        items = {k: _as_torch(torch, v, done) for k, v in x.items()}
        return OrderedDict(items) if isinstance(x, OrderedDict) else items
    if isinstance(x, list | tuple):
        elements = [_as_torch(torch, v, done) for v in x]
        return elements if isinstance(x, list) else tuple(elements)
    return x


def _tensor(torch: Any, x: Tensor) -> Any:
    value = x.detach()
    if x.dtype is bfloat16:  # numpy has no such dtype, and float32 holds all its values
        result = torch.from_numpy(value.to(float32).numpy()).bfloat16()
    else:
        result = torch.from_numpy(value.numpy().copy())
    return torch.nn.Parameter(result, x.requires_grad) if isinstance(x, Parameter) else result
