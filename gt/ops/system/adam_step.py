"""The step of Adam and AdamW.

In compiled code it is a formula, which fuses with the code around it, and not torch's fused kernel.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

from gt.ops.signature import Signature
from gt.ops.system.optimizer_steps import (
    alone,
    decayed_gradient,
    decayed_gradients,
    declare_step,
    over,
    power,
    root,
    same_strides,
)
from gt.ops.varying import by_kernel


def _adam(
    xp: Any, p: Any, m: Any, v: Any, *rest: Any, amsgrad: bool, maximize: bool, decoupled: bool, fused: bool = True
) -> tuple[Any, ...]:
    *highest, g, lr, beta1, beta2, eps, decay, step = rest
    g = decayed_gradient(p, g, 0.0 if decoupled else decay, maximize)
    if decoupled:
        p = p * (1 - lr * decay)
    m = m + (g - m) * (1 - beta1)
    v = v * beta2 + g * g * (1 - beta2)
    top = xp.maximum(highest[0], v) if amsgrad else v
    size, scale = over(lr, 1 - power(beta1, step)), root(1 - power(beta2, step))
    new = p - size * m / (over(xp.sqrt(top), scale) + eps)
    return (new, m, v, top) if amsgrad else (new, m, v)


def _dense(x: Any) -> bool:
    """True if the elements fill their memory without gaps or overlaps."""
    order = sorted(range(x.ndim), key=x.stride, reverse=True)
    return bool(x.is_contiguous() or x.permute(order).is_contiguous())


def _adam_many(
    torch: Any, params: list[Any], *rest: Any, amsgrad: bool, maximize: bool, decoupled: bool, fused: bool = True
) -> None:
    *states, grads, lr, beta1, beta2, eps, decay, step = rest
    if not fused and params[0].device.type == "cpu":
        _adam_by_ops(torch, params, states, grads, rest[-6:], maximize, decoupled)
        return
    # torch's fused kernels read memory in its own order, from the first element on
    dense = [p if _dense(p) else p.contiguous() for p in params]
    (grads,) = same_strides(torch, dense, grads)
    laid = same_strides(torch, dense, *states)
    counted = step if isinstance(step, torch.Tensor) else torch.full((), step, device=params[0].device)
    counted = counted.to(torch.float32)
    run = torch._fused_adamw_ if decoupled else torch._fused_adam_
    run(
        dense, grads, laid[0], laid[1], laid[2] if amsgrad else [], [counted] * len(params),
        lr=lr, beta1=beta1, beta2=beta2, weight_decay=decay, eps=eps, amsgrad=amsgrad, maximize=maximize,
    )  # fmt: skip
    for originals, used in zip((params, *states), (dense, *laid), strict=True):
        for x, y in zip(originals, used, strict=True):
            if x is not y:
                x.copy_(y)


def _adam_by_ops(
    torch: Any, params: list[Any], states: list[list[Any]], grads: list[Any], numbers: tuple[Any, ...], maximize: bool,
    decoupled: bool,
) -> None:  # fmt: skip
    """The ops of torch's default Adam on a CPU, in their order: the same bits. The fused kernel rounds differently."""
    lr, beta1, beta2, eps, decay, step = numbers
    means, squares = states[:2]
    grads = decayed_gradients(torch, params, grads, 0.0 if decoupled else decay, maximize)
    if decoupled:
        torch._foreach_mul_(params, 1 - lr * decay)
    torch._foreach_lerp_(means, grads, 1 - beta1)
    torch._foreach_mul_(squares, beta2)
    torch._foreach_addcmul_(squares, grads, grads, 1 - beta2)
    if len(states) > 2:
        torch._foreach_maximum_(states[2], squares)
    roots = torch._foreach_div(torch._foreach_sqrt(states[-1]), root(1 - power(beta2, step)))
    torch._foreach_add_(roots, eps)
    factor = -over(lr, 1 - power(beta1, step))
    if isinstance(factor, torch.Tensor):  # addcdiv takes no number in memory
        torch._foreach_add_(params, torch._foreach_mul(torch._foreach_div(means, roots), factor))
    else:
        torch._foreach_addcdiv_(params, means, roots, factor)


# -- in compiled code ----------------------------------------------------------------------

#: The index of eps among the step's numbers. It is a constant: torch cannot add a number in memory to many tensors.
EPS = 3


def _adam_formula(signature: Signature, constants: tuple[Any, ...]) -> Any:
    import torch

    attrs = dict(signature.attrs)
    n, amsgrad, maximize, decoupled = (attrs[k] for k in ("n", "amsgrad", "maximize", "decoupled"))
    wide = torch.float64 if signature.ins[0].dtype.name == "float64" else torch.float32

    def run(*operands: Any) -> Any:
        tensors, numbers = operands[:-7], [x.to(wide) for x in operands[-7:]]
        params, *states, grads = (list(tensors[k * n : k * n + n]) for k in range(4 + amsgrad))
        (grads,) = same_strides(torch, params, grads)
        grads = list(torch._foreach_neg(grads)) if maximize else grads
        _update(torch, params, states, grads, [*numbers, constants[EPS]], decoupled)
        return alone(tensors[: n * (3 + amsgrad)])

    return run


def _formula_numbers(numbers: tuple[Any, ...]) -> tuple[Any, ...]:
    """What the formula needs of the numbers: computed once per step in double precision, not once per element."""
    lr, beta1, beta2, _, decay, step = numbers
    size, scale = lr / (1 - beta1**step), sqrt(1 - beta2**step)
    return tuple(map(float, (size, scale, 1 - lr * decay, 1 - beta1, beta2, 1 - beta2, decay)))


def _update(
    torch: Any, params: list[Any], states: list[list[Any]], grads: list[Any], numbers: list[Any], decoupled: bool
) -> None:
    size, scale, shrink, fresh, keep2, fresh2, decay, eps = numbers
    means, squares = states[:2]
    if decoupled:
        torch._foreach_mul_(params, shrink)
    else:
        grads = torch._foreach_add(grads, torch._foreach_mul(params, decay))
    torch._foreach_add_(means, torch._foreach_mul(torch._foreach_sub(grads, means), fresh))
    torch._foreach_mul_(squares, keep2)
    torch._foreach_add_(squares, torch._foreach_mul(torch._foreach_mul(grads, grads), fresh2))
    if len(states) > 2:
        torch._foreach_maximum_(states[2], squares)
    roots = torch._foreach_div(torch._foreach_sqrt(states[-1] if len(states) > 2 else squares), scale)
    updates = torch._foreach_div(torch._foreach_mul(means, size), torch._foreach_add(roots, eps))
    torch._foreach_sub_(params, updates)


declare_step(
    "adam_step",
    lambda amsgrad, **_: 3 + amsgrad,
    6,
    _adam,
    _adam_many,
    varying=by_kernel(
        always=(0, 5),
        may_change=(0, 5),  # the others are factors that torch's kernels take as constants
        formula=_adam_formula,
        formula_numbers=_formula_numbers,
        formula_constants=frozenset((EPS,)),
    ),
)
