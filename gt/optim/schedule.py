"""`LRScheduler`, the base of all schedules of a learning rate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gt.client.stream import recorder
from gt.client.tensor.tensor import Tensor
from gt.optim.optimizer import Group, Optimizer


def refuse_in_compiled() -> None:
    """Refuse a scheduler's step inside a compiled function: its Python would run only once."""
    if recorder.active is not None:
        recorder.active.refuse("a scheduler steps inside, and its Python would run only once: step it outside")


def set_rate(group: Group, lr: float) -> None:
    """Set the learning rate of a group; one in a tensor is written in place, as in torch."""
    if isinstance(group["lr"], Tensor):
        group["lr"].fill_(float(lr))
    else:
        group["lr"] = lr


class LRScheduler:
    """The base of all schedulers: sets the learning rate of each group at every step.

    See `torch.optim.lr_scheduler.LRScheduler`.
    """

    #: whether the step in progress is the one that the constructor makes
    _is_initial = False

    def __init__(self, optimizer: Optimizer, last_epoch: int = -1) -> None:
        if not isinstance(optimizer, Optimizer):
            raise TypeError(f"{type(optimizer).__name__} is not an Optimizer")
        self.optimizer = optimizer
        for i, group in enumerate(optimizer.param_groups):
            if last_epoch == -1:
                group.setdefault("initial_lr", optimizer.rate(group))
            elif "initial_lr" not in group:
                raise KeyError(
                    f"param 'initial_lr' is not specified in param_groups[{i}] when resuming scheduler with "
                    f"last_epoch >= 0"
                )
        self.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        self.last_epoch = last_epoch
        self._initial_step()

    def _initial_step(self) -> None:
        self._step_count = 0
        self._is_initial = True
        try:
            self.step()
        finally:
            self._is_initial = False

    def get_lr(self) -> list[float]:
        """The learning rates of this step, from those of the step before."""
        return [self.next(group, base) for group, base in zip(self.groups, self.base_lrs, strict=True)]

    def next(self, group: Group, base: float) -> float:
        """The rate of a group at this step, from its rate at the step before. Subclasses define it."""
        raise NotImplementedError

    def at(self, base: float) -> float | None:
        """The rate at this step (``last_epoch``) from the initial rate; None if there is no formula for it."""
        return None

    @property
    def groups(self) -> list[Group]:
        """The optimizer's parameter groups."""
        return self.optimizer.param_groups

    def step(self, epoch: int | None = None) -> None:
        """Set the learning rates of the next step, or of this epoch."""
        self._step_count += 1
        self._update_lr(epoch)

    def _update_lr(self, epoch: int | None = None) -> None:
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        formula = [self.at(base) for base in self.base_lrs] if epoch is not None else [None]
        rates: Sequence[Any] = self.get_lr() if None in formula else formula
        for group, lr in zip(self.groups, rates, strict=True):
            set_rate(group, lr)
        refuse_in_compiled()
        self._last_lr = [self.optimizer.rate(group) for group in self.groups]

    def get_last_lr(self) -> list[float]:
        """The current learning rate of each group."""
        return self._last_lr

    def state_dict(self) -> dict[str, Any]:
        """The state of the scheduler, without the optimizer."""
        return {key: value for key, value in self.__dict__.items() if key != "optimizer"}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a state from `state_dict`."""
        self.__dict__.update(state_dict)
