"""Adafactor: the second moments of a matrix are stored as a column times a row."""

from __future__ import annotations

from typing import Any

from gt.client.tensor.tensor import Tensor
from gt.functions.creation import zeros, zeros_like
from gt.ops import OPS
from gt.optim.optimizer import Group, Optimizer
from gt.types import DType

ADAFACTOR_STEP = OPS["adafactor_step"]

#: The distance from 1 to the next number, by dtype.
EPSILON = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}


class Adafactor(Optimizer):
    """Adam with much less memory: second moments of matrices are factored. See `torch.optim.Adafactor`."""

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        *,
        foreach: bool | None = None,
        maximize: bool = False,
    ) -> None:
        for valid, what, value in (
            (lr >= 0, "Learning rate should be >= 0", lr),
            (beta2_decay <= 0, "beta2_decay should be <= 0", beta2_decay),
            (eps[0] is None or eps[0] >= 0, "epsilon1 should be >= 0", eps[0]),
            (eps[1] >= 0, "epsilon2 should be >= 0", eps[1]),
            (d >= 1, "Clipping threshold d should be >= 1", d),
            (weight_decay >= 0, "weight_decay should be >= 0", weight_decay),
        ):
            if not valid:
                raise ValueError(f"{what} but is: {value}")
        defaults = {
            "lr": lr, "beta2_decay": beta2_decay, "eps": eps, "d": d, "weight_decay": weight_decay,
            "foreach": foreach, "maximize": maximize,
        }  # fmt: skip
        super().__init__(params, defaults)

    def update(self, group: Group, params: list[Tensor]) -> None:
        groups: dict[tuple[float, DType, bool], list[Tensor]] = {}
        for p in params:
            state = self.state[p] or self._new_state(p)
            state["step"] += 1.0
            groups.setdefault((state["step"], p._type.dtype, p._type.ndim > 1), []).append(p)
        for (step, dtype, factored), batch in groups.items():
            eps1 = EPSILON[dtype.name] if group["eps"][0] is None else group["eps"][0]
            numbers = (self.rate(group), group["beta2_decay"], eps1, group["eps"][1], group["d"], group["weight_decay"])
            names = ("row_var", "col_var") if factored else ("variance",)
            flags = (("factored", factored), ("maximize", group["maximize"]))
            self.apply(ADAFACTOR_STEP, batch, names, (*numbers, step), flags)

    def _new_state(self, p: Tensor) -> dict[str, Any]:
        state: dict[str, Any] = {"step": 0.0}
        if p._type.ndim > 1:
            state["row_var"], state["col_var"] = _zeros_of_slice(p, -1), _zeros_of_slice(p, -2)
        else:
            state["variance"] = zeros_like(p)
        self.state[p] = state
        return state


def _zeros_of_slice(p: Tensor, dim: int) -> Tensor:
    """Zeros in the shape of p with size 1 along a dim."""
    shape = list(p._type.shape)
    if shape[dim]:
        return zeros_like(p.detach().narrow(dim, 0, 1))
    shape[dim] = 1
    return zeros(shape, dtype=p._type.dtype)
