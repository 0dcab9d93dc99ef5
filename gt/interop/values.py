"""GT's tensors for functions of torch: each is read, and given as a torch tensor without gradients."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib import import_module
from typing import Any

from gt.client.tensor.tensor import Tensor
from gt.functions.creation import as_tensor


def to_torch(x: Any) -> Any:
    """The same structure, with torch tensors in place of GT's."""
    if isinstance(x, Tensor):
        return import_module("torch").tensor(x.detach())
    if isinstance(x, dict):
        return {key: to_torch(value) for key, value in x.items()}
    if type(x) in (list, tuple):
        return type(x)(map(to_torch, x))
    return x


def holds_tensor(x: Any) -> bool:
    """Whether a tensor of GT is anywhere in the structure."""
    if type(x) in (list, tuple, dict):
        return any(map(holds_tensor, x.values() if type(x) is dict else x))
    return isinstance(x, Tensor)


def with_values(function: Callable[..., Any], back: bool = False) -> Callable[..., Any]:
    """The function of torch, which accepts tensors of GT too. With ``back`` its result is then a tensor of GT."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not holds_tensor(args) and not holds_tensor(kwargs):
            return function(*args, **kwargs)
        result = function(*to_torch(args), **to_torch(kwargs))
        return as_tensor(result) if back and hasattr(result, "__array__") else result

    return call
