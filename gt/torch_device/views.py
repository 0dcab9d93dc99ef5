"""Views: other shapes, orders and parts of a tensor. Each is a view of GT's, and its strides are those of torch's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import repeat
from typing import Any, NamedTuple

import torch

from gt.client.stream import scope, sites
from gt.client.tensor import emit
from gt.client.tensor.emit import ViewRecipe, call, view_of
from gt.client.tensor.strides import DIAGONAL, SLICE, VIEW, contiguous_strides, strides_of
from gt.client.tensor.tensor import Tensor, ViewStep, fresh
from gt.functions import views
from gt.functions.spectral import complex
from gt.ops import OPS, Attrs, Op
from gt.torch_device.backend import Kernel, like_sample, new_tensor, with_strides
from gt.torch_device.fallback import MissingKernel
from gt.torch_device.handles import TORCH_DTYPES, unwrap, wrap
from gt.torch_device.plans import MAX_PLANS
from gt.types import TensorType
from gt.wire.interrupts import deferred

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


class _Part(NamedTuple):
    """One view that a kernel returns."""

    type: TensorType
    #: the step from the argument to the view
    step: ViewStep
    dtype: torch.dtype
    #: a tensor with the strides of the view, if it has gaps
    sample: torch.Tensor | None


class ViewPlan(NamedTuple):
    """What a kernel emits, and the views it returns, for an argument of one type and strides."""

    code: int
    #: the words after the id of the argument
    numbers: tuple[int, ...]
    parts: tuple[_Part, ...]


def viewing(function: Callable[..., Any], is_single: bool) -> Kernel:
    """A kernel that returns one view or several. A plan skips the function when the call was seen before."""

    def kernel(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        handle = unwrap(x)
        view = handle._view
        if view is not None:
            view.refresh(handle)
        session = handle._cell.session
        if args and type(args[0]) is list:
            args = tuple([tuple(a) if type(a) is list else a for a in args])
        is_plain = view is None and handle._strides is None
        key = (function, handle._type, None if is_plain else x.stride(), *args)
        if scope.active:
            key = (*key, scope.signal())
        plan = session.signatures.plans.get(key)
        if (
            plan is None or kwargs or x.is_neg() or is_inference_mode_enabled()
            or emit.casting is not None or session.outbox.recorder is not None
        ):  # fmt: skip
            return _learn(function, is_single, key, x, args, kwargs)
        return _emit(plan, handle, is_single)

    return kernel


@deferred
def _emit(plan: ViewPlan, x: Tensor, is_single: bool) -> Any:
    """Emit the instruction of a plan; the views of x that it computes."""
    code, numbers, parts = plan
    outbox = x._cell.session.outbox
    if outbox.freed_late:
        outbox.free()
    if is_single:
        id = outbox.next_id()
        outbox.extend((code, sites.here(), id, x._cell.id, *numbers))
        result: Any = _view(id, x, parts[0])
    else:
        ids = [outbox.next_id() for _ in parts]
        outbox.extend((code, sites.here(), *ids, x._cell.id, *numbers))
        result = list(map(_view, ids, repeat(x), parts))
    if len(outbox.words) >= outbox.limit:
        outbox.full()
    return result


def _view(id: int, x: Tensor, part: _Part) -> torch.Tensor:
    """The tensor of torch's for a view of x whose value has this id."""
    type, step, dtype, sample = part
    y = fresh(id, x._cell.session, type)
    view = x._view
    y._view = ViewRecipe(x, (step,)) if view is None else ViewRecipe(view.base, (*view.chain, step))
    result = new_tensor(type.shape, dtype) if sample is None else like_sample(sample, dtype)
    result.untyped_storage()._gt = y  # type: ignore[attr-defined]
    return result


def _learn(
    function: Callable[..., Any], is_single: bool, key: tuple[Any, ...], x: torch.Tensor, args: Any, kwargs: Any
) -> Any:
    """Run the function, and keep a plan of what it did, if there can be one."""
    handle = unwrap(x)
    session = handle._cell.session
    outbox, plans = session.outbox, session.signatures.plans
    start, serial = len(outbox.words), outbox.serial
    returned: Any = function(handle, *args, **kwargs)
    views = (returned,) if is_single else tuple(returned)
    if not kwargs and outbox.serial == serial:
        plan = _plan(outbox.words[start:], views, handle)
        if plan is not None:
            if len(plans) >= MAX_PLANS:
                plans.clear()
            plans[key] = plan
    return wrap_view(returned, x) if is_single else [wrap_view(y, x) for y in views]


def _plan(words: list[Any], views: Sequence[Tensor], x: Tensor) -> ViewPlan | None:
    """The plan of a call that emitted one instruction, if each view is one step away from x."""
    signature = x._cell.session.signatures.by_code.get(words[0]) if words else None
    if signature is None or len(words) != signature.width or signature.offsets != (signature.start,):
        return None
    if words[2 : signature.start + 1] != [*[y._cell.id for y in views], x._cell.id]:
        return None
    before, parts = () if x._view is None else x._view.chain, []
    for y in views:
        if y._view is None or y._view.chain[:-1] != before or y._type.dtype.kind == "c":
            return None
        strides, shape, dtype = strides_of(y), y._type.shape, TORCH_DTYPES[y._type.dtype]
        has_gaps = strides != contiguous_strides(shape)
        with torch.inference_mode(False):
            sample = with_strides(new_tensor(shape, dtype), shape, strides) if has_gaps else None
        parts.append(_Part(y._type, y._view.chain[-1], dtype, sample))
    return ViewPlan(words[0], tuple(words[signature.start + 1 :]), tuple(parts))


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
