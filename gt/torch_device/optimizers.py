"""Optimizers: the fused steps of torch as one instruction, and the end of a step, where a loop repeats."""

from __future__ import annotations

from sys import getrefcount
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from gt.client.stream.connect import connected
from gt.client.tensor.arguments import cast
from gt.client.tensor.emit import call_into, call_into_many
from gt.functions import pointwise
from gt.ops import OPS
from gt.torch_device.backend import Kernel
from gt.torch_device.handles import known_number, note_number, unwrap

ADAM_STEP, COPY, MAXIMUM, MUL = OPS["adam_step"], OPS["copy"], OPS["maximum"], OPS["mul"]
#: float32 counts exactly up to here.
MAX_COUNT = 1 << 24


def install() -> None:
    """Cut the stream after each step of an optimizer: what lies between two cuts can be a template."""
    register_optimizer_step_post_hook(_after_step)


def _after_step(*_: Any) -> None:
    session = connected()
    if session is not None and session.connection.ended is None:
        session.outbox.after_step()


def _adam(decoupled: bool) -> Kernel:
    """The kernel of ``_fused_adam_``, or of ``_fused_adamw_``, whose weight decay is not part of the gradient."""

    def kernel(
        params: Any, grads: Any, means: Any, squares: Any, largest_squares: Any, steps: Any, *, lr: Any, beta1: float,
        beta2: float, weight_decay: float, eps: float, amsgrad: bool, maximize: bool, grad_scale: Any = None,
        found_inf: Any = None,
    ) -> None:  # fmt: skip
        if found_inf is not None and found_inf.item():
            return  # the optimizer itself subtracts the step that it has counted
        columns = (params, means, squares, *((largest_squares,) if amsgrad else ()))
        targets = tuple(unwrap(x) for column in columns for x in column)
        gradients = [unwrap(g) if grad_scale is None else unwrap(g) / unwrap(grad_scale) for g in grads]
        numbers = (float(lr), beta1, beta2, eps, weight_decay, _count(steps[0]))
        flags = (("amsgrad", amsgrad), ("maximize", maximize), ("decoupled", decoupled))
        call_into_many(ADAM_STEP, targets, (*gradients, *numbers), (("n", len(params)), *flags))

    return kernel


def _count(step: torch.Tensor) -> float:
    """The value of a counter of steps. It is read if the client does not know it."""
    number = known_number(step)
    if number is None:
        value = unwrap(step)
        number = value.item()
        note_number(value, number)
    return float(number)


def _add_to_all_(xs: Any, number: Any) -> None:
    """``_foreach_add_``. Optimizers call it with their counters of steps, one for each parameter. The client adds to
    those itself, and sends the number when somebody uses it: no instruction for each of them in each step."""
    for x in xs:
        known = known_number(x) if type(number) is int else None
        attributes = x.untyped_storage().__dict__
        # a view of the counter would hold the same tensor of GT's
        is_shared = "_gt" in attributes and getrefcount(attributes["_gt"]) > 2
        if known is None or is_shared or not abs(known + number) < MAX_COUNT or x.dtype is not torch.float32:
            x.add_(number)
        else:
            attributes.pop("_gt", None)
            attributes["_gt_number"] = known + number


def _unscale_(grads: Any, found_inf: torch.Tensor, inv_scale: torch.Tensor) -> None:
    """`GradScaler.unscale_`: divide all gradients by the scale, and note whether one of them is not finite."""
    found, factor = unwrap(found_inf), unwrap(inv_scale)
    for gradient in map(unwrap, grads):
        call_into(MUL, gradient, (factor,))
        is_bad = pointwise.isfinite(gradient).all().logical_not()
        call_into(MAXIMUM, found, (cast(is_bad, found._type.dtype),))


def _update_scale_(
    scale: torch.Tensor, tracker: torch.Tensor, found_inf: torch.Tensor, growth: float, backoff: float, interval: int
) -> torch.Tensor:
    """`GradScaler.update`: a smaller scale after a step that was skipped, a larger one after many that were not."""
    value, count = unwrap(scale), unwrap(tracker)
    is_bad, following = unwrap(found_inf) > 0, count + 1
    grows = (following == interval) & pointwise.isfinite(value * growth)
    resets = is_bad | (following == interval)
    call_into(COPY, value, (pointwise.where(is_bad, value * backoff, pointwise.where(grows, value * growth, value)),))
    call_into(COPY, count, (pointwise.where(resets, 0, following),))
    return scale


#: overload -> kernel
KERNELS: dict[str, Kernel] = {
    "_amp_foreach_non_finite_check_and_unscale_": _unscale_,
    "_amp_update_scale_": _update_scale_,
    "_foreach_add_.Scalar": _add_to_all_,
    "_fused_adam_": _adam(False),
    "_fused_adam_.tensor_lr": _adam(False),
    "_fused_adamw_": _adam(True),
    "_fused_adamw_.tensor_lr": _adam(True),
}
