"""``gt.amp``: mixed precision. `autocast` lowers the precision of ops; `GradScaler` keeps gradients in range."""

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
from gt.optim.optimizer import Optimizer
from gt.types import DType, bfloat16, float16, float32, float64, promote

__all__ = ["GradScaler", "autocast", "is_autocast_enabled"]
absent("amp")

UNSCALE = OPS["amp_unscale"]

#: The most gradients in one instruction.
MAX_GRADIENTS = 2048


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


def current_dtype() -> DType | None:
    """The lower dtype of autocast in this thread, or None."""
    return _mode.dtype


def is_autocast_enabled(device_type: str | None = None) -> bool:
    """Whether autocast is on in this thread; the device type is ignored."""
    return _mode.dtype is not None


def _cast_operands(op: Op, operands: tuple[Any, ...], attrs: Attrs) -> tuple[tuple[Any, ...], Attrs]:
    """The operands and attributes of a call, cast by the policy in the op's entry (`Op.autocast`)."""
    lower, policy = _mode.dtype, op.autocast
    if lower is None or not policy:
        return operands, attrs
    if policy == "lower":
        operands = tuple(_cast_down(x, lower) if _eligible(x, lower) else x for x in operands)
    elif policy == "float32":
        operands = tuple(cast(x, float32) if _eligible(x, float32) else x for x in operands)
    elif policy == "float32_result" and _eligible(operands[0], float32) and ("dtype", None) in attrs:
        attrs = tuple(("dtype", "float32") if pair == ("dtype", None) else pair for pair in attrs)
    elif policy == "widest":
        operands = _cast_to_widest(operands)
    return operands, attrs


def _eligible(x: Any, target: DType) -> bool:
    """Whether autocast may cast this operand: a floating tensor that is not double."""
    return isinstance(x, Tensor) and x._type.dtype.kind == "f" and x._type.dtype not in (target, float64)


def _cast_down(x: Tensor, lower: DType) -> Tensor:
    """Cast to the lower dtype; a parameter is cast once and cached until its value changes."""
    cache = _mode.cache
    if cache is None or not isinstance(x._node, LeafNode):
        return cast(x, lower)
    key = x._cell, x._cell.version, lower, emit.tape.mode.enabled
    cached = cache.get(key)
    if cached is None:
        cached = cache[key] = cast(x, lower)
    return cached


def _cast_to_widest(operands: tuple[Any, ...]) -> tuple[Any, ...]:
    dtypes = {x._type.dtype for x in operands if isinstance(x, Tensor) and x._type.dtype.kind == "f"}
    if len(dtypes) < 2:
        return operands
    widest = dtypes.pop()
    for dtype in dtypes:
        widest = promote(widest, dtype)
    return tuple(cast(x, widest) if isinstance(x, Tensor) and x._type.dtype.kind == "f" else x for x in operands)


# -- scaled gradients --------------------------------------------------------------------


class GradScaler:
    """Scale a loss so that float16 gradients do not underflow. See `torch.amp.GradScaler`.

    `step` reads whether all gradients were finite: one round trip, as in torch.

    Example::

        scaler = gt.amp.GradScaler()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    """

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
        #: id of an optimizer -> whether one of its gradients was not finite: a tensor, or the value read from it
        self._nonfinite: dict[int, Any] = {}
        #: ids of the optimizers that have stepped since the last `update`
        self._stepped: set[int] = set()

    def scale(self, outputs: Any) -> Any:
        """Multiply a loss, or several, by the scale."""
        if not self._enabled:
            return outputs
        if isinstance(outputs, Tensor):
            return outputs * self._scale
        return type(outputs)(self.scale(x) for x in outputs)

    @no_grad()
    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of an optimizer by the scale, in place."""
        if not self._enabled:
            return
        if id(optimizer) in self._stepped:
            raise RuntimeError("unscale_() is being called after step().")
        if id(optimizer) in self._nonfinite:
            raise RuntimeError("unscale_() has already been called on this optimizer since the last update().")
        grads = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if any(g._type.dtype is float16 for g in grads):
            raise ValueError("Attempting to unscale FP16 gradients.")
        if not grads:
            raise AssertionError("No inf checks were recorded for this optimizer.")
        from gt.nn.utils import without_views

        nonfinite = self._nonfinite[id(optimizer)] = tensor(0.0)
        for start in range(0, len(grads), MAX_GRADIENTS):
            batch = without_views(grads[start : start + MAX_GRADIENTS])
            call_into_many(UNSCALE, (*batch, nonfinite), (1.0 / self._scale,))

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Unscale the gradients, and step the optimizer if all of them are finite."""
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs:
            raise RuntimeError("Closure use is not currently supported if GradScaler is enabled.")
        if id(optimizer) in self._stepped:
            raise RuntimeError("step() has already been called since the last update().")
        if id(optimizer) not in self._nonfinite:
            self.unscale_(optimizer)
        bad = self._nonfinite[id(optimizer)] = bool(self._nonfinite[id(optimizer)].item())
        self._stepped.add(id(optimizer))
        return None if bad else optimizer.step(*args, **kwargs)

    def update(self, new_scale: Any = None) -> None:
        """Lower the scale after a step with non-finite gradients; raise it after enough good steps."""
        if not self._enabled:
            return
        if new_scale is not None:
            self._scale = float(new_scale)
        else:
            if not self._nonfinite:
                raise AssertionError("No inf checks were recorded prior to update.")
            self._grow_or_shrink(any(bool(bad) for bad in self._nonfinite.values()))
        self._nonfinite, self._stepped = {}, set()

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
        """The current scale."""
        return self._scale if self._enabled else 1.0

    def is_enabled(self) -> bool:
        """Whether the scaler scales at all."""
        return self._enabled

    def get_growth_factor(self) -> float:
        """The factor by which the scale is raised."""
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Set the factor by which the scale is raised."""
        self._growth_factor = new_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Set the factor by which the scale is lowered."""
        self._backoff_factor = new_factor

    def set_growth_interval(self, new_interval: int) -> None:
        """Set the number of good steps after which the scale is raised."""
        self._growth_interval = new_interval

    def get_backoff_factor(self) -> float:
        """The factor by which the scale is lowered."""
        return self._backoff_factor

    def get_growth_interval(self) -> int:
        """The number of good steps after which the scale is raised."""
        return self._growth_interval

    def state_dict(self) -> dict[str, Any]:
        """The scale and the counters, for saving."""
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
        """Restore a state from `state_dict`."""
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
