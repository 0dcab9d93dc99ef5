"""Adamax, NAdam, RAdam and SparseAdam. What depends on the step alone is computed here, once per instruction."""

from __future__ import annotations

from math import sqrt
from typing import Any

from gt.client.tensor.tensor import Tensor
from gt.ops import OPS
from gt.optim.optimizer import Group, Optimizer, check, check_betas, check_rate, in_float32

ADAMAX_STEP, NADAM_STEP, RADAM_STEP = OPS["adamax_step"], OPS["nadam_step"], OPS["radam_step"]
SPARSE_ADAM_STEP = OPS["sparse_adam_step"]
MOMENTS = ("exp_avg", "exp_avg_sq")
#: the number of averaged squares from which on RAdam divides by their root
RELIABLE_LENGTH = 5.0


class Adamax(Optimizer):
    """Adam with the largest recent gradient as its norm. See `torch.optim.Adamax`."""

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        foreach: bool | None = None,
        *,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        check_rate(lr)
        check(eps >= 0, "epsilon value", eps)
        check_betas(betas)
        check(weight_decay >= 0, "weight_decay value", weight_decay)
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "foreach": foreach,
            "maximize": maximize, "differentiable": differentiable, "capturable": capturable,
        }  # fmt: skip
        super().__init__(params, defaults)

    def update(self, group: Group, params: list[Tensor]) -> None:
        names, flags, beta1 = ("exp_avg", "exp_inf"), (("maximize", group["maximize"]),), group["betas"][0]
        for (step, _), batch in self.count_step(params, names).items():
            size = self.rate(group) / (1 - beta1**step)
            numbers = (size, *group["betas"], group["eps"], group["weight_decay"])
            self.apply(ADAMAX_STEP, batch, names, numbers, flags)


def _decays(group: Group, lr: float) -> tuple[float, float]:
    """(what is added to gradients per unit of the parameter, the factor of parameters)."""
    decay = group["weight_decay"]
    return (0.0, 1 - lr * decay) if group["decoupled_weight_decay"] else (decay, 1.0)


def _momentum(beta1: float, exponent: float) -> float:
    return beta1 * (1.0 - 0.5 * float(0.96**exponent))


class NAdam(Optimizer):
    """Adam with Nesterov momentum. See `torch.optim.NAdam`."""

    number_states = ("step", "mu_product")

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 2e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        momentum_decay: float = 4e-3,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_rate(lr)
        check(eps >= 0, "epsilon value", eps)
        check_betas(betas)
        check(weight_decay >= 0, "weight_decay value", weight_decay)
        check(momentum_decay >= 0, "momentum_decay value", momentum_decay)
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "momentum_decay": momentum_decay,
            "decoupled_weight_decay": decoupled_weight_decay, "maximize": maximize, "foreach": foreach,
            "capturable": capturable, "differentiable": differentiable,
        }  # fmt: skip
        super().__init__(params, defaults)

    def update(self, group: Group, params: list[Tensor]) -> None:
        lr, (beta1, beta2), flags = self.rate(group), group["betas"], (("maximize", group["maximize"]),)
        for (step, _), alike in self.count_step(params, MOMENTS, (("mu_product", 1.0),)).items():
            now, after = (_momentum(beta1, k * group["momentum_decay"]) for k in (step, step + 1))
            batches: dict[float, list[Tensor]] = {}
            for p in alike:
                product = in_float32(self.state[p]["mu_product"] * in_float32(now))
                self.state[p]["mu_product"] = product
                batches.setdefault(product, []).append(p)
            for product, batch in batches.items():
                rates = (lr * (1.0 - now) / (1.0 - product), lr * after / (1.0 - product * after))
                numbers = (*rates, 1 - beta2**step, beta1, beta2, group["eps"], *_decays(group, lr))
                self.apply(NADAM_STEP, batch, MOMENTS, numbers, flags)


class RAdam(Optimizer):
    """Adam that starts without dividing, until the variance is known well. See `torch.optim.RAdam`."""

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        decoupled_weight_decay: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
    ) -> None:
        check_rate(lr)
        check(eps >= 0, "epsilon value", eps)
        check_betas(betas)
        check(weight_decay >= 0, "weight_decay value", weight_decay)
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "maximize": maximize,
            "foreach": foreach, "capturable": capturable, "decoupled_weight_decay": decoupled_weight_decay,
            "differentiable": differentiable,
        }  # fmt: skip
        super().__init__(params, defaults)

    def update(self, group: Group, params: list[Tensor]) -> None:
        lr, (beta1, beta2), flags = self.rate(group), group["betas"], (("maximize", group["maximize"]),)
        for (step, _), batch in self.count_step(params, MOMENTS).items():
            rates = _rectified_rates(lr, beta1, beta2, step)
            numbers = (*rates, beta1, beta2, group["eps"], *_decays(group, lr))
            self.apply(RADAM_STEP, batch, MOMENTS, numbers, flags)


def _rectified_rates(lr: float, beta1: float, beta2: float, step: float) -> tuple[float, float]:
    """(the rate of means divided by their deviation, the rate of plain means); one of them is 0."""
    size, bias = lr / (1 - beta1**step), 1 - beta2**step
    limit = 2 / (1 - beta2) - 1
    length = limit - 2 * step * beta2**step / bias
    if length <= RELIABLE_LENGTH:
        return 0.0, size
    rectification = (length - 4) * (length - 2) * limit / ((limit - 4) * (limit - 2) * length)
    return size * sqrt(bias) * sqrt(rectification), 0.0


class SparseAdam(Optimizer):
    """Adam for embeddings: rows whose gradient is all zeros keep their values and moments.

    See `torch.optim.SparseAdam`. Gradients are dense in GT; a row is what torch stores in a sparse one.
    """

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        maximize: bool = False,
    ) -> None:
        check_rate(lr)
        check(bool(lr > 0), "learning rate", lr)
        check(eps > 0, "epsilon value", eps)
        check_betas(betas)
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "maximize": maximize})

    def update(self, group: Group, params: list[Tensor]) -> None:
        lr, (beta1, beta2), flags = self.rate(group), group["betas"], (("maximize", group["maximize"]),)
        for (step, _), batch in self.count_step(params, MOMENTS).items():
            size = lr * sqrt(1 - beta2**step) / (1 - beta1**step)
            self.apply(SPARSE_ADAM_STEP, batch, MOMENTS, (size, beta1, beta2, group["eps"]), flags)
