"""What the device has no kernel for raises, at the user's line, and names itself.

With ``GT_TORCH_FALLBACK=1`` it runs on the client's CPU instead: its operands are read, and its results uploaded. Each
is counted, and reported at its first use.
"""

from __future__ import annotations

import os
from typing import Any
from warnings import warn

import torch
from torch.utils import _pytree as pytree

from gt.errors import GtError
from gt.torch_device.backend import NAME
from gt.torch_device.handles import download, upload, wrap, write

SETTING = "GT_TORCH_FALLBACK"
_counts: dict[str, int] = {}


class MissingKernel(GtError, NotImplementedError):
    """An op of torch's that the device does not have."""


def cpu_fallbacks() -> dict[str, int]:
    """How often each op ran on the client's CPU, under ``GT_TORCH_FALLBACK=1``."""
    return dict(_counts)


def run(op: Any, *args: Any, **kwargs: Any) -> Any:
    """The kernel of everything that has no other."""
    if os.environ.get(SETTING, "0") in ("", "0"):
        raise MissingKernel(
            f"{op}: the device {NAME!r} has no kernel for it; {SETTING}=1 runs such ops on the client's CPU"
        )
    name = str(op)
    if name not in _counts:
        warn(f"{name} runs on the client's CPU: the device {NAME!r} has no kernel for it", stacklevel=2)
    _counts[name] = _counts.get(name, 0) + 1
    return _run_on_cpu(op, args, kwargs)


def _run_on_cpu(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    flat, spec = pytree.tree_flatten((args, kwargs))
    moved = [_to_cpu(x) for x in flat]
    cpu_args, cpu_kwargs = pytree.tree_unflatten(moved, spec)
    results = op(*cpu_args, **cpu_kwargs)
    written = {id(copy): x for x, copy in zip(flat, moved, strict=True) if copy is not x}
    for argument, x, copy in _written(op._schema, (args, kwargs), (cpu_args, cpu_kwargs)):
        if x.shape != copy.shape:
            raise MissingKernel(f"{op}: it would change the shape of {argument}")
        write(x, upload(copy))

    def to_device(y: Any) -> Any:
        return (written.get(id(y)) if id(y) in written else wrap(upload(y))) if isinstance(y, torch.Tensor) else y

    return pytree.tree_map(to_device, results)


def _to_cpu(x: Any) -> Any:
    if isinstance(x, torch.Tensor) and x.device.type == NAME:
        return download(x)
    return torch.device("cpu") if isinstance(x, torch.device) and x.type == NAME else x


def _written(schema: Any, device: Any, cpu: Any) -> list[tuple[str, torch.Tensor, torch.Tensor]]:
    """The arguments that the op writes: name, tensor, and its copy on the CPU."""
    found = []
    for i, argument in enumerate(schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        x, copy = (args[i] if i < len(args) else kwargs.get(argument.name) for args, kwargs in (device, cpu))
        pairs = zip(pytree.tree_leaves(x), pytree.tree_leaves(copy), strict=True)
        found += [(argument.name, a, b) for a, b in pairs if isinstance(a, torch.Tensor) and a is not b]
    return found
