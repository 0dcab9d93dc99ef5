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

BLOCK, WARPS = 8192, 16
#: Rows of the gradient start at multiples of this many elements: products of matrices are slower with other rows.
ALIGNMENT = 64


@triton.jit
def _log_sum(x, classes, block: tl.constexpr):  # type: ignore[no-untyped-def]
    """The logarithm of the sum of the exponentials of a row."""
    most = -float("inf")
    total = 0.0
    for start in range(0, classes, block):
        at = start + tl.arange(0, block)
        values = tl.load(x + at, mask=at < classes, other=-float("inf")).to(tl.float32)
        higher = tl.maximum(most, tl.max(values, 0))
        base = tl.where(higher == -float("inf"), 0.0, higher)  # -inf - -inf would be NaN
        total = total * tl.exp(most - base) + tl.sum(tl.exp(values - base), 0)
        most = higher
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
def _gradient(g, x, target, out, stride, out_stride, classes, ignored, each: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    at = tl.load(target + row)
    tl.device_assert((at == ignored) | ((at >= 0) & (at < classes)), "Target is out of bounds.")
    x += row * stride
    out += row * out_stride
    if at == ignored:
        for start in range(0, classes, block):
            column = start + tl.arange(0, block)
            tl.store(out + column, tl.zeros([block], out.dtype.element_ty), mask=column < classes)
    else:
        factor = tl.load(g + row * each).to(tl.float32)
        log_sum = _log_sum(x, classes, block)
        for start in range(0, classes, block):
            column = start + tl.arange(0, block)
            inside = column < classes
            values = tl.load(x + column, mask=inside, other=-float("inf")).to(tl.float32)
            share = tl.exp(values - log_sum)
            slope = tl.where(column == at, share - 1.0, share) * factor
            tl.store(out + column, slope.to(out.dtype.element_ty), mask=inside)


def _run_losses(x: Any, target: Any, ignored: int) -> torch.Tensor:
    out = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
    if x.shape[0]:
        with torch.cuda.device(x.device):
            _losses[(x.shape[0],)](
                x, target.contiguous(), out, x.stride(0), x.shape[1], ignored, block=BLOCK, num_warps=WARPS
            )
    return out


def _run_gradient(g: Any, x: Any, target: Any, ignored: int) -> torch.Tensor:
    out = aligned_rows(x)
    if x.shape[0]:
        with torch.cuda.device(x.device):
            _gradient[(x.shape[0],)](
                g.contiguous(),
                x,
                target.contiguous(),
                out,
                x.stride(0),
                out.stride(0),
                x.shape[1],
                ignored,
                each=g.ndim,
                block=BLOCK,
                num_warps=WARPS,
            )
    return out


def aligned_rows(x: Any, columns: int | None = None) -> torch.Tensor:
    """Memory for a matrix with the rows of another, each of which starts at a multiple of `ALIGNMENT` elements."""
    size = x.shape[1] if columns is None else columns
    stride = triton.cdiv(size, ALIGNMENT) * ALIGNMENT
    return torch.empty_strided((x.shape[0], size), (stride, 1), dtype=x.dtype, device=x.device)


def _run_product(a: Any, b: Any) -> torch.Tensor:
    return torch.mm(a, b, out=aligned_rows(a, b.shape[1]))


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
_gradient_op.register_fake(lambda g, x, target, ignored: aligned_rows(x))
#: the product of two matrices, with rows that are aligned
product_op = torch.library.custom_op(
    "gt::product_with_aligned_rows", _run_product, mutates_args=(), schema="(Tensor a, Tensor b) -> Tensor"
)
product_op.register_fake(lambda a, b: aligned_rows(a, b.shape[1]))


def losses(x: Any, target: Any, ignored: int) -> Any:
    """The loss of each row, in float32."""
    return (_run_losses if type(x) is torch.Tensor else _losses_op)(x, target, ignored)


def gradient(g: Any, x: Any, target: Any, ignored: int) -> Any:
    """The gradient of the logits. ``g``: that of each loss, or of their sum."""
    return (_run_gradient if type(x) is torch.Tensor else _gradient_op)(g, x, target, ignored)
