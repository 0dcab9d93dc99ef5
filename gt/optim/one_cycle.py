"""One cycle: the learning rate rises and then falls far, and the momentum does the opposite."""

from __future__ import annotations

from math import cos, pi
from typing import Any

from gt.optim.optimizer import Group, Optimizer
from gt.optim.schedule import LRScheduler

#: name -> function of (start, end, fraction between 0 and 1)
ANNEAL: dict[str, Any] = {
    "cos": lambda start, end, fraction: end + (start - end) / 2.0 * (cos(pi * fraction) + 1),
    "linear": lambda start, end, fraction: (end - start) * fraction + start,
}


class OneCycleLR(LRScheduler):
    """Raise the learning rate, then lower it far below its start. See `torch.optim.lr_scheduler.OneCycleLR`."""

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | list[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.85,
        max_momentum: float | list[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
    ) -> None:
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ValueError("You must define either total_steps OR (epochs AND steps_per_epoch)")
            total_steps = epochs * steps_per_epoch
        if total_steps <= 0 or not isinstance(total_steps, int):
            raise ValueError(f"Expected positive integer total_steps, but got {total_steps}")
        if not isinstance(pct_start, float) or not 0 <= pct_start <= 1:
            raise ValueError(f"Expected float between 0 and 1 pct_start, but got {pct_start}")
        if anneal_strategy not in ANNEAL:
            raise ValueError(f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}")
        self.total_steps, self.cycle_momentum, self.anneal_strategy = total_steps, cycle_momentum, anneal_strategy
        self.phases = _phases(total_steps, pct_start, three_phase)
        if cycle_momentum and not {"momentum", "betas"} & set(optimizer.defaults):
            raise ValueError("optimizer must support momentum or beta1 with `cycle_momentum` option enabled")
        if last_epoch == -1:
            groups = optimizer.param_groups
            for group, lr in zip(groups, per_group(max_lr, groups, "max_lr"), strict=True):
                first = lr / div_factor
                group.update(initial_lr=first, max_lr=lr, min_lr=first / final_div_factor)
            if cycle_momentum:
                start_momenta(groups, max_momentum, base_momentum)
        super().__init__(optimizer, last_epoch)

    def next(self, group: Group, base: float) -> float:
        if self.last_epoch > self.total_steps:
            raise ValueError(
                f"Tried to step {self.last_epoch} times. The specified number of total steps is {self.total_steps}"
            )
        before = [end for end, _, _ in self.phases[:-1] if self.last_epoch > end]
        start, (end, rates, momenta) = before[-1] if before else 0.0, self.phases[len(before)]
        fraction = (self.last_epoch - start) / (end - start)
        anneal = ANNEAL[self.anneal_strategy]
        if self.cycle_momentum:
            set_momentum(group, anneal(*(group[name] for name in momenta), fraction))
        return float(anneal(*(group[name] for name in rates), fraction))


def _phases(total: int, pct_start: float, three: bool) -> list[tuple[float, tuple[str, str], tuple[str, str]]]:
    """Phases as (last step, names of first and last rate, names of first and last momentum)."""
    falling, rising = ("max_momentum", "base_momentum"), ("base_momentum", "max_momentum")
    up = (pct_start * total - 1, ("initial_lr", "max_lr"), falling)
    if not three:
        return [up, (total - 1, ("max_lr", "min_lr"), rising)]
    return [
        up,
        (2 * pct_start * total - 2, ("max_lr", "initial_lr"), rising),
        (total - 1, ("initial_lr", "min_lr"), ("max_momentum", "max_momentum")),
    ]


def start_momenta(groups: list[Group], max_momentum: Any, base_momentum: Any) -> None:
    high, low = per_group(max_momentum, groups, "max_momentum"), per_group(base_momentum, groups, "base_momentum")
    for group, most, least in zip(groups, high, low, strict=True):
        group.update(max_momentum=most, base_momentum=least)
        set_momentum(group, most)


def per_group(value: float | list[float], groups: list[Group], name: str) -> list[float]:
    if not isinstance(value, list | tuple):
        return [value] * len(groups)
    if len(value) != len(groups):
        raise ValueError(f"expected {len(groups)} values for {name}, got {len(value)}")
    return list(value)


def set_momentum(group: Group, value: float) -> None:
    if "betas" in group:
        group["betas"] = (value, *group["betas"][1:])
    else:
        group["momentum"] = value
