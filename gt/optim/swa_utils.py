"""``gt.optim.swa_utils``: averages of a model's weights over the steps of a training, as in torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from copy import deepcopy
from itertools import chain
from math import cos, pi
from typing import Any

from gt.client.grad.backward import no_grad
from gt.client.tensor.tensor import Tensor
from gt.functions.creation import tensor
from gt.missing import absent as _absent
from gt.nn.module import Module
from gt.nn.norm import _BatchNorm
from gt.optim.one_cycle import per_group
from gt.optim.optimizer import Optimizer
from gt.optim.schedule import LRScheduler
from gt.types import int64

__all__ = [
    "SWALR",
    "AveragedModel",
    "get_ema_avg_fn",
    "get_ema_multi_avg_fn",
    "get_swa_avg_fn",
    "get_swa_multi_avg_fn",
    "update_bn",
]  # fmt: skip
_absent("optim.swa_utils")

#: (the average, the new value, how many values are in the average) -> the new average
Average = Callable[[Any, Any, Any], Any]
#: the same for lists of tensors, in place
MultiAverage = Callable[[Any, Any, Any], None]
#: name -> function of a fraction between 0 and 1
ANNEAL: dict[str, Callable[[float], float]] = {"cos": lambda t: (1 - cos(pi * t)) / 2, "linear": lambda t: t}


def get_ema_avg_fn(decay: float = 0.999) -> Average:
    """A function for `AveragedModel`: an exponential moving average."""
    _check_decay(decay)
    return no_grad()(lambda average, value, count: decay * average + (1 - decay) * value)


def get_ema_multi_avg_fn(decay: float = 0.999) -> MultiAverage:
    """A function of lists for `AveragedModel`: an exponential moving average."""
    _check_decay(decay)
    return _for_lists(lambda count: 1 - decay)


def get_swa_avg_fn() -> Average:
    """A function for `AveragedModel`: the mean of all values."""
    return no_grad()(lambda average, value, count: average + (value - average) / (count + 1))


def get_swa_multi_avg_fn() -> MultiAverage:
    """A function of lists for `AveragedModel`: the mean of all values."""
    return _for_lists(lambda count: 1 / (int(count) + 1))


def _check_decay(decay: float) -> None:
    if not 0.0 <= decay <= 1.0:
        raise ValueError(f"Invalid decay value {decay} provided. Please provide a value in [0,1] range.")


def _for_lists(weight: Callable[[Any], float]) -> MultiAverage:
    """Move each average toward its new value by a weight that depends on the count."""

    def update(averages: Any, values: Any, count: Any) -> None:
        share = weight(count)
        for average, value in zip(averages, values, strict=True):
            if average.is_floating_point() or average.is_complex():
                average.lerp_(value, share)
            else:
                average.copy_(average * (1 - share) + value * share)

    return no_grad()(update)


class AveragedModel(Module):
    """A copy of a model whose weights are averages of the model's. See `torch.optim.swa_utils.AveragedModel`.

    The count of averages is known to the client, so an update waits for no worker.
    """

    def __init__(
        self,
        model: Module,
        device: Any = None,
        avg_fn: Average | None = None,
        multi_avg_fn: MultiAverage | None = None,
        use_buffers: bool = False,
    ) -> None:
        super().__init__()
        if avg_fn is not None and multi_avg_fn is not None:
            raise AssertionError("Only one of avg_fn and multi_avg_fn should be provided")
        self.module = deepcopy(model)
        self.register_buffer("n_averaged", tensor(0, dtype=int64))
        self.avg_fn, self.multi_avg_fn, self.use_buffers = avg_fn, multi_avg_fn, use_buffers
        #: the buffer, its version, and its value in that version
        self._known_count: tuple[Tensor, int, int] | None = None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.module(*args, **kwargs)

    def update_parameters(self, model: Module) -> None:
        """Add the model's weights to the averages."""
        averages, values = self._averaged(self.module), self._averaged(model)
        count = self._count()
        with no_grad():
            if count == 0:
                for average, value in zip(averages, values, strict=True):
                    average.copy_(value)
            elif self.avg_fn is not None:
                for average, value in zip(averages, values, strict=True):
                    average.copy_(self.avg_fn(average, value, self.n_averaged))
            else:
                (self.multi_avg_fn or get_swa_multi_avg_fn())(averages, values, count)
            if not self.use_buffers:
                for ours, theirs in zip(self.module.buffers(), model.buffers(), strict=True):
                    ours.copy_(theirs)
            self.n_averaged.add_(1)
        self._known_count = (self.n_averaged, self.n_averaged._cell.version, count + 1)

    def _averaged(self, model: Module) -> list[Tensor]:
        tensors = chain(model.parameters(), model.buffers()) if self.use_buffers else model.parameters()
        return [x.detach() for x in tensors]

    def _count(self) -> int:
        """How many models are in the averages; read only if the buffer was written from outside."""
        if self._known_count is not None:
            buffer, version, count = self._known_count
            if buffer is self.n_averaged and version == buffer._cell.version:
                return count
        return int(self.n_averaged)


def update_bn(loader: Iterable[Any], model: Module, device: Any = None) -> None:
    """Compute the statistics of the batch norms anew, over all batches. See `torch.optim.swa_utils.update_bn`."""
    momenta = {module: module.momentum for module in model.modules() if isinstance(module, _BatchNorm)}
    if not momenta:
        return
    was_training = model.training
    model.train()
    for norm in momenta:
        norm.reset_running_stats()
        norm.momentum = None
    with no_grad():
        for batch in loader:
            model(batch[0] if isinstance(batch, list | tuple) else batch)
    for norm, momentum in momenta.items():
        norm.momentum = momentum
    model.train(was_training)


class SWALR(LRScheduler):
    """Move the learning rate to a constant one, over some epochs. See `torch.optim.swa_utils.SWALR`."""

    def __init__(
        self,
        optimizer: Optimizer,
        swa_lr: float | list[float],
        anneal_epochs: int = 10,
        anneal_strategy: str = "cos",
        last_epoch: int = -1,
    ) -> None:
        groups = optimizer.param_groups
        for group, lr in zip(groups, per_group(swa_lr, groups, "swa_lr"), strict=True):
            group["swa_lr"] = lr
        if anneal_strategy not in ANNEAL:
            raise ValueError(f"anneal_strategy must be one of 'cos' or 'linear', instead got {anneal_strategy}")
        if not isinstance(anneal_epochs, int) or anneal_epochs < 0:
            raise ValueError(f"anneal_epochs must be equal or greater than 0, got {anneal_epochs}")
        self._anneal_strategy, self.anneal_epochs = anneal_strategy, anneal_epochs
        super().__init__(optimizer, last_epoch)

    def get_lr(self) -> list[float]:
        step = self._step_count - 1
        if self.anneal_epochs == 0:
            step = max(1, step)
        before, now = self._progress(step - 1), self._progress(step)
        return [_moved(group["lr"], group["swa_lr"], before, now) for group in self.groups]

    def _progress(self, step: int) -> float:
        return ANNEAL[self._anneal_strategy](max(0, min(1, step / max(1, self.anneal_epochs))))


def _moved(lr: float, goal: float, before: float, now: float) -> float:
    """The rate after a step. The initial rate follows from the current one."""
    initial = goal if before == 1 else (lr - before * goal) / (1 - before)
    return float(goal * now + initial * (1 - now))
