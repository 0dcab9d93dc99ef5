"""Adagrad, RMSprop and Lion."""

from __future__ import annotations

from typing import Any

from gt.client.tensor.tensor import Tensor
from gt.functions.creation import full_like
from gt.ops import OPS
from gt.optim.optimizer import Group, Optimizer, check

ADAGRAD_STEP, RMSPROP_STEP, LION_STEP = OPS["adagrad_step"], OPS["rmsprop_step"], OPS["lion_step"]


class Adagrad(Optimizer):
    """Learning rates divided by the root of summed squared gradients. See `torch.optim.Adagrad`."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        lr_decay: float = 0,
        weight_decay: float = 0,
        initial_accumulator_value: float = 0,
        eps: float = 1e-10,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        check(lr >= 0, "learning rate", lr)
        check(lr_decay >= 0, "lr_decay value", lr_decay)
        check(weight_decay >= 0, "weight_decay value", weight_decay)
        check(initial_accumulator_value >= 0, "initial_accumulator_value value", initial_accumulator_value)
        check(eps >= 0, "epsilon value", eps)
        defaults = {
            "lr": lr, "lr_decay": lr_decay, "eps": eps, "weight_decay": weight_decay,
            "initial_accumulator_value": initial_accumulator_value, "foreach": foreach, "maximize": maximize,
            "differentiable": differentiable, "fused": fused,
        }  # fmt: skip
        super().__init__(params, defaults)
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p] = {"step": 0.0, "sum": full_like(p, float(initial_accumulator_value))}

    def update(self, group: Group, params: list[Tensor]) -> None:
        flags = (("maximize", group["maximize"]),)
        for (step, _), batch in self.count_step(params, ("sum",)).items():
            lr = group["lr"] / (1 + (step - 1) * group["lr_decay"])
            self.apply(ADAGRAD_STEP, batch, ("sum",), (lr, group["weight_decay"], group["eps"]), flags)


class RMSprop(Optimizer):
    """Learning rates divided by the root mean square of recent gradients. See `torch.optim.RMSprop`."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum: float = 0,
        centered: bool = False,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        check(lr >= 0, "learning rate", lr)
        check(eps >= 0, "epsilon value", eps)
        check(momentum >= 0, "momentum value", momentum)
        check(weight_decay >= 0, "weight_decay value", weight_decay)
        check(alpha >= 0, "alpha value", alpha)
        defaults = {
            "lr": lr, "momentum": momentum, "alpha": alpha, "eps": eps, "centered": centered,
            "weight_decay": weight_decay, "capturable": capturable, "foreach": foreach, "maximize": maximize,
            "differentiable": differentiable,
        }  # fmt: skip
        super().__init__(params, defaults)

    def update(self, group: Group, params: list[Tensor]) -> None:
        momentum = group["momentum"] > 0
        names: tuple[str, ...] = ("square_avg",)
        names += ("grad_avg",) if group["centered"] else ()
        names += ("momentum_buffer",) if momentum else ()
        flags = (("momentum", momentum), ("centered", group["centered"]), ("maximize", group["maximize"]))
        numbers = (group["lr"], group["alpha"], group["eps"], group["weight_decay"], group["momentum"])
        for batch in self.count_step(params, names).values():
            self.apply(RMSPROP_STEP, batch, names, numbers, flags)


class Lion(Optimizer):
    """EvoLved Sign Momentum (Chen et al. 2023): the sign of averaged gradients, with independent weight decay."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        check(lr >= 0, "learning rate", lr)
        for i, beta in enumerate(betas):
            check(0 <= beta < 1, f"beta parameter at index {i}", beta)
        check(weight_decay >= 0, "weight_decay value", weight_decay)
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize})

    def update(self, group: Group, params: list[Tensor]) -> None:
        flags = (("maximize", group["maximize"]),)
        numbers = (group["lr"], *group["betas"], group["weight_decay"])
        for batch in self.count_step(params, ("exp_avg",)).values():
            self.apply(LION_STEP, batch, ("exp_avg",), numbers, flags)
