"""Stochastic gradient descent."""

from __future__ import annotations

from typing import Any

from gt.client.tensor.tensor import Tensor
from gt.functions.creation import zeros_like
from gt.ops import OPS
from gt.optim.optimizer import Group, Optimizer, check

SGD_STEP = OPS["sgd_step"]


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum if requested. See `torch.optim.SGD`."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        momentum: float = 0,
        dampening: float = 0,
        weight_decay: float = 0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        differentiable: bool = False,
        fused: bool | None = None,
    ) -> None:
        check(lr >= 0, "learning rate", lr)
        check(momentum >= 0, "momentum value", momentum)
        check(weight_decay >= 0, "weight_decay value", weight_decay)
        if nesterov and (momentum <= 0 or dampening != 0):
            raise ValueError("Nesterov momentum requires a momentum and zero dampening")
        defaults = {
            "lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay,
            "nesterov": nesterov, "maximize": maximize, "foreach": foreach, "differentiable": differentiable,
            "fused": fused,
        }  # fmt: skip
        super().__init__(params, defaults)

    def update(self, group: Group, params: list[Tensor]) -> None:
        momentum = group["momentum"] != 0
        flags = (("momentum", momentum), ("nesterov", group["nesterov"]), ("maximize", group["maximize"]))
        groups: dict[Any, list[Tensor]] = {}
        for p in params:
            first = momentum and self.state[p].get("momentum_buffer") is None
            if first:
                self.state[p]["momentum_buffer"] = zeros_like(p)
            groups.setdefault((first, p._type.dtype), []).append(p)
        for (first, _), batch in groups.items():
            # in the first step the buffer becomes the gradient: it starts as zeros, without dampening
            dampening = 0.0 if first else group["dampening"]
            numbers = (group["lr"], group["weight_decay"], group["momentum"], dampening)
            self.apply(SGD_STEP, batch, ("momentum_buffer",) if momentum else (), numbers, flags)
