"""Optimizers: the steps of Adam, AdamW and SGD as one instruction, and the end of a step, where a loop repeats."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from sys import getrefcount
from typing import Any

import torch
from torch.autograd.graph import increment_version
from torch.optim import adam, sgd
from torch.optim.optimizer import register_optimizer_step_post_hook

from gt.client.stream.connect import connected
from gt.client.stream.outbox import Outbox
from gt.client.tensor.arguments import cast
from gt.client.tensor.emit import call_into
from gt.client.tensor.multi_tensor import call_into_many
from gt.functions import pointwise
from gt.ops import OPS, Attrs
from gt.torch_device.backend import Kernel, is_on_device
from gt.torch_device.handles import known_number, note_number, unwrap

ADAM_STEP, SGD_STEP = OPS["adam_step"], OPS["sgd_step"]
COPY, MAXIMUM, MUL = OPS["copy"], OPS["maximum"], OPS["mul"]
#: float32 counts exactly up to here.
MAX_COUNT = 1 << 24


def install() -> None:
    """Cut the stream after each step of an optimizer: what lies between two cuts can be a template."""
    register_optimizer_step_post_hook(_after_step)
    adam.adam, sgd.sgd = _in_one_instruction(adam.adam), _in_one_instruction(sgd.sgd)
    for owner in (torch.optim.Optimizer, torch.nn.Module):
        owner.zero_grad = _part_of_step(owner.zero_grad)  # type: ignore[method-assign]


def _in_one_instruction(original: Callable[..., None]) -> Callable[..., None]:
    """A step that is fused by default. torch's default runs about ten ops for each parameter."""

    @wraps(original)
    def step(params: Any, grads: Any, *columns: Any, **options: Any) -> None:
        if (
            options.get("foreach") is None
            and options.get("fused") is None
            and _can_be_fused(params, grads, columns, options)
        ):
            options["fused"] = True
            increment_version(params)  # autograd sees the writes of torch's default, but not those of a fused step
        original(params, grads, *columns, **options)

    return step


def _can_be_fused(params: Any, grads: Any, columns: tuple[Any, ...], options: dict[str, Any]) -> bool:
    flags = ("capturable", "differentiable", "has_complex", "has_sparse_grad")
    if len(columns) not in (1, 4) or any(options.get(name) for name in flags):
        return False
    if isinstance(options["lr"], torch.Tensor) or torch.is_grad_enabled() or torch.compiler.is_compiling():
        return False
    states = columns[:3]  # SGD has one; the fourth of Adam are the counters
    if any(len({x is None for x in column}) > 1 for column in states):
        return False  # some parameters are in their first step with momentum
    rows = ((p, x) for column in (params, grads, *states) for p, x in zip(params, column, strict=False))
    return all(x is None or (is_on_device(x) and x.dtype is p.dtype and unwrap(x)._view is None) for p, x in rows)


def _outbox() -> Outbox | None:
    session = connected()
    return session.outbox if session is not None and session.connection.ended is None else None


def _after_step(*_: Any) -> None:
    if (outbox := _outbox()) is not None:
        outbox.after_step()


def _part_of_step(original: Callable[..., None]) -> Callable[..., None]:
    """Gradients that are cleared right after a step belong to it: see `gt.client.grad.leaves.clear_grads`."""

    @wraps(original)
    def zero_grad(self: Any, *args: Any, **options: Any) -> None:
        outbox = _outbox()
        if outbox is None:
            original(self, *args, **options)
            return
        outbox.before_clearing()
        original(self, *args, **options)
        outbox.after_clearing()

    return zero_grad


def _adam(decoupled: bool) -> Kernel:
    """The kernel of ``_fused_adam_``, or of ``_fused_adamw_``, whose weight decay is not part of the gradient."""

    def kernel(
        params: Any, grads: Any, means: Any, squares: Any, largest_squares: Any, steps: Any, *, lr: Any, beta1: float,
        beta2: float, weight_decay: float, eps: float, amsgrad: bool, maximize: bool, grad_scale: Any = None,
        found_inf: Any = None,
    ) -> None:  # fmt: skip
        if found_inf is not None and found_inf.item():
            return  # the optimizer itself subtracts the step that it has counted
        columns = [list(map(unwrap, c)) for c in (params, means, squares, *((largest_squares,) if amsgrad else ()))]
        gradients = [unwrap(g) if grad_scale is None else unwrap(g) / unwrap(grad_scale) for g in grads]
        flags: Attrs = (("amsgrad", amsgrad), ("maximize", maximize), ("decoupled", decoupled))
        if steps[0].is_cpu:  # torch's counters if the program did not ask for a fused step: it expects those bits
            flags = (*flags, ("fused", False))
        rows: dict[float, list[int]] = {}
        for k, step in enumerate(steps):
            rows.setdefault(_count(step), []).append(k)
        for count, ks in rows.items():
            targets = tuple([column[k] for column in columns for k in ks])
            numbers = (float(lr), beta1, beta2, eps, weight_decay, count)
            attrs = (("n", len(ks)), *flags)
            call_into_many(ADAM_STEP, targets, tuple([gradients[k] for k in ks]), numbers, attrs)

    return kernel


def _fused_sgd_(
    params: Any, grads: Any, buffers: Any, *, weight_decay: float, momentum: float, lr: Any, dampening: float,
    nesterov: bool, maximize: bool, is_first_step: bool, grad_scale: Any = None, found_inf: Any = None,
) -> None:  # fmt: skip
    """The kernel of ``_fused_sgd_``."""
    if found_inf is not None and found_inf.item():
        return
    targets = tuple([unwrap(x) for column in (params, buffers) for x in column])
    gradients = [unwrap(g) if grad_scale is None else unwrap(g) / unwrap(grad_scale) for g in grads]
    # In the first step the buffer becomes the gradient: it is empty, which means zeros, and there is no dampening.
    numbers = (float(lr), weight_decay, momentum, 0.0 if is_first_step else dampening)
    flags = (("momentum", bool(momentum)), ("nesterov", nesterov), ("maximize", maximize))
    call_into_many(SGD_STEP, targets, tuple(gradients), numbers, (("n", len(params)), *flags))


def _count(step: torch.Tensor) -> float:
    """The value of a counter of steps. It is read if the client does not know it."""
    number = step.item() if step.is_cpu else known_number(step)
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
    "_fused_sgd_": _fused_sgd_,
    "_fused_sgd_.tensor_lr": _fused_sgd_,
}
