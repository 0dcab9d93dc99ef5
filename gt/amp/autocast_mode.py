"""`autocast` lowers the precision of ops; `custom_fwd` and `custom_bwd` make a user's function follow it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from functools import partial, reduce, wraps
from typing import Any

import gt.client.grad.checkpoint as checkpointing
from gt.client.stream import sites
from gt.client.tensor import emit
from gt.client.tensor.arguments import TO, TO_ATTRS, cast, dtype_of
from gt.client.tensor.emit import unary
from gt.client.tensor.tape import LeafNode
from gt.client.tensor.tensor import Tensor
from gt.missing import absent
from gt.ops import Attrs, Op
from gt.types import DType, bfloat16, float16, float32, float64, promote

__all__ = ["autocast", "custom_bwd", "custom_fwd", "is_autocast_available", "is_autocast_enabled"]
absent("amp.autocast_mode")


class _AutocastMode(threading.local):
    """The settings of autocast in this thread."""

    dtype: DType | None = None
    #: Parameters already cast to the lower precision, so that each is cast once; None if the cache is off.
    cache: dict[Any, Tensor] | None = None
    #: how many autocasts this thread is inside of
    depth = 0


_mode = _AutocastMode()
#: how many threads are inside an autocast
_threads = 0
_lock = threading.Lock()


class autocast(contextlib.ContextDecorator):  # noqa: N801, torch's name
    """Run ops in a lower precision where that is safe: a context or a decorator.

    Matrix products run in ``dtype``, reductions and losses in float32. ``device_type`` only chooses the default dtype:
    float16 for "cuda", else bfloat16. See `torch.autocast`.

    Example::

        with gt.autocast(dtype=gt.bfloat16):
            loss = model(x, y)
        loss.backward()
    """

    def __init__(
        self, device_type: Any = None, dtype: Any = None, enabled: bool = True, cache_enabled: bool | None = None
    ) -> None:
        if isinstance(device_type, DType):
            device_type, dtype = None, device_type
        lower = dtype_of(dtype) if dtype is not None else float16 if device_type == "cuda" else bfloat16
        if lower not in (bfloat16, float16):
            raise RuntimeError(f"autocast works with gt.bfloat16 and gt.float16, not {lower}")
        self._dtype = lower if enabled else None
        self._cached = cache_enabled is not False
        #: the settings outside, one entry for each time this autocast was entered
        self._before: list[tuple[DType | None, dict[Any, Tensor] | None]] = []

    def __enter__(self) -> autocast:
        self._before.append((_mode.dtype, _mode.cache))
        _mode.dtype = self._dtype
        _mode.cache = ({} if _mode.cache is None else _mode.cache) if self._cached else None
        _mode.depth += 1
        _count_thread(_mode.depth == 1, 1)
        return self

    def __exit__(self, *_: object) -> None:
        _mode.dtype, _mode.cache = self._before.pop()
        _mode.depth -= 1
        _count_thread(_mode.depth == 0, -1)


def _count_thread(changed: bool, by: int) -> None:
    """Count the threads inside an autocast, if this one entered or left. Without any, ops do not call autocast."""
    global _threads
    if changed:
        with _lock:
            _threads += by
            emit.casting = _cast_operands if _threads else None


def _remember() -> Callable[[], autocast]:
    """The autocast of this thread, to run a function again. Parameters are cast anew: their tape ends with that run."""
    lower = _mode.dtype
    return lambda: autocast(dtype=lower, enabled=lower is not None, cache_enabled=False)


checkpointing.remember_autocast = _remember


def current_dtype() -> DType | None:
    """The lower dtype of autocast in this thread, or None."""
    return _mode.dtype


def is_autocast_enabled(device_type: str | None = None) -> bool:
    """Whether autocast is on in this thread; the device type is ignored."""
    return _mode.dtype is not None


def is_autocast_available(device_type: str) -> bool:
    """Always true: autocast is the same for all devices."""
    return True


def _cast_operands(op: Op, operands: tuple[Any, ...], attrs: Attrs) -> tuple[tuple[Any, ...], Attrs, int]:
    """The operands and attributes of a call, cast by the policy in the op's entry (`Op.autocast`), and the call's site
    if an operand was cast: the casts belong to it."""
    lower, policy = _mode.dtype, op.autocast
    if lower is None:
        return operands, attrs, 0
    target = lower if policy == "lower" else _widest(operands) if policy == "widest" else float32
    if policy == "float32_result":
        if _eligible(operands[0], float32) and ("dtype", None) in attrs:
            attrs = tuple(("dtype", "float32") if pair == ("dtype", None) else pair for pair in attrs)
        return operands, attrs, 0
    site, cast_operands = 0, []
    for x in operands:
        if isinstance(x, Tensor):
            dtype = x._type.dtype
            if dtype is not target and dtype.kind == "f" and (dtype is not float64 or policy == "widest"):
                site = site or sites.here()
                x = _cast_down(x, lower, site) if policy == "lower" else unary(TO, x, TO_ATTRS[target], site)
        cast_operands.append(x)
    return tuple(cast_operands), attrs, site


def _eligible(x: Any, target: DType) -> bool:
    """Whether autocast may cast this operand: a floating tensor that is not double."""
    return isinstance(x, Tensor) and x._type.dtype.kind == "f" and x._type.dtype not in (target, float64)


def _cast_down(x: Tensor, lower: DType, site: int) -> Tensor:
    """Cast to the lower dtype; a parameter is cast once and cached until its value changes."""
    cache = _mode.cache
    if cache is None or not isinstance(x._node, LeafNode):
        return unary(TO, x, TO_ATTRS[lower], site)
    # with the node: several leaves may share a value, and each has a gradient of its own
    key = x._cell, x._node, x._cell.version, lower, emit.tape.mode.enabled
    cached = cache.get(key)
    if cached is None:
        cached = cache[key] = unary(TO, x, TO_ATTRS[lower], site)
    return cached


def _widest(operands: tuple[Any, ...]) -> DType:
    """The widest floating dtype of the operands."""
    dtypes = [x._type.dtype for x in operands if isinstance(x, Tensor) and x._type.dtype.kind == "f"]
    return reduce(promote, dtypes) if dtypes else float32


# -- user-defined functions ----------------------------------------------------------------


def custom_fwd(
    fwd: Callable[..., Any] | None = None, *, device_type: str | None = None, cast_inputs: Any = None
) -> Any:
    """For the ``forward`` of an `autograd.Function`: with ``cast_inputs``, cast its inputs and turn autocast off in it.

    The device type is ignored. See `torch.amp.custom_fwd`.
    """
    if fwd is None:
        return partial(custom_fwd, cast_inputs=cast_inputs)
    target = None if cast_inputs is None else dtype_of(cast_inputs)

    @wraps(fwd)
    def forward(ctx: Any, *args: Any, **kwargs: Any) -> Any:
        ctx._autocast_dtype = _mode.dtype if target is None else None
        if target is None or _mode.dtype is None:
            return fwd(ctx, *args, **kwargs)
        with autocast(enabled=False):
            return fwd(ctx, *_cast_all(args, target), **_cast_all(kwargs, target))

    return forward


def custom_bwd(bwd: Callable[..., Any] | None = None, *, device_type: str | None = None) -> Any:
    """For the ``backward`` of an `autograd.Function`: run it with the autocast of its forward.

    The device type is ignored. See `torch.amp.custom_bwd`.
    """
    if bwd is None:
        return custom_bwd

    @wraps(bwd)
    def backward(ctx: Any, *grads: Any) -> Any:
        lower = ctx._autocast_dtype
        with autocast(dtype=lower or bfloat16, enabled=lower is not None):
            return bwd(ctx, *grads)

    return backward


def _cast_all(value: Any, target: DType) -> Any:
    """The same with all floating tensors in it cast, in tuples, lists and dicts too."""
    if _eligible(value, target):
        return cast(value, target)
    if isinstance(value, dict):
        return {key: _cast_all(item, target) for key, item in value.items()}
    return type(value)(_cast_all(item, target) for item in value) if isinstance(value, list | tuple) else value
