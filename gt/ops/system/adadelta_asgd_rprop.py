"""The steps of Adadelta, ASGD and Rprop."""

from __future__ import annotations

from typing import Any

from gt.ops.system.optimizer_steps import add_scaled_, decayed_gradient, decayed_gradients, declare_step
from gt.ops.varying import by_kernel

# -- Adadelta ------------------------------------------------------------------------------


def _adadelta(
    xp: Any, p: Any, square: Any, moved: Any, g: Any, lr: float, rho: float, eps: float, decay: float,
    *, maximize: bool,
) -> Any:  # fmt: skip
    g = decayed_gradient(p, g, decay, maximize)
    square = square * rho + g * g * (1 - rho)
    delta = xp.sqrt(moved + eps) / xp.sqrt(square + eps) * g
    return p - lr * delta, square, moved * rho + delta * delta * (1 - rho)


def _adadelta_many(
    torch: Any, params: Any, squares: Any, moved: Any, grads: Any, lr: Any, rho: float, eps: float, decay: Any,
    *, maximize: bool,
) -> None:  # fmt: skip
    grads = decayed_gradients(torch, params, grads, decay, maximize)
    torch._foreach_mul_(squares, rho)
    torch._foreach_addcmul_(squares, grads, grads, value=1 - rho)
    deviations, deltas = torch._foreach_add(squares, eps), torch._foreach_add(moved, eps)
    torch._foreach_sqrt_(deviations)
    torch._foreach_sqrt_(deltas)
    torch._foreach_div_(deltas, deviations)
    torch._foreach_mul_(deltas, grads)
    torch._foreach_mul_(moved, rho)
    torch._foreach_addcmul_(moved, deltas, deltas, value=1 - rho)
    add_scaled_(torch, params, deltas, -lr)


declare_step(
    "adadelta_step", lambda **_: 3, 4, _adadelta, _adadelta_many, varying=by_kernel(always=(0,), may_change=(0, 3))
)


# -- ASGD ----------------------------------------------------------------------------------


def _asgd(
    xp: Any, p: Any, average: Any, g: Any, eta: float, mu: float, lambd: float, decay: float, *, maximize: bool
) -> Any:
    g = decayed_gradient(p, g, decay, maximize)
    p = p * (1 - lambd * eta) - eta * g
    return p, average + (p - average) * mu


def _asgd_many(
    torch: Any, params: Any, averages: Any, grads: Any, eta: Any, mu: Any, lambd: float, decay: Any, *, maximize: bool
) -> None:
    grads = decayed_gradients(torch, params, grads, decay, maximize)
    torch._foreach_mul_(params, 1 - lambd * eta)
    add_scaled_(torch, params, grads, -eta)
    add_scaled_(torch, averages, torch._foreach_sub(params, averages), mu)


declare_step("asgd_step", lambda **_: 2, 4, _asgd, _asgd_many, varying=by_kernel(always=(0,), may_change=(0, 1, 3)))


# -- Rprop ---------------------------------------------------------------------------------


def _rprop(
    xp: Any, p: Any, last: Any, size: Any, g: Any, low: float, high: float, smallest: float, largest: float,
    *, maximize: bool,
) -> Any:  # fmt: skip
    """Only signs count: ``low`` and ``high`` scale the step of an element whose gradient turned, or did not."""
    g = -g if maximize else g
    agreement = g * last
    one, zero = xp.ones_like(p), xp.zeros_like(p)
    factor = xp.where(agreement > 0, one * high, xp.where(agreement < 0, one * low, one))
    size = xp.clip(size * factor, smallest, largest)
    g = xp.where(agreement < 0, zero, g)
    # as in torch, the sign of NaN is 0
    sign = xp.where(g > 0, one, xp.where(g < 0, -one, zero))
    return p - sign * size, g, size


declare_step("rprop_step", lambda **_: 3, 4, _rprop, varying=by_kernel())
