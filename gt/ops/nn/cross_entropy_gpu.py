"""The cross entropy of long rows on a GPU: Triton kernels that read each row of logits from memory once.

torch's own functions write the log probabilities and the gradient of each step to memory; for the 50,000 classes of a
language model that takes several times as long as reading the logits. Imported where Triton is.
"""

# mypy: disable-error-code="untyped-decorator, unused-ignore"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

from gt.ops.math import padded

#: how the kernels are launched; without `sanitize_overflow` a kernel with asserts would check every sum of integers
OPTIONS = {"block": 4096, "num_warps": 8, "sanitize_overflow": False}


@triton.jit
def _add(values, most, total):  # type: ignore[no-untyped-def]
    """Add the exponentials of values to a total that is relative to the highest value so far."""
    higher = tl.maximum(most, tl.max(values, 0))
    base = tl.where(higher == -float("inf"), 0.0, higher)  # -inf - -inf would be NaN
    return higher, total * tl.exp(most - base) + tl.sum(tl.exp(values - base), 0)


@triton.jit
def _log_sum(x, classes, block: tl.constexpr):  # type: ignore[no-untyped-def]
    """The logarithm of the sum of the exponentials of a row."""
    most = -float("inf")
    total = 0.0
    # without a mask, several elements are read at once
    whole = classes // block * block
    for start in range(0, whole, block):
        most, total = _add(tl.load(x + start + tl.arange(0, block)).to(tl.float32), most, total)
    at = whole + tl.arange(0, block)
    if whole < classes:
        most, total = _add(tl.load(x + at, mask=at < classes, other=-float("inf")).to(tl.float32), most, total)
    return tl.log(total) + tl.where(most == -float("inf"), 0.0, most)


@triton.jit(debug=True)
def _losses(x, target, out, stride, classes, ignored, block: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    at = tl.load(target + row)
    tl.device_assert((at == ignored) | ((at >= 0) & (at < classes)), "Target is out of bounds.")
    if at == ignored:
        tl.store(out + row, 0.0)
    else:
        x += row * stride
        picked = tl.load(x + at, mask=(at >= 0) & (at < classes), other=float("nan")).to(tl.float32)
        tl.store(out + row, _log_sum(x, classes, block) - picked)


@triton.jit(debug=True)
def _gradient(g, x, target, out, stride, width, classes, ignored, each: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    """``width``: of a row of the result, which ends in zeros."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.load(target + row)
    tl.device_assert((at == ignored) | ((at >= 0) & (at < classes)), "Target is out of bounds.")
    skipped = at == ignored
    at = at.to(tl.int32)
    x += row * stride
    out += row * width
    column = tl.arange(0, block)
    whole = classes // block * block
    if skipped:
        for start in range(0, width, block):
            zeros = tl.zeros([block], out.dtype.element_ty)
            tl.store(out + start + column, zeros, mask=start + column < width)
    else:
        factor = tl.load(g + row * each).to(tl.float32)
        log_sum = _log_sum(x, classes, block)
        for start in range(0, whole, block):
            share = tl.exp(tl.load(x + start + column).to(tl.float32) - log_sum)
            slope = tl.where(start + column == at, share - 1.0, share) * factor
            tl.store(out + start + column, slope.to(out.dtype.element_ty))
        last = whole + column
        if whole < width:
            share = tl.exp(tl.load(x + last, mask=last < classes, other=-float("inf")).to(tl.float32) - log_sum)
            slope = tl.where(last == at, share - 1.0, share) * factor
            tl.store(out + last, slope.to(out.dtype.element_ty), mask=last < width)


def _run_losses(x: Any, target: Any, ignored: int) -> torch.Tensor:
    out = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
    if x.shape[0]:
        with torch.cuda.device(x.device):
            _losses[(x.shape[0],)](x, target.contiguous(), out, x.stride(0), x.shape[1], ignored, **OPTIONS)
    return out


def _run_gradient(g: Any, x: Any, target: Any, ignored: int) -> torch.Tensor:
    out = _with_zeros_behind(x)
    if x.shape[0]:
        with torch.cuda.device(x.device):
            _gradient[(x.shape[0],)](
                g.contiguous(),
                x,
                target.contiguous(),
                out,
                x.stride(0),
                out.shape[1],
                x.shape[1],
                ignored,
                each=g.ndim,
                **OPTIONS,
            )
    padded.mark_zeros_behind(out)
    return out


def _with_zeros_behind(x: Any) -> torch.Tensor:
    return torch.empty(
        x.shape[0], triton.cdiv(x.shape[1], padded.MULTIPLE) * padded.MULTIPLE, dtype=x.dtype, device=x.device
    )


# As custom ops they are opaque to a compiler.
_losses_op = torch.library.custom_op(
    "gt::cross_entropy", _run_losses, mutates_args=(), schema="(Tensor x, Tensor target, int ignored) -> Tensor"
)
_losses_op.register_fake(lambda x, target, ignored: torch.empty(x.shape[0], dtype=torch.float32, device=x.device))
_gradient_op = torch.library.custom_op(
    "gt::cross_entropy_backward",
    _run_gradient,
    mutates_args=(),
    schema="(Tensor g, Tensor x, Tensor target, int ignored) -> Tensor",
)
_gradient_op.register_fake(lambda g, x, target, ignored: _with_zeros_behind(x))


def losses(x: Any, target: Any, ignored: int) -> Any:
    """The loss of each row, in float32."""
    return (_run_losses if type(x) is torch.Tensor else _losses_op)(x, target, ignored)


def gradient(g: Any, x: Any, target: Any, ignored: int) -> Any:
    """The gradient of the logits. ``g``: that of each loss, or of their sum."""
    whole = (_run_gradient if type(x) is torch.Tensor else _gradient_op)(g, x, target, ignored)
    return whole[:, : x.shape[1]]
