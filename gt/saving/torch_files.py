"""torch's own files: torch.save writes and torch.load reads them, so torch must be installed beside the client."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, BinaryIO

from gt.client.tensor.tensor import Tensor
from gt.errors import ConfigError
from gt.functions.creation import tensor
from gt.launch.backend import INSTALL_TORCH
from gt.nn.module import Module
from gt.nn.parameter import Parameter
from gt.types import DTYPES, DType, bfloat16, float32


def write(obj: Any, file: BinaryIO) -> None:
    """Write an object with torch's tensors in place of GT's. Raises TypeError for a module."""
    try:
        import torch
    except ModuleNotFoundError:
        raise ConfigError(f'save(format="torch"): torch is not installed; {INSTALL_TORCH}') from None

    def leaf(x: Any) -> Any:
        if isinstance(x, Module):
            raise TypeError('save(format="torch"): torch has no class for a module of GT; save its state_dict()')
        if isinstance(x, DType):
            return getattr(torch, x.name)
        return _as_torch(torch, x) if isinstance(x, Tensor) else x

    torch.save(_converted(obj, leaf, {}), file)


def read(source: str | BinaryIO, path: str) -> Any:
    """The object of a file, with GT's tensors in place of torch's. No code of the file runs."""
    try:
        import torch
    except ModuleNotFoundError:
        raise ConfigError(f"{path} is a file of torch.save, and torch is not installed; {INSTALL_TORCH}") from None

    def leaf(x: Any) -> Any:
        if isinstance(x, torch.dtype):
            return DTYPES.get(str(x).removeprefix("torch."), x)
        return _from_torch(torch, x) if isinstance(x, torch.Tensor) else x

    return _converted(_loaded(torch, source, path), leaf, {})


def read_bytes(source: BinaryIO, path: str) -> bytes:
    """The values of a file of one tensor, in row-major order."""
    try:
        import torch
    except ModuleNotFoundError:
        raise ConfigError(
            f"{path} has tensors that only torch can read, and it is not installed; {INSTALL_TORCH}"
        ) from None
    value = _loaded(torch, source, path)
    if not isinstance(value, torch.Tensor):
        raise ValueError(f"{path}: no tensor where one was expected")
    return value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


def _loaded(torch: Any, source: str | BinaryIO, path: str) -> Any:
    try:
        return torch.load(source, map_location="cpu", weights_only=True)
    except Exception as error:  # what a damaged file raises is not documented
        raise ValueError(
            f"{path}: torch.load(weights_only=True), which runs no code of a file, cannot read it: {_reason(error)} "
            f'If you trust the file: model.load_state_dict(torch.load({path!r}, weights_only=False)["model"])'
        ) from None


def _reason(error: Exception) -> str:
    """The sentence of torch's text that names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause = next((line for line in lines if "WeightsUnpickler error" in line), lines[0] if lines else repr(error))
    return cause.split(". ")[0].rstrip(".") + "."


def _converted(x: Any, leaf: Callable[[Any], Any], done: dict[int, Any]) -> Any:
    """The same nesting with converted leaves. ``done``: the id of a leaf -> its copy, so that a leaf stays one."""
    if isinstance(x, dict):
        items = {k: _converted(v, leaf, done) for k, v in x.items()}
        return OrderedDict(items) if isinstance(x, OrderedDict) else items
    if isinstance(x, list | tuple):
        elements = [_converted(v, leaf, done) for v in x]
        return elements if isinstance(x, list) else tuple(elements)
    if id(x) not in done:
        done[id(x)] = leaf(x)
    return done[id(x)]


def _from_torch(torch: Any, x: Any) -> Tensor:
    value = tensor(x.detach())
    if isinstance(x, torch.nn.Parameter):
        return Parameter(value, x.requires_grad)
    return value.requires_grad_() if x.requires_grad else value


def _as_torch(torch: Any, x: Tensor) -> Any:
    value = x.detach()
    if x.dtype is bfloat16:  # numpy has no such dtype, and float32 holds all its values
        result = torch.from_numpy(value.to(float32).numpy()).bfloat16()
    else:
        result = torch.from_numpy(value.numpy().copy())
    return torch.nn.Parameter(result, x.requires_grad) if isinstance(x, Parameter) else result
