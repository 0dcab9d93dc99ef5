"""`GradScaler` keeps float16 gradients in range."""

from __future__ import annotations

from typing import Any

from gt.client.grad.backward import no_grad
from gt.client.tensor.multi_tensor import call_into_many
from gt.client.tensor.tensor import Tensor
from gt.functions.creation import tensor
from gt.missing import absent
from gt.ops import OPS
from gt.optim.optimizer import Optimizer
from gt.types import float16

__all__ = ["GradScaler"]
absent("amp.grad_scaler")

UNSCALE = OPS["amp_unscale"]

#: The most gradients in one instruction.
MAX_GRADIENTS = 2048


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
            call_into_many(UNSCALE, (*batch, nonfinite), (), (1.0 / self._scale,))

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
