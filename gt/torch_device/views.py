"""Views: other shapes, orders and parts of a tensor. Each is a view of GT's, and its strides are those of torch's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from gt.client.tensor.emit import call, make_view, view_of
from gt.client.tensor.strides import DIAGONAL, SLICE, VIEW, contiguous_strides, strides_of
from gt.client.tensor.tensor import Tensor, ViewStep
from gt.functions import views
from gt.functions.spectral import complex
from gt.ops import OPS, Attrs, Op
from gt.torch_device.backend import Kernel, like_sample, new_tensor, with_strides
from gt.torch_device.fallback import MissingKernel
from gt.torch_device.handles import TORCH_DTYPES, unwrap, wrap
from gt.torch_device.plans import MAX_PLANS

is_inference_mode_enabled = torch.is_inference_mode_enabled
VIEW_BACKWARD, UNFOLD_BACKWARD = OPS["view_backward"], OPS["unfold_backward"]


def outside_inference_mode(x: torch.Tensor) -> AbstractContextManager[Any]:
    """A context for the view of x. Under `torch.inference_mode`, too, the view of an ordinary tensor is one."""
    return torch.inference_mode(False) if is_inference_mode_enabled() and not x.is_inference() else nullcontext()


def wrap_view(y: Tensor, x: torch.Tensor) -> torch.Tensor:
    """A tensor of torch's for a view of x, with x's flags for conjugation and sign."""
    with outside_inference_mode(x):
        result = wrap(y)
    if x.is_conj() and y._type.dtype.kind == "c":
        result = torch._conj(result)
    return torch._neg_view(result) if x.is_neg() else result


#: What a view is for a type, strides and arguments: its last step, its dtype, and a sample of it if it has gaps.
_Plan = tuple[ViewStep, torch.dtype, torch.Tensor | None]


def viewing(function: Callable[..., Any], is_single: bool) -> Kernel:
    """A kernel that returns one view or several. The steps to them follow from the type and strides of its argument."""
    plans: dict[tuple[Any, ...], list[_Plan]] = {}

    def kernel(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        handle = unwrap(x)
        strides = None if handle._view is None else x.stride()
        key = (handle._type, strides, *[tuple(a) if type(a) is list else a for a in args])
        plan = plans.get(key)
        if plan is None or kwargs or x.is_neg() or is_inference_mode_enabled():
            views: Any = function(handle, *args, **kwargs)
            if not kwargs and (plan := _plan((views,) if is_single else views, handle)) is not None:
                if len(plans) >= MAX_PLANS:
                    plans.clear()
                plans[key] = plan
            return wrap_view(views, x) if is_single else [wrap_view(y, x) for y in views]
        if not is_single:  # one instruction for all, which the steps do not show
            return [_tensor(y, part) for y, part in zip(function(handle, *args), plan, strict=True)]
        op, attrs, scalars = step = plan[0][0]
        y = call(op, (handle, *scalars), attrs)
        make_view(y, handle, step)
        return _tensor(y, plan[0])

    return kernel


def _tensor(y: Tensor, plan: _Plan) -> torch.Tensor:
    _, dtype, sample = plan
    result = new_tensor(y._type.shape, dtype) if sample is None else like_sample(sample, dtype)
    result.untyped_storage()._gt = y  # type: ignore[attr-defined]
    return result


def _plan(views: Sequence[Tensor], x: Tensor) -> list[_Plan] | None:
    """How the views were made from x, if each is one step away."""
    before, plan = () if x._view is None else x._view.chain, []
    for y in views:
        if y._view is None or y._view.chain[:-1] != before or y._type.dtype.kind == "c":
            return None
        strides, shape, dtype = strides_of(y), y._type.shape, TORCH_DTYPES[y._type.dtype]
        has_gaps = strides != contiguous_strides(shape)
        with torch.inference_mode(False):
            sample = with_strides(new_tensor(shape, dtype), shape, strides) if has_gaps else None
        plan.append((y._view.chain[-1], dtype, sample))
    return plan


def reshaping(function: Callable[..., Tensor]) -> Kernel:
    """A kernel that makes its argument itself a view of what it was."""

    def kernel(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        x.data = wrap(function(unwrap(x), *args, **kwargs))
        return x

    return kernel


def _slice(x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Tensor:
    dim = views.dim_of("slice", x, dim)
    return x[(slice(None),) * dim + (slice(start, end, step),)]


def _squeeze(x: Tensor, dim: Any = None) -> Tensor:
    return views.squeeze(x, dim)


def _unsafe_view(x: Tensor, size: Any) -> Tensor:
    return views.reshape(x, tuple(size))


def _as_strided(x: Tensor, size: Any, stride: Any, storage_offset: int | None = None) -> Tensor:
    """Windows of windows of the elements in a row: each dim but the last is one step of `unfold`.

    The offset counts from the first element of x, because a view has a storage of its own.
    """
    offset, dims = storage_offset or 0, [*zip(size, stride, strict=True)]
    if (tuple(size), tuple(stride)) == (x._type.shape, strides_of(x)) and not offset:
        return view_of(x, VIEW, (("shape", x._type.shape),))
    if 0 in size:
        return views.reshape(x, -1)[:0].reshape(tuple(size))
    moving = [(n, s) for n, s in dims if n > 1 and s]
    spans = [1 + sum((n - 1) * s for n, s in moving[k:]) for k in range(len(moving) + 1)]
    if not views.is_contiguous(x) or offset + spans[0] > x._type.numel:
        asked = f"size={list(size)}, stride={list(stride)}, storage_offset={offset}"
        raise MissingKernel(f"aten::as_strided({x._type}, {asked}): it reaches beyond the elements of this tensor")
    y = views.reshape(x, -1)[offset : offset + spans[0]]
    for (_, step), span in zip(moving, spans[1:], strict=True):
        y = views.unfold(y, -1, span, step)
    y = views.reshape(views.select(y, -1, 0), tuple(n if s else 1 for n, s in dims))
    return views.expand(y, tuple(size))


def _reshape_alias(x: Tensor, size: Any, stride: Any) -> Tensor:
    return views.reshape(x, tuple(size))


def _unfold_backward(grad: Tensor, input_sizes: Any, dim: int, size: int, step: int) -> Tensor:
    shape = tuple(input_sizes)
    attrs = (("shape", shape), ("dim", dim % (len(shape) or 1)), ("size", size), ("step", step))
    return call(UNFOLD_BACKWARD, (grad,), attrs)


def _written_into_zeros(grad: Tensor, shape: Any, op: Op, attrs: Attrs, starts: tuple[int, ...] = ()) -> Tensor:
    """Zeros of the shape, with the gradient where the view is."""
    chain = ((op.name, attrs),)
    return call(VIEW_BACKWARD, (grad, *starts), (("chain", chain), ("shape", tuple(shape))))


def _items(shape: Any, dim: int, item: tuple[Any, ...], start: int) -> tuple[Attrs, tuple[int, ...]]:
    items = tuple(item if d == dim else ("s", n, 1) for d, n in enumerate(shape))
    return (("items", items),), tuple(start if d == dim else 0 for d in range(len(shape)))


def _select_backward(grad: Tensor, input_sizes: Any, dim: int, index: int) -> Tensor:
    dim %= len(input_sizes)
    attrs, starts = _items(input_sizes, dim, ("i",), index % input_sizes[dim])
    return _written_into_zeros(grad, input_sizes, SLICE, attrs, starts)


def _slice_backward(grad: Tensor, input_sizes: Any, dim: int, start: int, end: int, step: int) -> Tensor:
    dim %= len(input_sizes)
    positions = range(input_sizes[dim])[start:end:step]
    attrs, starts = _items(input_sizes, dim, ("s", len(positions), step), positions.start if positions else 0)
    return _written_into_zeros(grad, input_sizes, SLICE, attrs, starts)


def _diagonal_backward(grad: Tensor, input_sizes: Any, offset: int, dim1: int, dim2: int) -> Tensor:
    ndim = len(input_sizes)
    attrs = (("offset", offset), ("dim1", dim1 % ndim), ("dim2", dim2 % ndim))
    return _written_into_zeros(grad, input_sizes, DIAGONAL, attrs)


#: The gradients of views: each a value of its own.
GRADIENTS: dict[str, Callable[..., Tensor]] = {
    "select_backward": _select_backward,
    "slice_backward": _slice_backward,
    "diagonal_backward": _diagonal_backward,
    "unfold_backward": _unfold_backward,
}
ONE: dict[str, Callable[..., Tensor]] = {
    "_reshape_alias": _reshape_alias,
    "_unsafe_view": _unsafe_view,
    "as_strided": _as_strided,
    "diagonal": views.diagonal,
    "expand": views.expand,
    "permute": views.permute,
    "select.int": views.select,
    "slice.Tensor": _slice,
    "squeeze": _squeeze,
    "squeeze.dim": _squeeze,
    "squeeze.dims": _squeeze,
    "t": views.t,
    "transpose.int": views.transpose,
    "unfold": views.unfold,
    "unsqueeze": views.unsqueeze,
    "view": views.view,
    "view_as_complex": complex.view_as_complex,
    "view_as_real": complex.view_as_real,
}
SEVERAL: dict[str, Callable[..., Any]] = {
    "split.Tensor": views.split,
    "split_with_sizes": views.split,
    "unbind.int": views.unbind,
}
RESHAPING: dict[str, Callable[..., Tensor]] = {
    "as_strided_": _as_strided,
    "squeeze_": _squeeze,
    "squeeze_.dim": _squeeze,
    "squeeze_.dims": _squeeze,
    "t_": views.t,
    "transpose_": views.transpose,
    "unsqueeze_": views.unsqueeze,
}
#: overload -> kernel
KERNELS: dict[str, Kernel] = {
    **{name: viewing(function, is_single=True) for name, function in ONE.items()},
    **{name: viewing(function, is_single=False) for name, function in SEVERAL.items()},
    **{name: reshaping(function) for name, function in RESHAPING.items()},
}
