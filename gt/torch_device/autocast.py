"""`torch.autocast("gtx")`: the policy of an op is in its entry (`Op.autocast`)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial, reduce
from typing import Any

import torch

from gt.ops import OPS, Op
from gt.torch_device import autocast_products, backend
from gt.torch_device.attention import attention

_KEYS = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, backend.AUTOCAST_KEY))
_CASTABLE = frozenset((torch.float32, torch.bfloat16, torch.float16))
#: The types of most other arguments.
_NEVER_CAST = frozenset((int, float, bool, str, type(None)))
#: Functions of ATen that contain an op, or are one under a name that is not in its entry.
_CONTAINING = {
    "scaled_dot_product_attention": OPS["attention"],
    "linalg_vector_norm": OPS["vector_norm"],
    "grid_sampler": OPS["grid_sample"],
}
#: A shorter way to an overload than `torch.ops`.
_DIRECT: dict[str, Any] = {"scaled_dot_product_attention": attention}


def register() -> None:
    """Register the casts. Under autocast, all other functions of ATen run as they are."""
    backend.skip_autocast()
    policies = {name: op.autocast for name, op in _names() if op.autocast}
    for overload in backend.overloads():
        policy = policies.get(overload.partition(".")[0])
        if policy is not None and not overload.endswith("out"):
            rule = _widening if policy == "float32_result" else partial(_casting, policy)
            kernel = rule(_DIRECT.get(overload) or backend.overload_packet(overload))
            if overload in autocast_products.KERNELS:
                kernel = autocast_products.KERNELS[overload](kernel)
            backend.add_kernel(overload, kernel, backend.AUTOCAST_KEY)


def _names() -> Iterator[tuple[str, Op]]:
    yield from _CONTAINING.items()
    for op in OPS.values():
        for name in (op.name, *op.aliases, *op.aten):
            yield name, op


def _casting(policy: str, overload: Any) -> backend.Kernel:
    """The kernel that casts an overload's arguments and then runs it."""

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            dtype = _target(policy, (*args, *kwargs.values()))
            if dtype is None:
                return overload(*args, **kwargs)
            named = {name: _cast(x, dtype) for name, x in kwargs.items()}
            return overload(*[_cast(x, dtype) for x in args], **named)

    return kernel


def _widening(overload: Any) -> backend.Kernel:
    """The kernel that asks an overload for a result in float32, unless the call names a dtype.

    The operand stays as it is: torch's `cross_entropy` names the dtype of its logits, and a cast of them to float32 and
    back would be most of the memory that it touches."""
    names = [argument.name for argument in overload._schema.arguments]
    position = names.index("dtype")

    def kernel(x: Any, *args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            given = (x, *args)[position] if len(args) >= position else kwargs.get("dtype")
            if given is None and _is_castable(x):
                return overload(x, *args[: position - 1], **kwargs | {"dtype": torch.float32})
            return overload(x, *args, **kwargs)

    return kernel


def _target(policy: str, arguments: tuple[Any, ...]) -> torch.dtype | None:
    if policy == "lower":
        return torch.get_autocast_dtype(backend.NAME)
    if policy != "widest":
        return torch.float32
    dtypes = [x.dtype for x in _tensors(arguments) if _is_castable(x)]
    return reduce(torch.promote_types, dtypes) if dtypes else None


def _tensors(x: Any) -> Iterator[torch.Tensor]:
    if isinstance(x, torch.Tensor):
        yield x
    elif isinstance(x, list | tuple):
        for item in x:
            yield from _tensors(item)


def _is_castable(x: torch.Tensor) -> bool:
    return x.dtype in _CASTABLE and backend.is_on_device(x)


def _cast(x: Any, dtype: torch.dtype) -> Any:
    kind = type(x)
    if kind in _NEVER_CAST:
        return x
    if isinstance(x, torch.Tensor):
        return x.to(dtype) if x.dtype is not dtype and _is_castable(x) else x
    return [_cast(item, dtype) for item in x] if kind is list or kind is tuple else x
