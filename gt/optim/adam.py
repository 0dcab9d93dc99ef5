"""Adam, and AdamW, which decays weights independently of the gradient."""

from __future__ import annotations

from typing import Any

from gt.client.tensor.tensor import Tensor
from gt.ops import OPS
from gt.optim.optimizer import Group, Optimizer, check, check_betas, check_rate

ADAM_STEP = OPS["adam_step"]


class Adam(Optimizer):
    """Adaptive moment estimation. See `torch.optim.Adam`."""

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0,
        amsgrad: bool = False,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        decoupled_weight_decay: bool = False,
    ) -> None:
        check_rate(lr)
        check(eps >= 0, "epsilon value", eps)
        check_betas(betas)
        check(weight_decay >= 0, "weight_decay value", weight_decay)
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": amsgrad,
            "maximize": maximize, "foreach": foreach, "capturable": capturable, "differentiable": differentiable,
            "fused": fused, "decoupled_weight_decay": decoupled_weight_decay,
        }  # fmt: skip
        super().__init__(params, defaults)

    def update(self, group: Group, params: list[Tensor]) -> None:
        names: tuple[str, ...] = ("exp_avg", "exp_avg_sq")
        if group["amsgrad"]:
            names += ("max_exp_avg_sq",)
        flags = (
            ("amsgrad", group["amsgrad"]),
            ("maximize", group["maximize"]),
            ("decoupled", group["decoupled_weight_decay"]),
        )
        numbers = (self.rate(group), *group["betas"], group["eps"], group["weight_decay"])
        for (step, _), batch in self.count_step(params, names).items():
            self.apply(ADAM_STEP, batch, names, (*numbers, step), flags)


class AdamW(Adam):
    """Adam with weight decay independent of the gradient. See `torch.optim.AdamW`."""

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        super().__init__(
            params,
            lr,
            betas,
            eps,
            weight_decay,
            amsgrad,
            foreach=foreach,
            maximize=maximize,
            capturable=capturable,
            differentiable=differentiable,
            fused=fused,
            decoupled_weight_decay=True,
        )
