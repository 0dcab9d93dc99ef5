"""Convolutions of any number of dims, transposed ones too; and the columns of `im2col` and `col2im`.

The tensors have a batch; strides, paddings and dilations are tuples, one number per spatial dim. In numpy all of it is
sums over the positions of the kernel: the input at one of them is a slice with a stride.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from math import prod
from typing import Any

from gt.errors import DTypeError, ShapeError
from gt.ops.attributes import MAX_INT32, MAX_INT64, check_flags, check_int, check_mask
from gt.ops.elements import wide
from gt.ops.gradient_rules import chosen, one
from gt.ops.infer import shown
from gt.ops.op import Types, op
from gt.ops.splits_nn import columns, convolving, convolving_back
from gt.types import Shape, TensorType, int64

Ints = tuple[int, ...]
Mask = tuple[bool, bool]


def _spatial(name: str, values: Ints, rank: int, least: int) -> None:
    if len(values) != rank:
        raise ShapeError(f"{name} is {rank} numbers of at least {least}, not {values}")
    for value in values:
        check_int(name, value, least, MAX_INT32)


def check_span(kernel: Ints, dilation: Ints) -> None:
    """A window's span is computed in a C int by some of torch's kernels."""
    for k, d in zip(kernel, dilation, strict=True):
        if d * (k - 1) > MAX_INT32:
            raise ShapeError(f"a kernel of {k} with dilation {d} spans more than {MAX_INT32}")


def window_size(n: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """The number of positions of a window."""
    room = n + 2 * padding - dilation * (kernel - 1) - 1
    return room // stride + 1


def _convolved(
    x: TensorType,
    weight: TensorType,
    *bias: TensorType,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
) -> TensorType:
    rank = weight.ndim - 2
    if not 1 <= rank <= 3 or x.ndim != rank + 2:
        raise ShapeError(f"an input of {rank + 2} dims, batch and channels first, for a weight of {weight.ndim}")
    stretched = transposed or any(d > 1 for d in dilation)
    if x.dtype.kind == "b" or (x.dtype.kind in "ui" and stretched and x.dtype is not int64):
        raise DTypeError(f"not defined for {x.dtype.name}; use x.float()")
    check_flags(transposed=transposed)
    if any(t.dtype is not x.dtype for t in (weight, *bias)):
        raise DTypeError(f"dtypes differ: {', '.join(t.dtype.name for t in (x, weight, *bias))}")
    _check_steps(rank, weight.shape[2:], stride, padding, dilation, output_padding, transposed)
    if 0 in weight.shape or 0 in x.shape[1:]:
        raise ShapeError(f"only the batch may be empty, and {x} or {weight} is")
    out, needed = _channels(weight, transposed, groups)
    if x.shape[1] != needed:
        raise ShapeError(
            f"a weight of {shown(weight.shape)} in {groups} groups takes {needed} channels, not {x.shape[1]}"
        )
    if any(b.shape != (out,) for b in bias):
        raise ShapeError(f"a bias of {shown(bias[0].shape)} for {out} channels")
    grow = _grown if transposed else _shrunk
    sizes = tuple(map(grow, x.shape[2:], weight.shape[2:], stride, padding, dilation, output_padding))
    if any(n < 1 for n in sizes):
        raise ShapeError(f"the kernel {shown(weight.shape[2:])} is larger than the padded input")
    return TensorType((x.shape[0], out, *sizes), x.dtype)


def _check_steps(
    rank: int, kernel: Ints, stride: Ints, padding: Ints, dilation: Ints, output_padding: Ints, transposed: bool
) -> None:
    for name, values, least in (
        ("stride", stride, 1),
        ("padding", padding, 0),
        ("dilation", dilation, 1),
        ("output_padding", output_padding, 0),
    ):
        _spatial(name, values, rank, least)
    check_span(kernel, dilation)
    if not transposed and any(output_padding):
        raise ShapeError(f"output_padding {output_padding} is for transposed convolutions alone")
    if transposed and any(o >= max(s, d) for o, s, d in zip(output_padding, stride, dilation, strict=True)):
        raise ShapeError(f"output_padding {output_padding} is not smaller than stride {stride} or dilation {dilation}")


def _channels(weight: TensorType, transposed: bool, groups: int) -> tuple[int, int]:
    """(output channels, input channels)"""
    first, second = weight.shape[:2]
    check_int("groups", groups, 1, MAX_INT64)
    if first % groups:
        raise ShapeError(f"{first} channels do not make {groups} groups")
    return (second * groups, first) if transposed else (first, second * groups)


def _shrunk(n: int, kernel: int, stride: int, padding: int, dilation: int, _: int) -> int:
    return window_size(n, kernel, stride, padding, dilation)


def _grown(n: int, kernel: int, stride: int, padding: int, dilation: int, extra: int) -> int:
    return (n - 1) * stride - 2 * padding + dilation * (kernel - 1) + extra + 1


# -- in numpy ------------------------------------------------------------------------------


def seen(kernel: Ints, sizes: Ints, stride: Ints, dilation: Ints) -> Iterator[tuple[Ints, tuple[Any, ...]]]:
    """Each position in the kernel, and the slices of a padded input that it covers."""
    for at in itertools.product(*map(range, kernel)):
        spans = zip(at, sizes, stride, dilation, strict=True)
        yield at, (..., *(slice(k * d, k * d + (n - 1) * s + 1, s) for k, n, s, d in spans))


def padded(np: Any, x: Any, padding: Ints, value: float = 0, extra: Ints = ()) -> Any:
    rank = len(padding)
    more = extra or (0,) * rank
    ends = [(p, p + e) for p, e in zip(padding, more, strict=True)]
    return np.pad(x, [(0, 0)] * (x.ndim - rank) + ends, constant_values=value)


def cropped(x: Any, padding: Ints) -> Any:
    return x[(..., *(slice(p, n - p) for p, n in zip(padding, x.shape[-len(padding) :], strict=True)))]


def _grouped(x: Any, groups: int) -> Any:
    return x.reshape(x.shape[0], groups, x.shape[1] // groups, *x.shape[2:])


def _taps(weight: Any, groups: int) -> Any:
    return weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])


def _slide(np: Any, x: Any, weight: Any, sizes: Ints, stride: Ints, padding: Ints, dilation: Ints, groups: int) -> Any:
    """From inputs to outputs."""
    source, taps = _grouped(padded(np, x, padding), groups), _taps(weight, groups)
    result = np.zeros((x.shape[0], groups, taps.shape[1], *sizes), x.dtype)
    if 0 in result.shape:
        return result.reshape(x.shape[0], weight.shape[0], *sizes)
    for at, slices in seen(weight.shape[2:], sizes, stride, dilation):
        result += np.einsum("ngc...,goc->ngo...", source[slices], taps[(..., *at)])
    return result.reshape(x.shape[0], weight.shape[0], *sizes)


def _unslide(
    np: Any, g: Any, weight: Any, sizes: Ints, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> Any:
    """From outputs back to inputs of these sizes."""
    source, taps = _grouped(g, groups), _taps(weight, groups)
    room = tuple(n + 2 * p for n, p in zip(sizes, padding, strict=True))
    result = np.zeros((g.shape[0], groups, taps.shape[2], *room), g.dtype)
    if g.size:
        for at, slices in seen(weight.shape[2:], g.shape[2:], stride, dilation):
            result[slices] += np.einsum("ngo...,goc->ngc...", source, taps[(..., *at)])
    return cropped(result.reshape(g.shape[0], taps.shape[2] * groups, *room), padding)


def _unweigh(np: Any, g: Any, x: Any, shape: Shape, stride: Ints, padding: Ints, dilation: Ints, groups: int) -> Any:
    """From outputs and inputs to the weight between them."""
    source, back = _grouped(padded(np, x, padding), groups), _grouped(g, groups)
    back = back.reshape(*back.shape[:3], prod(g.shape[2:]))
    result = np.zeros((groups, shape[0] // groups, *shape[1:]), g.dtype)
    if g.size:
        for at, slices in seen(shape[2:], g.shape[2:], stride, dilation):
            part = source[slices]
            result[(..., *at)] = np.einsum("ngos,ngcs->goc", back, part.reshape(*part.shape[:3], -1))
    return result.reshape(shape)


def _convolve_numpy(
    np: Any,
    x: Any,
    weight: Any,
    *bias: Any,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
) -> Any:
    x, weight, *biases = wide(np, x, weight, *bias)
    grow = _grown if transposed else _shrunk
    sizes = tuple(map(grow, x.shape[2:], weight.shape[2:], stride, padding, dilation, output_padding))
    result = (_unslide if transposed else _slide)(np, x, weight, sizes, stride, padding, dilation, groups)
    return result + biases[0].reshape(-1, *(1,) * len(sizes)) if biases else np.ascontiguousarray(result)


def _back_numpy(
    np: Any,
    g: Any,
    x: Any,
    weight: Any,
    *,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
    mask: Mask,
) -> Any:
    g, x, weight = wide(np, g, x, weight)
    how = stride, padding, dilation, groups
    back = _slide if transposed else _unslide
    outer, inner = (x, g) if transposed else (g, x)
    result = (
        np.ascontiguousarray(back(np, g, weight, x.shape[2:], *how)) if mask[0] else None,
        _unweigh(np, outer, inner, weight.shape, *how) if mask[1] else None,
    )
    kept = tuple(m for m in result if m is not None)
    return kept if len(kept) > 1 else kept[0]


# -- the ops -------------------------------------------------------------------------------


def _vjp(needs: Any, g: Any, _y: Any, x: Any, weight: Any, *_bias: Any, **how: Any) -> list[Any]:
    grads = chosen("convolution_backward", (needs[0], needs[1]), g, x, weight, **how)
    over = (0, *range(2, g.ndim))
    return [*grads, *(g.sum(over) if n else None for n in needs[2:])]


def _flops(x: TensorType, weight: TensorType, *rest: TensorType, transposed: bool, **how: Any) -> int:
    per = 2 * weight.numel // max(weight.shape[0], 1)
    result = _convolved(x, weight, transposed=transposed, **how)
    return per * (x.numel if transposed else result.numel)


op(
    "convolution",
    autocast="lower",
    operands="ttt?",
    infer=_convolved,
    split=convolving,
    vjp=_vjp,
    flops=_flops,
    torch=lambda torch, x, weight, *bias, stride, padding, dilation, transposed, output_padding, groups: (
        torch.ops.aten.convolution(
            x, weight, bias[0] if bias else None, stride, padding, dilation, transposed, output_padding, groups
        )
    ),
    kernel=_convolve_numpy,
)


def _gradients(g: TensorType, x: TensorType, weight: TensorType, *, mask: Mask, **how: Any) -> Types:
    if (expected := _convolved(x, weight, **how)) is not g:
        raise ShapeError(f"the gradient of this convolution is {expected}, not {g}")
    if g.dtype.kind != "f":
        raise DTypeError(f"a gradient is floating, not {g.dtype.name}")
    check_mask(mask, 2)
    return tuple(t for t, wanted in zip((x, weight), mask, strict=True) if wanted)


def _back_torch(
    torch: Any,
    g: Any,
    x: Any,
    weight: Any,
    *,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    transposed: bool,
    output_padding: Ints,
    groups: int,
    mask: Mask,
) -> Any:
    how = stride, padding, dilation, transposed, output_padding, groups
    result = torch.ops.aten.convolution_backward(g, x, weight, None, *how, [*mask, False])
    kept = tuple(m for m, wanted in zip(result, mask, strict=False) if wanted)
    return kept if len(kept) > 1 else kept[0]


def _back_vjp(needs: Any, d: Any, _y: Any, g: Any, x: Any, weight: Any, *, mask: Mask, **how: Any) -> list[Any]:
    """A convolution is linear in its input and in its weight, and so its gradients are convolutions again."""
    grads = iter(d if isinstance(d, tuple) else (d,))
    dx, dw = (next(grads) if wanted else None for wanted in mask)
    parts = [one("convolution", dx, weight, **how)] if dx is not None else []
    parts += [one("convolution", x, dw, **how)] if dw is not None else []
    whole = parts[0] if len(parts) == 1 else parts[0] + parts[1]
    for_x = None if dw is None or not needs[1] else chosen("convolution_backward", (True, False), g, x, dw, **how)[0]
    for_w = (
        None if dx is None or not needs[2] else chosen("convolution_backward", (False, True), g, dx, weight, **how)[1]
    )
    return [whole, for_x, for_w]


op(
    "convolution_backward",
    operands="ttt",
    infer=_gradients,
    split=convolving_back,
    vjp=_back_vjp,
    flops=lambda g, x, weight, *, mask, **how: sum(mask) * _flops(x, weight, **how),
    torch=_back_torch,
    kernel=_back_numpy,
)

# -- columns -------------------------------------------------------------------------------


def _columns(x: TensorType, *, size: Ints, kernel: Ints, dilation: Ints, padding: Ints, stride: Ints) -> TensorType:
    if x.ndim != 4 or x.shape[2:] != size or 0 in x.shape[1:]:
        raise ShapeError(f"needs a batch of images of {shown(size)}, of which only the batch may be empty")
    _check_columns(x)
    blocks = _blocks(size, kernel, dilation, padding, stride)
    return TensorType((x.shape[0], x.shape[1] * prod(kernel), blocks), x.dtype)


def _check_columns(x: TensorType) -> None:
    if x.dtype.kind not in "fb":
        raise DTypeError(f"not defined for {x.dtype.name}; use x.float()")


def _blocks(size: Ints, kernel: Ints, dilation: Ints, padding: Ints, stride: Ints) -> int:
    for name, values, least in (("kernel_size", kernel, 1), ("dilation", dilation, 1), ("padding", padding, 0)):
        _spatial(name, values, 2, least)
    _spatial("stride", stride, 2, 1)
    _spatial("size", size, 2, 1)
    check_span(kernel, dilation)
    counts = tuple(map(window_size, size, kernel, stride, padding, dilation))
    if min(counts) < 1:
        raise ShapeError(f"the kernel {shown(kernel)} is larger than the padded image {shown(size)}")
    return prod(counts)


def _images(x: TensorType, *, size: Ints, kernel: Ints, dilation: Ints, padding: Ints, stride: Ints) -> TensorType:
    _check_columns(x)
    blocks = _blocks(size, kernel, dilation, padding, stride)
    if x.ndim != 3 or x.shape[1] % prod(kernel) or not x.shape[1] or x.shape[2] != blocks:
        raise ShapeError(f"needs columns of channels × {prod(kernel)} for {blocks} blocks")
    return TensorType((x.shape[0], x.shape[1] // prod(kernel), *size), x.dtype)


def _im2col(np: Any, x: Any, *, size: Ints, kernel: Ints, dilation: Ints, padding: Ints, stride: Ints) -> Any:
    counts = tuple(map(window_size, size, kernel, stride, padding, dilation))
    source = padded(np, x, padding)
    parts = [source[slices] for _, slices in seen(kernel, counts, stride, dilation)]
    return np.stack(parts, 2).reshape(x.shape[0], x.shape[1] * prod(kernel), prod(counts))


def _col2im(np: Any, x: Any, *, size: Ints, kernel: Ints, dilation: Ints, padding: Ints, stride: Ints) -> Any:
    counts = tuple(map(window_size, size, kernel, stride, padding, dilation))
    channels = x.shape[1] // prod(kernel)
    result = np.zeros((x.shape[0], channels, *(n + 2 * p for n, p in zip(size, padding, strict=True))), x.dtype)
    parts = x.reshape(x.shape[0], channels, prod(kernel), *counts)
    for i, (_, slices) in enumerate(seen(kernel, counts, stride, dilation)):
        result[slices] += parts[:, :, i]
    return np.ascontiguousarray(cropped(result, padding))


op(
    "im2col",
    operands="t",
    infer=_columns,
    split=columns,
    vjp=(lambda g, _y, _x, **how: one("col2im", g, **how),),
    torch=lambda torch, x, *, size, kernel, dilation, padding, stride: torch.ops.aten.im2col(
        x, kernel, dilation, padding, stride
    ),
    kernel=_im2col,
)

op(
    "col2im",
    operands="t",
    infer=_images,
    split=columns,
    vjp=(lambda g, _y, _x, **how: one("im2col", g, **how),),
    torch=lambda torch, x, *, size, kernel, dilation, padding, stride: torch.ops.aten.col2im(
        x, size, kernel, dilation, padding, stride
    ),
    kernel=_col2im,
)
