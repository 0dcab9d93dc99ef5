"""A learning rate that falls when a metric has stopped improving."""

from __future__ import annotations

from math import inf
from typing import Any

from gt.optim.optimizer import Optimizer
from gt.optim.schedule import set_rate

#: (mode, threshold_mode) -> function of (value, best, threshold): whether the value is better
BETTER: dict[tuple[str, str], Any] = {
    ("min", "rel"): lambda a, best, t: a < best * (1.0 - t),
    ("min", "abs"): lambda a, best, t: a < best - t,
    ("max", "rel"): lambda a, best, t: a > best * (t + 1.0),
    ("max", "abs"): lambda a, best, t: a > best + t,
}


class ReduceLROnPlateau:
    """Lower the learning rate when a metric has stopped improving.

    See `torch.optim.lr_scheduler.ReduceLROnPlateau`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float | list[float] = 0,
        eps: float = 1e-8,
    ) -> None:
        if factor >= 1.0:
            raise ValueError("Factor should be < 1.0.")
        if mode not in ("min", "max"):
            raise ValueError(f"mode {mode} is unknown!")
        if threshold_mode not in ("rel", "abs"):
            raise ValueError(f"threshold mode {threshold_mode} is unknown!")
        groups = optimizer.param_groups
        if isinstance(min_lr, list | tuple) and len(min_lr) != len(groups):
            raise ValueError(f"expected {len(groups)} min_lrs, got {len(min_lr)}")
        self.optimizer, self.mode, self.factor, self.patience = optimizer, mode, factor, patience
        self.threshold, self.threshold_mode, self.cooldown, self.eps = threshold, threshold_mode, cooldown, eps
        self.min_lrs = list(min_lr) if isinstance(min_lr, list | tuple) else [min_lr] * len(groups)
        self.last_epoch = 0
        self._last_lr = [optimizer.rate(group) for group in groups]
        self._reset()

    def _reset(self) -> None:
        self.best = inf if self.mode == "min" else -inf
        self.cooldown_counter = self.num_bad_epochs = 0

    def step(self, metrics: Any, epoch: int | None = None) -> None:
        """Count an epoch with this metric. A tensor is read."""
        current = float(metrics)
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if BETTER[self.mode, self.threshold_mode](current, self.best, self.threshold):
            self.best = current
            self.num_bad_epochs = 0
        else:
            self.num_bad_epochs += 1
        if self.in_cooldown:
            self.cooldown_counter -= 1
            self.num_bad_epochs = 0
        if self.num_bad_epochs > self.patience:
            self._reduce()
            self.cooldown_counter = self.cooldown
            self.num_bad_epochs = 0
        self._last_lr = [self.optimizer.rate(group) for group in self.optimizer.param_groups]

    def _reduce(self) -> None:
        for group, least in zip(self.optimizer.param_groups, self.min_lrs, strict=True):
            lr = self.optimizer.rate(group)
            new = max(lr * self.factor, least)
            if lr - new > self.eps:
                set_rate(group, new)

    @property
    def in_cooldown(self) -> bool:
        """Whether the rate was lowered so recently that bad epochs are not counted."""
        return self.cooldown_counter > 0

    def get_last_lr(self) -> list[float]:
        """The current learning rate of each group."""
        return self._last_lr

    def state_dict(self) -> dict[str, Any]:
        """The state of the scheduler, without the optimizer."""
        return {key: value for key, value in self.__dict__.items() if key != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        self.__dict__.update(state_dict)
