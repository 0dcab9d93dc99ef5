"""``gt.amp``: less precision where it does no harm, and gradients scaled so that none is too small for it."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

from gt.client.grad.backward import no_grad
from gt.client.tensor import emit
from gt.client.tensor.arguments import cast, dtype_of
from gt.client.tensor.emit import call_into_many
from gt.client.tensor.tape import LeafNode
from gt.client.tensor.tensor import Tensor
from gt.functions.creation import tensor
from gt.missing import absent
from gt.ops import OPS, Attrs, Op
from gt.ops.autocast import FLOAT32, FLOAT32_RESULT, LOWER, WIDEST
from gt.optim.optimizer import Optimizer
from gt.types import DType, bfloat16, float16, float32, float64, promote

__all__ = ["GradScaler", "autocast", "is_autocast_enabled"]
__getattr__ = absent("amp")

UNSCALE = OPS["amp_unscale"]

#: gradients one instruction takes
MOST = 2048


class _Mode(threading.local):
    """What autocast is set to in this thread."""

    dtype: DType | None = None
    #: parameters in the lower precision, so that one used often is cast once; None if that is not wanted
    cache: dict[Any, Tensor] | None = None
    depth = 0


_mode = _Mode()
_threads = 0
_lock = threading.Lock()


class autocast(contextlib.ContextDecorator):  # noqa: N801, torch's name
    """See `torch.autocast`: a context or a decorator. The device is where the workers are, whatever is said."""

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
        self._before: list[tuple[DType | None, dict[Any, Tensor] | None]] = []

    def __enter__(self) -> autocast:
        self._before.append((_mode.dtype, _mode.cache))
        _mode.dtype = self._dtype
        _mode.cache = ({} if _mode.cache is None else _mode.cache) if self._cached else None
        _mode.depth += 1
        _count(_mode.depth == 1, 1)
        return self

    def __exit__(self, *_: object) -> None:
        _mode.dtype, _mode.cache = self._before.pop()
        _mode.depth -= 1
        _count(_mode.depth == 0, -1)


def _count(changed: bool, by: int) -> None:
    """Ops look for casts only while some thread is inside an autocast."""
    global _threads
    if changed:
        with _lock:
            _threads += by
            emit.casting = _casted if _threads else None


def current_dtype() -> DType | None:
    """What autocast lowers to in this thread."""
    return _mode.dtype


def is_autocast_enabled(device_type: str | None = None) -> bool:
    return _mode.dtype is not None


def _casted(op: Op, operands: tuple[Any, ...], attrs: Attrs) -> tuple[tuple[Any, ...], Attrs]:
    lower, name = _mode.dtype, op.name
    if lower is None:
        return operands, attrs
    if name in LOWER:
        operands = tuple(_lowered(x, lower) if _eligible(x, lower) else x for x in operands)
    elif name in FLOAT32:
        operands = tuple(cast(x, float32) if _eligible(x, float32) else x for x in operands)
    elif name in FLOAT32_RESULT and _eligible(operands[0], float32) and ("dtype", None) in attrs:
        attrs = tuple(("dtype", "float32") if pair == ("dtype", None) else pair for pair in attrs)
    elif name in WIDEST:
        operands = _widest(operands)
    return operands, attrs


def _eligible(x: Any, target: DType) -> bool:
    """Floating, but not double."""
    return isinstance(x, Tensor) and x._type.dtype.kind == "f" and x._type.dtype not in (target, float64)


def _lowered(x: Tensor, lower: DType) -> Tensor:
    cache = _mode.cache
    if cache is None or not isinstance(x._node, LeafNode):
        return cast(x, lower)
    key = x._cell, x._cell.version, lower, emit.tape.mode.enabled
    found = cache.get(key)
    if found is None:
        found = cache[key] = cast(x, lower)
    return found


def _widest(operands: tuple[Any, ...]) -> tuple[Any, ...]:
    found = {x._type.dtype for x in operands if isinstance(x, Tensor) and x._type.dtype.kind == "f"}
    if len(found) < 2:
        return operands
    widest = found.pop()
    for dtype in found:
        widest = promote(widest, dtype)
    return tuple(cast(x, widest) if isinstance(x, Tensor) and x._type.dtype.kind == "f" else x for x in operands)


# -- gradients that fit --------------------------------------------------------------------


class GradScaler:
    """See `torch.amp.GradScaler`. A `step` reads whether all gradients were finite: one round trip, as in torch."""

    def __init__(
        self,
        device: Any = None,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        if growth_factor <= 1.0:
            raise AssertionError("The growth factor must be > 1.0.")
        if backoff_factor >= 1.0:
            raise AssertionError("The backoff factor must be < 1.0.")
        self._scale, self._growth_tracker, self._enabled = float(init_scale), 0, enabled
        self._growth_factor, self._backoff_factor = growth_factor, backoff_factor
        self._growth_interval = growth_interval
        #: optimizer -> whether one of its gradients was not finite: a tensor, or what was read of it
        self._found: dict[int, Any] = {}
        self._stepped: set[int] = set()

    def scale(self, outputs: Any) -> Any:
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            return outputs * self._scale
        return type(outputs)(self.scale(x) for x in outputs)

    @no_grad()
    def unscale_(self, optimizer: Optimizer) -> None:
        if not self._enabled:
            return
        if id(optimizer) in self._stepped:
            raise RuntimeError("unscale_() is being called after step().")
        if id(optimizer) in self._found:
            raise RuntimeError("unscale_() has already been called on this optimizer since the last update().")
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if any(g._type.dtype is float16 for g in grads):
            raise ValueError("Attempting to unscale FP16 gradients.")
        if not grads:
            raise AssertionError("No inf checks were recorded for this optimizer.")
        from gt.nn.utils import _written

        found = self._found[id(optimizer)] = tensor(0.0)
        for start in range(0, len(grads), MOST):
            piece = _written(grads[start : start + MOST])
            call_into_many(UNSCALE, (*piece, found), (1.0 / self._scale,))

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs:
            raise RuntimeError("Closure use is not currently supported if GradScaler is enabled.")
        if id(optimizer) in self._stepped:
            raise RuntimeError("step() has already been called since the last update().")
        if id(optimizer) not in self._found:
            self.unscale_(optimizer)
        bad = self._found[id(optimizer)] = bool(self._found[id(optimizer)].item())
        self._stepped.add(id(optimizer))
        return None if bad else optimizer.step(*args, **kwargs)

    def update(self, new_scale: Any = None) -> None:
        if not self._enabled:
            return
        if new_scale is not None:
            self._scale = float(new_scale)
        else:
            if not self._found:
                raise AssertionError("No inf checks were recorded prior to update.")
            self._grow_or_shrink(any(bool(bad) for bad in self._found.values()))
        self._found, self._stepped = {}, set()

    def _grow_or_shrink(self, bad: bool) -> None:
        if bad:
            self._scale *= self._backoff_factor
            self._growth_tracker = 0
            return
        self._growth_tracker += 1
        if self._growth_tracker == self._growth_interval:
            self._scale *= self._growth_factor
            self._growth_tracker = 0

    def get_scale(self) -> float:
        return self._scale if self._enabled else 1.0

    def is_enabled(self) -> bool:
        return self._enabled

    def get_growth_factor(self) -> float:
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        self._growth_factor = new_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        self._backoff_factor = new_factor

    def set_growth_interval(self, new_interval: int) -> None:
        self._growth_interval = new_interval

    def get_backoff_factor(self) -> float:
        return self._backoff_factor

    def get_growth_interval(self) -> int:
        return self._growth_interval

    def state_dict(self) -> dict[str, Any]:
        if not self._enabled:
            return {}
        return {
            "scale": self._scale,
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._growth_tracker,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if not self._enabled:
            return
        if not state_dict:
            raise RuntimeError(
                "The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler."
            )
        self._scale = float(state_dict["scale"])
        self._growth_factor = state_dict["growth_factor"]
        self._backoff_factor = state_dict["backoff_factor"]
        self._growth_interval = state_dict["growth_interval"]
        self._growth_tracker = int(state_dict["_growth_tracker"])
