"""Adadelta, Adagrad, RMSprop, Lion and Rprop."""

from __future__ import annotations

from typing import Any

from gt.client.tensor.tensor import Tensor
from gt.functions.creation import full_like, zeros_like
from gt.ops import OPS
from gt.optim.optimizer import Group, Optimizer, check, check_betas, check_rate

ADADELTA_STEP, ADAGRAD_STEP, RMSPROP_STEP = OPS["adadelta_step"], OPS["adagrad_step"], OPS["rmsprop_step"]
LION_STEP, RPROP_STEP = OPS["lion_step"], OPS["rprop_step"]


class Adadelta(Optimizer):
    """Steps scaled by the root mean square of recent steps over that of gradients. See `torch.optim.Adadelta`."""

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1.0,
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        capturable: bool = False,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_rate(lr)
        check(0 <= rho <= 1, "rho value", rho)
        check(eps >= 0, "epsilon value", eps)
        check(weight_decay >= 0, "weight_decay value", weight_decay)
        defaults = {
            "lr": lr, "rho": rho, "eps": eps, "weight_decay": weight_decay, "maximize": maximize,
            "capturable": capturable, "foreach": foreach, "differentiable": differentiable,
        }  # fmt: skip
        super().__init__(params, defaults)

    def update(self, group: Group, params: list[Tensor]) -> None:
        names, flags = ("square_avg", "acc_delta"), (("maximize", group["maximize"]),)
        numbers = (self.rate(group), group["rho"], group["eps"], group["weight_decay"])
        for batch in self.count_step(params, names).values():
            self.apply(ADADELTA_STEP, batch, names, numbers, flags)


class Adagrad(Optimizer):
    """Learning rates divided by the root of summed squared gradients. See `torch.optim.Adagrad`."""

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-2,
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
        check_rate(lr)
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
            self._begin(group["params"])

    def _begin(self, params: list[Tensor]) -> None:
        """Create the states of parameters that have none."""
        for p in params:
            if not self.state[p]:
                self.state[p] = {"step": 0.0, "sum": full_like(p, float(self.defaults["initial_accumulator_value"]))}

    def update(self, group: Group, params: list[Tensor]) -> None:
        flags = (("maximize", group["maximize"]),)
        self._begin(params)  # those of a group that was added later
        for (step, _), batch in self.count_step(params, ("sum",)).items():
            lr = self.rate(group) / (1 + (step - 1) * group["lr_decay"])
            self.apply(ADAGRAD_STEP, batch, ("sum",), (lr, group["weight_decay"], group["eps"]), flags)


class RMSprop(Optimizer):
    """Learning rates divided by the root mean square of recent gradients. See `torch.optim.RMSprop`."""

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-2,
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
        check_rate(lr)
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
        numbers = (self.rate(group), group["alpha"], group["eps"], group["weight_decay"], group["momentum"])
        for batch in self.count_step(params, names).values():
            self.apply(RMSPROP_STEP, batch, names, numbers, flags)


class Lion(Optimizer):
    """EvoLved Sign Momentum (Chen et al. 2023): the sign of averaged gradients, with independent weight decay."""

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-4,
        betas: tuple[float, float] = (0.9, 0.99),
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        check_rate(lr)
        check_betas(betas)
        check(weight_decay >= 0, "weight_decay value", weight_decay)
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay, "maximize": maximize})

    def update(self, group: Group, params: list[Tensor]) -> None:
        flags = (("maximize", group["maximize"]),)
        numbers = (self.rate(group), *group["betas"], group["weight_decay"])
        for batch in self.count_step(params, ("exp_avg",)).values():
            self.apply(LION_STEP, batch, ("exp_avg",), numbers, flags)


class Rprop(Optimizer):
    """Steps that depend on the signs of gradients only. See `torch.optim.Rprop`."""

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-2,
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50),
        *,
        capturable: bool = False,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_rate(lr)
        check(0 < etas[0] < 1 < etas[1], "eta values", f"{etas[0]}, {etas[1]}")
        defaults = {
            "lr": lr, "etas": etas, "step_sizes": step_sizes, "foreach": foreach, "maximize": maximize,
            "differentiable": differentiable, "capturable": capturable,
        }  # fmt: skip
        super().__init__(params, defaults)

    def update(self, group: Group, params: list[Tensor]) -> None:
        for p in params:
            if not self.state[p]:
                size = full_like(p, self.rate(group))
                self.state[p].update(step=0.0, prev=zeros_like(p), step_size=size)
        names, flags = ("prev", "step_size"), (("maximize", group["maximize"]),)
        for batch in self.count_step(params, names).values():
            self.apply(RPROP_STEP, batch, names, (*group["etas"], *group["step_sizes"]), flags)
