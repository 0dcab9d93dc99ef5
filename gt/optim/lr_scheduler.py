"""``gt.optim.lr_scheduler``: torch's schedules of learning rates.

A scheduler computes the rate of each group from the rate of the step before (`next`), so that several can be chained.
Most can also compute it from the initial rate and the number of the step (`at`); `SequentialLR` uses that to start a
scheduler. A step is called an epoch, as in torch.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from math import cos, floor, pi
from typing import Any

from gt.missing import absent
from gt.optim.cyclic import CyclicLR
from gt.optim.one_cycle import OneCycleLR
from gt.optim.optimizer import Group, Optimizer
from gt.optim.plateau import ReduceLROnPlateau
from gt.optim.schedule import LRScheduler, refuse_in_compiled, set_rate

__all__ = [
    "ChainedScheduler", "ConstantLR", "CosineAnnealingLR", "CosineAnnealingWarmRestarts", "CyclicLR",
    "ExponentialLR", "LRScheduler", "LambdaLR", "LinearLR", "MultiStepLR", "MultiplicativeLR", "OneCycleLR",
    "PolynomialLR", "ReduceLROnPlateau", "SequentialLR", "StepLR",
]  # fmt: skip
absent("optim.lr_scheduler")

#: Torch's older name for the base, from which many programs derive their own schedulers.
_LRScheduler = LRScheduler


Lambda = Callable[[int], float]


class LambdaLR(LRScheduler):
    """Multiply the initial rate by a function of the epoch. See `torch.optim.lr_scheduler.LambdaLR`."""

    def __init__(self, optimizer: Optimizer, lr_lambda: Lambda | Sequence[Lambda], last_epoch: int = -1) -> None:
        count = len(optimizer.param_groups)
        lambdas: Any = lr_lambda
        self.lr_lambdas: list[Lambda] = list(lambdas) if isinstance(lambdas, list | tuple) else [lambdas] * count
        if len(self.lr_lambdas) != count:
            raise ValueError(f"Expected {count} lr_lambdas, but got {len(self.lr_lambdas)}")
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        return [base * factor(self.last_epoch) for base, factor in zip(self.base_lrs, self.lr_lambdas, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        """The state of the scheduler, without the optimizer and without the functions."""
        return {k: v for k, v in super().state_dict().items() if k != "lr_lambdas"} | {
            "lr_lambdas": [None] * len(self.lr_lambdas)
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.__dict__.update((k, v) for k, v in state_dict.items() if k != "lr_lambdas")


class MultiplicativeLR(LambdaLR):
    """Multiply the rate by a function of the epoch. See `torch.optim.lr_scheduler.MultiplicativeLR`."""

    def get_lr(self) -> list[float]:
        if self._is_initial:
            return [group["lr"] for group in self.groups]
        return [g["lr"] * factor(self.last_epoch) for g, factor in zip(self.groups, self.lr_lambdas, strict=True)]


class StepLR(LRScheduler):
    """Multiply the rate by gamma every step_size epochs. See `torch.optim.lr_scheduler.StepLR`."""

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1, last_epoch: int = -1) -> None:
        self.step_size, self.gamma = step_size, gamma
        super().__init__(optimizer, last_epoch)

    def next(self, group: Group, base: float) -> float:
        changes = self.last_epoch and self.last_epoch % self.step_size == 0
        return float(group["lr"] * self.gamma if changes else group["lr"])

    def at(self, base: float) -> float:
        return base * self.gamma ** (self.last_epoch // self.step_size)


class MultiStepLR(LRScheduler):
    """Multiply the rate by gamma at each milestone. See `torch.optim.lr_scheduler.MultiStepLR`."""

    def __init__(
        self, optimizer: Optimizer, milestones: Iterable[int], gamma: float = 0.1, last_epoch: int = -1
    ) -> None:
        self.milestones, self.gamma = Counter(milestones), gamma
        super().__init__(optimizer, last_epoch)

    def next(self, group: Group, base: float) -> float:
        times = self.milestones.get(self.last_epoch)
        return float(group["lr"] * self.gamma**times if times else group["lr"])

    def at(self, base: float) -> float:
        return float(base * self.gamma ** bisect_right(sorted(self.milestones.elements()), self.last_epoch))


class ConstantLR(LRScheduler):
    """Multiply the rate by a factor for the first epochs. See `torch.optim.lr_scheduler.ConstantLR`."""

    def __init__(
        self, optimizer: Optimizer, factor: float = 1.0 / 3, total_iters: int = 5, last_epoch: int = -1
    ) -> None:
        if factor > 1.0 or factor < 0:
            raise ValueError("Constant multiplicative factor expected to be between 0 and 1.")
        self.factor, self.total_iters = factor, total_iters
        super().__init__(optimizer, last_epoch)

    def next(self, group: Group, base: float) -> float:
        if self.last_epoch == 0:
            return float(group["lr"] * self.factor)
        return float(group["lr"] * (1.0 / self.factor) if self.last_epoch == self.total_iters else group["lr"])

    def at(self, base: float) -> float:
        return base * (self.factor + (self.last_epoch >= self.total_iters) * (1 - self.factor))


class LinearLR(LRScheduler):
    """Change the factor of the rate linearly over the first epochs. See `torch.optim.lr_scheduler.LinearLR`."""

    def __init__(
        self,
        optimizer: Optimizer,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        total_iters: int = 5,
        last_epoch: int = -1,
    ) -> None:
        if start_factor > 1.0 or start_factor <= 0:
            raise ValueError("Starting multiplicative factor expected to be greater than 0 and less or equal to 1.")
        if end_factor > 1.0 or end_factor < 0:
            raise ValueError("Ending multiplicative factor expected to be between 0 and 1.")
        self.start_factor, self.end_factor, self.total_iters = start_factor, end_factor, total_iters
        super().__init__(optimizer, last_epoch)

    def next(self, group: Group, base: float) -> float:
        if self.last_epoch == 0:
            return float(group["lr"] * self.start_factor)
        if self._is_initial or self.last_epoch > self.total_iters:
            return float(group["lr"])
        rise = self.end_factor - self.start_factor
        return float(group["lr"] * (1.0 + rise / (self.total_iters * self.start_factor + (self.last_epoch - 1) * rise)))

    def at(self, base: float) -> float:
        fraction = min(self.total_iters, self.last_epoch) / self.total_iters
        return base * (self.start_factor + (self.end_factor - self.start_factor) * fraction)


class ExponentialLR(LRScheduler):
    """Multiply the rate by gamma every epoch. See `torch.optim.lr_scheduler.ExponentialLR`."""

    def __init__(self, optimizer: Optimizer, gamma: float, last_epoch: int = -1) -> None:
        self.gamma = gamma
        super().__init__(optimizer, last_epoch)

    def next(self, group: Group, base: float) -> float:
        return float(group["lr"] if self._is_initial else group["lr"] * self.gamma)

    def at(self, base: float) -> float:
        return float(base * self.gamma**self.last_epoch)


class PolynomialLR(LRScheduler):
    """Lower the rate to 0 along a polynomial. See `torch.optim.lr_scheduler.PolynomialLR`."""

    def __init__(self, optimizer: Optimizer, total_iters: int = 5, power: float = 1.0, last_epoch: int = -1) -> None:
        self.total_iters, self.power = total_iters, power
        super().__init__(optimizer, last_epoch)

    def next(self, group: Group, base: float) -> float:
        if self._is_initial or self.last_epoch > self.total_iters:
            return float(group["lr"])
        left, before = (1.0 - (self.last_epoch - k) / self.total_iters for k in (0, 1))
        return float(group["lr"] * (left / before) ** self.power)

    def at(self, base: float) -> float:
        return float(base * (1.0 - min(self.total_iters, self.last_epoch) / self.total_iters) ** self.power)


class CosineAnnealingLR(LRScheduler):
    """Lower the rate to eta_min along a cosine. See `torch.optim.lr_scheduler.CosineAnnealingLR`."""

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0, last_epoch: int = -1) -> None:  # noqa: N803
        self.T_max, self.eta_min = T_max, eta_min
        super().__init__(optimizer, last_epoch)

    def next(self, group: Group, base: float) -> float:
        lr = float(group["lr"])
        if self._is_initial:
            return lr
        if self._step_count == 1 and self.last_epoch > 0:
            return self.at(base)
        if (self.last_epoch - 1 - self.T_max) % (2 * self.T_max) == 0:
            return lr + (base - self.eta_min) * (1 - cos(pi / self.T_max)) / 2
        this, last = (1 + cos(pi * (self.last_epoch - k) / self.T_max) for k in (0, 1))
        return this / last * (lr - self.eta_min) + self.eta_min

    def at(self, base: float) -> float:
        return self.eta_min + (base - self.eta_min) * (1 + cos(pi * self.last_epoch / self.T_max)) / 2


class CosineAnnealingWarmRestarts(LRScheduler):
    """Lower the rate along a cosine, and start again after each period.

    See `torch.optim.lr_scheduler.CosineAnnealingWarmRestarts`.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        T_0: int,  # noqa: N803
        T_mult: int = 1,  # noqa: N803
        eta_min: float = 0.0,
        last_epoch: int = -1,
    ) -> None:
        if T_0 <= 0 or not isinstance(T_0, int):
            raise ValueError(f"Expected positive integer T_0, but got {T_0}")
        if T_mult < 1 or not isinstance(T_mult, int):
            raise ValueError(f"Expected integer T_mult >= 1, but got {T_mult}")
        self.T_0, self.T_mult, self.eta_min = T_0, T_mult, eta_min
        self.T_i: float = T_0
        self.T_cur: float = last_epoch
        super().__init__(optimizer, last_epoch)

    def next(self, group: Group, base: float) -> float:
        return self.eta_min + (base - self.eta_min) * (1 + cos(pi * self.T_cur / self.T_i)) / 2

    def step(self, epoch: float | None = None) -> None:
        """Set the learning rates of the next step, or of this epoch, which may be a fraction."""
        self._step_count += 1
        self._update_lr(epoch)

    def _update_lr(self, epoch: float | None = None) -> None:
        if epoch is not None and epoch < 0:
            raise ValueError(f"Expected non-negative epoch, but got {epoch}")
        position = max(self.last_epoch + 1, 0) if epoch is None else epoch
        self.T_cur, self.T_i = position, self.T_0
        while self.T_cur >= self.T_i:
            self.T_cur -= self.T_i
            self.T_i *= self.T_mult
        self.last_epoch = floor(position)
        for group, lr in zip(self.groups, self.get_lr(), strict=True):
            set_rate(group, lr)
        refuse_in_compiled()
        self._last_lr = [self.optimizer.rate(group) for group in self.groups]


# -- several schedulers in sequence or together ----------------------------------------------


class _SchedulerGroup(LRScheduler):
    """A scheduler of schedulers. They set the rates, so it makes no initial step itself."""

    _schedulers: Sequence[Any]

    def _check(self, optimizer: Optimizer) -> None:
        for i, scheduler in enumerate(self._schedulers):
            if isinstance(scheduler, ReduceLROnPlateau):
                raise ValueError(
                    f"{type(self).__name__} does not support `ReduceLROnPlateau` scheduler as it requires additional "
                    f"kwargs to be specified when calling `step`, but got one at index {i} in the given schedulers "
                    f"sequence."
                )
            if scheduler.optimizer is not optimizer:
                raise ValueError(
                    f"{type(self).__name__} expects all schedulers to belong to the same optimizer, but got scheduler "
                    f"{type(scheduler).__name__} at index {i}, which has another"
                )

    def state_dict(self) -> dict[str, Any]:
        state = {k: v for k, v in super().state_dict().items() if k != "_schedulers"}
        return state | {"_schedulers": [s.state_dict() for s in self._schedulers]}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.__dict__.update((k, v) for k, v in state_dict.items() if k != "_schedulers")
        for scheduler, state in zip(self._schedulers, state_dict["_schedulers"], strict=True):
            scheduler.load_state_dict(state)


class SequentialLR(_SchedulerGroup):
    """Schedulers one after the other, with a change at each milestone. See `torch.optim.lr_scheduler.SequentialLR`."""

    def __init__(
        self, optimizer: Optimizer, schedulers: list[Any], milestones: list[int], last_epoch: int = -1
    ) -> None:
        self._schedulers, self._milestones, self.optimizer = schedulers, milestones, optimizer
        if not schedulers:
            raise ValueError("SequentialLR expects at least one scheduler, but got no scheduler.")
        self._check(optimizer)
        if len(milestones) != len(schedulers) - 1:
            raise ValueError(
                "Sequential Schedulers expects number of schedulers provided to be one more than the number of "
                f"milestone points, but got number of schedulers {len(schedulers)} and the number of milestones to be "
                f"equal to {len(milestones)}"
            )
        self.last_epoch = last_epoch + 1
        for group in self.groups:
            set_rate(group, group["initial_lr"])
        _undo_initial_step(self)  # each scheduler made an initial step when it was created; only the first one should
        first = schedulers[bisect_right(milestones, 0)]
        first._initial_step()
        self._last_lr = first.get_last_lr()

    def step(self, epoch: int | None = None) -> None:
        self.last_epoch += 1
        k = bisect_right(self._milestones, self.last_epoch)
        scheduler = self._schedulers[k]
        if k > 0 and self._milestones[k - 1] == self.last_epoch:
            scheduler._update_lr(0)
        else:
            scheduler.step()
        self._last_lr = scheduler.get_last_lr()


def _undo_initial_step(scheduler: LRScheduler) -> None:
    """Take back the initial step of a scheduler, or of all schedulers inside it."""
    if isinstance(scheduler, _SchedulerGroup):
        for inner in scheduler._schedulers:
            _undo_initial_step(inner)
    else:
        scheduler.last_epoch -= 1


class ChainedScheduler(_SchedulerGroup):
    """Schedulers that all step together. See `torch.optim.lr_scheduler.ChainedScheduler`."""

    def __init__(self, schedulers: Sequence[Any], optimizer: Optimizer | None = None) -> None:
        if not schedulers:
            raise ValueError("ChainedScheduler expects at least one scheduler to be chained, but got no scheduler.")
        self._schedulers, self.optimizer = schedulers, optimizer or schedulers[0].optimizer
        self._check(self.optimizer)
        self._last_lr = [self.optimizer.rate(group) for group in self.groups]

    def step(self, epoch: int | None = None) -> None:
        for scheduler in self._schedulers:
            scheduler.step()
        self._last_lr = [self.optimizer.rate(group) for group in self.groups]
