"""The steps of Adamax, NAdam, RAdam and SparseAdam.

The client computes what depends on the number of the step alone, in double precision: the corrections of bias, the
momentum schedule, the rectification. They are numbers of the instruction.
"""

from __future__ import annotations

from typing import Any

from gt.ops.system.optimizer_steps import add_scaled_, decayed_gradient, decayed_gradients, declare_step, over
from gt.ops.varying import by_kernel


def _moments(m: Any, v: Any, g: Any, beta1: float, beta2: float) -> tuple[Any, Any]:
    return m + (g - m) * (1 - beta1), v * beta2 + g * g * (1 - beta2)


def _moments_(torch: Any, means: Any, squares: Any, grads: Any, beta1: float, beta2: float) -> None:
    torch._foreach_lerp_(means, grads, 1 - beta1)
    torch._foreach_mul_(squares, beta2)
    torch._foreach_addcmul_(squares, grads, grads, value=1 - beta2)


def _shrink_(torch: Any, params: list[Any], factor: Any) -> None:
    """Weight decay independent of the gradient; a constant factor of 1 means none."""
    if isinstance(factor, torch.Tensor) or factor != 1:
        torch._foreach_mul_(params, factor)


# -- Adamax --------------------------------------------------------------------------------


def _adamax(
    xp: Any, p: Any, m: Any, top: Any, g: Any, size: float, beta1: float, beta2: float, eps: float, decay: float,
    *, maximize: bool,
) -> Any:  # fmt: skip
    g = decayed_gradient(p, g, decay, maximize)
    m = m + (g - m) * (1 - beta1)
    top = xp.maximum(top * beta2, xp.abs(g) + eps)
    return p - size * m / top, m, top


def _adamax_many(
    torch: Any, params: Any, means: Any, tops: Any, grads: Any, size: Any, beta1: float, beta2: float, eps: float,
    decay: Any, *, maximize: bool,
) -> None:  # fmt: skip
    grads = decayed_gradients(torch, params, grads, decay, maximize)
    torch._foreach_lerp_(means, grads, 1 - beta1)
    torch._foreach_mul_(tops, beta2)
    norms = torch._foreach_abs(grads)
    torch._foreach_add_(norms, eps)
    torch._foreach_maximum_(tops, norms)
    add_scaled_(torch, params, torch._foreach_div(means, tops), -size)


#: its lr is already divided by the correction of bias
declare_step("adamax_step", lambda **_: 3, 5, _adamax, _adamax_many, varying=by_kernel(always=(0,), may_change=(0, 4)))


# -- NAdam ---------------------------------------------------------------------------------


def _nadam(xp: Any, p: Any, m: Any, v: Any, g: Any, *numbers: float, maximize: bool) -> tuple[Any, ...]:
    now, next_rate, bias, beta1, beta2, eps, decay, factor = numbers
    g = decayed_gradient(p, g, decay, maximize)
    m, v = _moments(m, v, g, beta1, beta2)
    return p * factor - (now * g + next_rate * m) / (xp.sqrt(over(v, bias)) + eps), m, v


def _nadam_many(torch: Any, params: Any, means: Any, squares: Any, grads: Any, *numbers: Any, maximize: bool) -> None:
    now, next_rate, bias, beta1, beta2, eps, decay, factor = numbers
    grads = decayed_gradients(torch, params, grads, decay, maximize)
    _moments_(torch, means, squares, grads, beta1, beta2)
    deviations = torch._foreach_div(squares, bias)
    torch._foreach_sqrt_(deviations)
    torch._foreach_add_(deviations, eps)
    updates = torch._foreach_mul(grads, now)
    add_scaled_(torch, updates, means, next_rate)
    torch._foreach_div_(updates, deviations)
    _shrink_(torch, params, factor)
    torch._foreach_sub_(params, updates)


#: (rate of the gradient, rate of the mean, correction of bias of the squares, beta1, beta2, eps, decay, 1 - lr * decay)
declare_step(
    "nadam_step", lambda **_: 3, 8, _nadam, _nadam_many,
    varying=by_kernel(always=(0, 1, 2), may_change=(0, 1, 2, 6, 7)),
)  # fmt: skip


# -- RAdam ---------------------------------------------------------------------------------


def _radam(xp: Any, p: Any, m: Any, v: Any, g: Any, *numbers: float, maximize: bool) -> tuple[Any, ...]:
    adaptive, plain, beta1, beta2, eps, decay, factor = numbers
    g = decayed_gradient(p, g, decay, maximize)
    m, v = _moments(m, v, g, beta1, beta2)
    return p * factor - m * (adaptive / (xp.sqrt(v) + eps) + plain), m, v


def _radam_many(torch: Any, params: Any, means: Any, squares: Any, grads: Any, *numbers: Any, maximize: bool) -> None:
    adaptive, plain, beta1, beta2, eps, decay, factor = numbers
    grads = decayed_gradients(torch, params, grads, decay, maximize)
    _moments_(torch, means, squares, grads, beta1, beta2)
    rates = torch._foreach_sqrt(squares)
    torch._foreach_add_(rates, eps)
    torch._foreach_reciprocal_(rates)
    torch._foreach_mul_(rates, adaptive)
    torch._foreach_add_(rates, plain)
    _shrink_(torch, params, factor)
    torch._foreach_sub_(params, torch._foreach_mul(means, rates))


#: One of the two rates is 0: ``adaptive`` while the variance is not yet known well, ``plain`` afterwards.
declare_step(
    "radam_step", lambda **_: 3, 7, _radam, _radam_many,
    varying=by_kernel(always=(0, 1), may_change=(0, 1, 5, 6)),
)  # fmt: skip


# -- SparseAdam ----------------------------------------------------------------------------


def _sparse_adam(
    xp: Any, p: Any, m: Any, v: Any, g: Any, size: Any, beta1: float, beta2: float, eps: float, *, maximize: bool
) -> tuple[Any, ...]:
    """Adam on the rows whose gradient is not all zeros; the others keep their values and moments."""
    touched = xp.any(g != 0, axis=tuple(range(1, g.ndim)), keepdims=True) if g.ndim > 1 else g != 0
    new_m, new_v = _moments(m, v, -g if maximize else g, beta1, beta2)
    new = p - size * (new_m / (xp.sqrt(new_v) + eps))
    return tuple(xp.where(touched, x, y) for x, y in ((new, p), (new_m, m), (new_v, v)))


declare_step(
    "sparse_adam_step", lambda **_: 3, 4, _sparse_adam, by_rows=True,
    varying=by_kernel(always=(0,), may_change=(0,)),
)  # fmt: skip
