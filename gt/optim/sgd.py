"""Stochastic gradient descent, plain and averaged."""

from __future__ import annotations

from typing import Any

from gt.client.tensor.tensor import Tensor
from gt.functions.creation import zeros_like
from gt.ops import OPS
from gt.optim.optimizer import Group, Optimizer, check, check_rate, in_float32

ASGD_STEP, SGD_STEP = OPS["asgd_step"], OPS["sgd_step"]


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum if requested. See `torch.optim.SGD`."""

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
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
        check_rate(lr)
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
            numbers = (self.rate(group), group["weight_decay"], group["momentum"], dampening)
            self.apply(SGD_STEP, batch, ("momentum_buffer",) if momentum else (), numbers, flags)


class ASGD(Optimizer):
    """Stochastic gradient descent that averages parameters: state ``ax``. See `torch.optim.ASGD`."""

    number_states = ("step", "eta", "mu")

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0,
        foreach: bool | None = None,
        maximize: bool = False,
        differentiable: bool = False,
        capturable: bool = False,
    ) -> None:
        check_rate(lr)
        check(weight_decay >= 0, "weight_decay value", weight_decay)
        defaults = {
            "lr": lr, "lambd": lambd, "alpha": alpha, "t0": t0, "weight_decay": weight_decay, "foreach": foreach,
            "maximize": maximize, "differentiable": differentiable, "capturable": capturable,
        }  # fmt: skip
        super().__init__(params, defaults)

    def update(self, group: Group, params: list[Tensor]) -> None:
        lr, lambd = self.rate(group), group["lambd"]
        batches: dict[Any, list[Tensor]] = {}
        for p in params:
            state = self.state[p]
            if not state:
                state.update(step=0.0, eta=in_float32(lr), mu=1.0, ax=zeros_like(p))
            batches.setdefault((state["eta"], state["mu"], p._type.dtype), []).append(p)
            step = state["step"] = state["step"] + 1.0
            state["eta"] = in_float32(lr / (1 + lambd * lr * step) ** group["alpha"])
            state["mu"] = in_float32(1 / max(1.0, step - group["t0"]))
        for (eta, mu, _), batch in batches.items():
            flags = (("maximize", group["maximize"]),)
            self.apply(ASGD_STEP, batch, ("ax",), (eta, mu, lambd, group["weight_decay"]), flags)
