"""Cycles: the learning rate rises and falls again and again, and the momentum does the opposite."""

from __future__ import annotations

from collections.abc import Callable
from math import floor
from typing import Any

from gt.optim.one_cycle import per_group, set_momentum, start_momenta
from gt.optim.optimizer import Group, Optimizer
from gt.optim.schedule import LRScheduler, set_rate

#: mode -> (what its scale depends on, function of (gamma, that number))
MODES: dict[str, tuple[str, Callable[[float, float], float]]] = {
    "triangular": ("cycle", lambda gamma, x: 1.0),
    "triangular2": ("cycle", lambda gamma, x: 1 / (2.0 ** (x - 1))),
    "exp_range": ("iterations", lambda gamma, x: gamma**x),
}


class CyclicLR(LRScheduler):
    """Move the learning rate up and down between two limits. See `torch.optim.lr_scheduler.CyclicLR`."""

    def __init__(
        self,
        optimizer: Optimizer,
        base_lr: float | list[float],
        max_lr: float | list[float],
        step_size_up: int = 2000,
        step_size_down: int | None = None,
        mode: str = "triangular",
        gamma: float = 1.0,
        scale_fn: Callable[[float], float] | None = None,
        scale_mode: str = "cycle",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.8,
        max_momentum: float | list[float] = 0.9,
        last_epoch: int = -1,
    ) -> None:
        if mode not in MODES and scale_fn is None:
            raise ValueError("mode is invalid and scale_fn is None")
        groups = optimizer.param_groups
        lowest, self.max_lrs = per_group(base_lr, groups, "base_lr"), per_group(max_lr, groups, "max_lr")
        self.total_size = float(step_size_up + (step_size_up if step_size_down is None else step_size_down))
        self.step_ratio = step_size_up / self.total_size
        self.mode, self.gamma, self._scale_fn_custom = mode, gamma, scale_fn
        self.scale_mode = scale_mode if scale_fn is not None else MODES[mode][0]
        self.cycle_momentum = cycle_momentum
        if cycle_momentum and not {"momentum", "betas"} & set(optimizer.defaults):
            raise ValueError("optimizer must support momentum or beta1 with `cycle_momentum` option enabled")
        if last_epoch == -1:
            for group, lr in zip(groups, lowest, strict=True):
                set_rate(group, lr)
            if cycle_momentum:
                start_momenta(groups, max_momentum, base_momentum)
        super().__init__(optimizer, last_epoch)
        self.base_lrs = lowest

    def scale_fn(self, x: float) -> float:
        """The height of a cycle, relative to the first."""
        if self._scale_fn_custom is not None:
            return self._scale_fn_custom(x)
        return MODES[self.mode][1](self.gamma, x)

    def get_lr(self) -> list[float]:
        cycle = floor(1 + self.last_epoch / self.total_size)
        x = 1.0 + self.last_epoch / self.total_size - cycle
        rising = x <= self.step_ratio
        height = x / self.step_ratio if rising else (x - 1) / (self.step_ratio - 1)
        height *= self.scale_fn(cycle if self.scale_mode == "cycle" else self.last_epoch)
        if self.cycle_momentum:
            for group in self.groups:
                _cycle_momentum(group, height)
        return [low + (high - low) * height for low, high in zip(self.base_lrs, self.max_lrs, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        """The state of the scheduler, without the optimizer and without the function."""
        return super().state_dict() | {"_scale_fn_custom": None}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.__dict__.update((k, v) for k, v in state_dict.items() if k != "_scale_fn_custom")


def _cycle_momentum(group: Group, height: float) -> None:
    high, low = group["max_momentum"], group["base_momentum"]
    set_momentum(group, high - (high - low) * height)
