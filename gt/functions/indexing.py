"""``x[…]`` and ``x[…] = v``, as torch has them.

Ints, slices, None and ``...`` are applied first, as one `slice`, which is a view. Tensors select a copy from it.

Reading with a mask gives as many elements as the mask has true values, so it waits for that number. Writing does not
wait if the mask covers the first dims and is the only tensor. A 0-d integer tensor selects like an int, but its value
is not read, so the result is a copy where torch gives a view.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from operator import index as as_int
from typing import Any, NamedTuple

from gt.client.tensor import foreign
from gt.client.tensor.arguments import cast, operand, operands, refuse, require_tensor, upload_array
from gt.client.tensor.emit import call, call_into, put, view_of
from gt.client.tensor.strides import SLICE, VIEW
from gt.client.tensor.tensor import Tensor, ViewStep
from gt.errors import DimError, DTypeError, ShapeError
from gt.functions import views
from gt.functions.creation import zeros
from gt.functions.reduce import count_nonzero
from gt.functions.views import select
from gt.ops import OPS
from gt.ops.infer import broadcast_shapes
from gt.types import Shape, bool_, int64, uint8

__all__ = ["argwhere", "masked_scatter", "masked_select", "nonzero"]

INDEX, INDEX_PUT, NONZERO = OPS["index"], OPS["index_put"], OPS["nonzero"]
MASKED_SELECT, MASKED_PUT, MASKED_SCATTER = OPS["masked_select"], OPS["masked_put"], OPS["masked_scatter"]

Item = tuple[Any, ...]


class Plan(NamedTuple):
    """An index expression in two steps: a `slice`, and tensors that select from it."""

    #: for each dim: ("i",) an int, ("s", length, step) a slice, ("n",) a new dim; the attribute of the op `slice`
    items: tuple[Item, ...]
    #: where each int or slice starts
    starts: tuple[int, ...]
    #: the slice leaves the tensor as it is
    whole: bool
    #: (dim after the slice, the tensor that selects there); a mask covers as many dims as it has
    picks: tuple[tuple[int, Tensor], ...]


# -- reading -------------------------------------------------------------------------------


def getitem(x: Tensor, index: Any) -> Tensor:
    if type(index) is int and x._type.ndim:  # the most common case, in loops over rows
        return view_of(x, *_row(x, index))
    plan = parse(x, index)
    if not plan.picks:
        return _basic(x, plan)
    base = x if plan.whole else call(SLICE, (x, *plan.starts), (("items", plan.items),))
    return _pick(base, plan.picks)


def _row(x: Tensor, index: int) -> ViewStep:
    """The view step from x to ``x[index]``."""
    shape = x._type.shape
    start = _bounded(x, index, 0, index) % shape[0]
    return SLICE, (("items", _row_items(shape)),), (start, *(0,) * (len(shape) - 1))


@lru_cache(maxsize=1024)
def _row_items(shape: Shape) -> tuple[Item, ...]:
    return ("i",), *(("s", n, 1) for n in shape[1:])


def _basic(x: Tensor, plan: Plan) -> Tensor:
    if plan.whole:
        return view_of(x, VIEW, (("shape", x._type.shape),))
    return view_of(x, SLICE, (("items", plan.items),), plan.starts)


def _pick(x: Tensor, picks: tuple[tuple[int, Tensor], ...]) -> Tensor:
    if _is_leading_mask(picks):
        mask = picks[0][1]
        return call(MASKED_SELECT, (x, mask), (("n", count(mask)),))
    single = tuple((d, i) for d, i in picks if not i._type.ndim)
    if single and len(single) < len(picks):
        # a 0-d integer is a select: it goes first, and does not count when neighbouring dims are determined
        x = call(INDEX, (x, *(i for _, i in single)), (("dims", tuple(d for d, _ in single)),))
        gone = [d for d, _ in single]
        picks = tuple((d - sum(g < d for g in gone), i) for d, i in picks if i._type.ndim)
    dims, indices = _positions(picks)
    return call(INDEX, (x, *indices), (("dims", dims),))


def _is_leading_mask(picks: tuple[tuple[int, Tensor], ...]) -> bool:
    return len(picks) == 1 and picks[0][0] == 0 and picks[0][1]._type.dtype is bool_


def _positions(picks: tuple[tuple[int, Tensor], ...]) -> tuple[tuple[int, ...], tuple[Tensor, ...]]:
    """Masks as the positions of their true values, one tensor per dim."""
    dims: list[int] = []
    indices: list[Tensor] = []
    for dim, picked in picks:
        if picked._type.dtype is not bool_:
            dims.append(dim)
            indices.append(picked)
            continue
        rows = call(NONZERO, (picked,), (("n", count(picked)),))
        for d in range(picked._type.ndim):
            dims.append(dim + d)
            indices.append(select(rows, 1, d))
    return tuple(dims), tuple(indices)


# -- writing -------------------------------------------------------------------------------


def setitem(x: Tensor, index: Any, value: Any) -> None:
    if type(index) is int and x._type.ndim:
        put(x, (_row(x, index),), _value(x, value))
        return
    plan = parse(x, index)
    value = _value(x, value)
    if not plan.picks:
        step: tuple[ViewStep, ...] = () if plan.whole else ((SLICE, (("items", plan.items),), plan.starts),)
        put(x, step, value)
        return
    target = x if plan.whole else _basic(x, plan)
    if _is_leading_mask(plan.picks):
        call_into(MASKED_PUT, target, (plan.picks[0][1], value))
        return
    picks = plan.picks
    if {bool(i._type.ndim) for _, i in picks} == {False, True}:
        # 0-d integers among others: which dims are neighbours depends on their values being ints
        target, picks = _selected(target, picks)
    dims, indices = _positions(picks)
    call_into(INDEX_PUT, target, (value, *indices), (("dims", dims), ("accumulate", False)))


def _selected(x: Tensor, picks: tuple[tuple[int, Tensor], ...]) -> tuple[Tensor, tuple[tuple[int, Tensor], ...]]:
    """The 0-d integers among the tensors, read and used as ints."""
    kept: list[tuple[int, Tensor]] = []
    for gone, (dim, picked) in enumerate(sorted(picks, key=lambda p: (p[1]._type.ndim > 0, p[0]))):
        if not picked._type.ndim:
            x = select(x, dim - gone, int(picked.item()))
        else:
            kept.append((dim - sum(d < dim for d, i in picks if not i._type.ndim), picked))
    return x, tuple(kept)


def _value(x: Tensor, value: Any) -> Any:
    result = operand(value, x)
    if result is NotImplemented:
        raise DTypeError(f"{x._type}[…] = …: cannot assign a {type(value).__name__}; make a tensor of it")
    return result


def positions(indices: Any) -> tuple[tuple[int, ...], tuple[Tensor, ...]]:
    """The dims and tensors of the tuple for ``index_put``, which has None for a whole dim."""
    picks: list[tuple[int, Tensor]] = []
    dim = 0
    for index in indices:
        if index is not None:
            picked = _selector(index)
            picks.append((dim, picked))
            dim += picked._type.ndim if picked._type.dtype is bool_ else 1
        else:
            dim += 1
    return _positions(tuple(picks))


# -- understanding an index expression -----------------------------------------------------


def parse(x: Tensor, index: Any) -> Plan:
    parts = [_part(x, index, part) for part in (index if isinstance(index, tuple) else (index,))]
    taken = sum(map(_dims_taken, parts))
    shape = x._type.shape
    if taken > len(shape):
        hint = "; use item() for its number" if not shape else ""
        raise DimError(f"{_shown(x, index)}: {taken} indices for {len(shape)} dims{hint}")
    items: list[Item] = []
    starts: list[int] = []
    picks: list[tuple[int, Any]] = []
    dim = result = 0
    for part in _without_ellipsis(parts, len(shape) - taken):
        if type(part) is slice:
            start, length, step = _extent(x, index, part, shape[dim])
            items.append(("s", length, step))
            starts.append(start)
            dim += 1
            result += 1
            continue
        for kind, start, pick in _steps(x, index, part, dim):
            items.append(kind)
            if kind[0] != "n":
                starts.append(start)
                dim += 1
            if pick is not None:
                picks.append((result, pick))
            result += kind[0] != "i"
    whole = len(items) == len(shape) and all(item == ("s", n, 1) for item, n in zip(items, shape, strict=True))
    # nothing is sent before the whole expression is parsed
    return Plan(tuple(items), tuple(starts), whole, tuple((d, _selector(pick)) for d, pick in picks))


def _part(x: Tensor, index: Any, part: Any) -> Any:
    """One part of the expression as an int, a bool, a slice, None, Ellipsis or a tensor."""
    if type(part) is int or part is None or part is Ellipsis or isinstance(part, bool | slice):
        return part
    if isinstance(part, Tensor):
        return part
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(part, numpy.ndarray | numpy.bool_):
        return bool(part) if isinstance(part, numpy.bool_) else _check_kind(x, index, part)
    if isinstance(part, list | tuple | range):
        return _listed(x, index, part)
    if foreign.is_torch_tensor(part):
        raise DTypeError(f"{_shown(x, index)}: {foreign.non_tensor_text(part, '')}")
    try:
        return as_int(part)
    except TypeError:
        text = f"an index is an int, a slice, None, ..., a tensor or a list, not {type(part).__name__}"
        raise DimError(f"{_shown(x, index)}: {text}") from None


class _HostPositions(NamedTuple):
    """A list or array of positions, or a mask. Its values are in this process, so they can be checked here."""

    array: Any


def _check_kind(x: Tensor, index: Any, array: Any) -> Any:
    """An array as a part: an int or a bool if it has no dims."""
    if array.dtype.kind not in "biu":
        raise DTypeError(f"{_shown(x, index)}: an index holds integers or bools, not {array.dtype.name}")
    if not array.ndim:
        return bool(array) if array.dtype.kind == "b" else int(array)
    return _HostPositions(array)


def _listed(x: Tensor, index: Any, part: Any) -> Any:
    import numpy as np

    if part is index and any(isinstance(p, list | tuple | range | slice) or p is None or p is Ellipsis for p in part):
        text = "a list in lists may mean a tuple or a tensor; write x[tuple(…)] or x[gt.tensor(…)]"
        raise DimError(f"{_shown(x, index)}: {text}")
    if any(isinstance(p, Tensor) for p in part):
        from gt.functions.creation import tensor

        return tensor(list(part))
    try:
        array = np.array(part)
    except ValueError:
        raise DimError(f"{_shown(x, index)}: lists at the same depth must be equally long") from None
    return _check_kind(x, index, array.astype(np.int64) if not array.size else array)


def _mask_shape(part: Tensor | _HostPositions) -> Shape | None:
    """The shape of a mask; None for positions. A uint8 tensor is a mask, as in old versions of torch."""
    if isinstance(part, _HostPositions):
        return tuple(part.array.shape) if part.array.dtype.kind == "b" else None
    return part._type.shape if part._type.dtype in (bool_, uint8) else None


def _dims_taken(part: Any) -> int:
    if isinstance(part, _HostPositions | Tensor):
        mask = _mask_shape(part)
        return 1 if mask is None else len(mask)
    return int(isinstance(part, int | slice) and not isinstance(part, bool))


def _without_ellipsis(parts: list[Any], missing: int) -> list[Any]:
    """The parts with full slices for ``...``, or at the end if there is none; a second ``...`` is ignored."""
    at = next((i for i, part in enumerate(parts) if part is Ellipsis), len(parts))
    rest = [part for part in parts[at:] if part is not Ellipsis]
    return [*parts[:at], *[slice(None)] * missing, *rest]


def _steps(x: Tensor, index: Any, part: Any, dim: int) -> list[tuple[Item, int, Any]]:
    """(item of the slice, its start, the tensor that selects there) for each dim that a part covers."""
    if part is None:
        return [(("n",), 0, None)]
    if isinstance(part, int) and not isinstance(part, bool):
        return [(("i",), _bounded(x, index, dim, part) % x._type.shape[dim], None)]
    taken = _dims_taken(part)
    if not taken:  # a single bool: a new dim of size 1 or 0
        return [(("n",), 0, part)]
    _check(x, index, part, dim)
    sizes = x._type.shape[dim : dim + taken]
    return [(("s", n, 1), 0, None if d else part) for d, n in enumerate(sizes)]


def _bounded(x: Tensor, index: Any, dim: int, i: int) -> int:
    size = x._type.shape[dim]
    if not -size <= i < size:
        raise DimError(f"{_shown(x, index)}: index {i} is out of bounds for dim {dim} of size {size}")
    return i


def _extent(x: Tensor, index: Any, part: slice, size: int) -> tuple[int, int, int]:
    if part.start is None and part.stop is None and part.step is None:
        return 0, size, 1
    step = 1 if part.step is None else as_int(part.step)
    if step < 1:
        raise ShapeError(f"{_shown(x, index)}: step {step} must be at least 1; flip the dim to go backwards")
    start, stop, _ = part.indices(size)
    return start, len(range(start, stop, step)), step


def _check(x: Tensor, index: Any, part: Tensor | _HostPositions, dim: int) -> None:
    """Refuse what can be checked without a read from the workers."""
    mask, shape = _mask_shape(part), x._type.shape
    if mask is not None and mask != shape[dim : dim + len(mask)]:
        text = f"a mask of shape {list(mask)} does not cover {list(shape)} from dim {dim} on"
        raise DimError(f"{_shown(x, index)}: {text}")
    if mask is None and isinstance(part, _HostPositions) and part.array.size:
        _bounded(x, index, dim, int(part.array.min()))
        _bounded(x, index, dim, int(part.array.max()))


def _selector(part: Any) -> Tensor:
    """The tensor that selects: positions, or a mask."""
    if isinstance(part, bool):
        return zeros(int(part), dtype=int64)
    if isinstance(part, _HostPositions):
        return upload_array(part.array, bool_ if part.array.dtype.kind == "b" else int64)
    if _mask_shape(part) == ():
        return zeros(count(part), dtype=int64)
    return cast(part, bool_) if part._type.dtype is uint8 else part


def _shown(x: Tensor, index: Any) -> str:
    """The index expression as text for an error: ``float32[3,4][5, :]``."""
    parts = index if isinstance(index, tuple) else (index,)
    return f"{x._type}[{', '.join(map(_spelling, parts))}]"


def _spelling(part: Any) -> str:
    if isinstance(part, slice):
        ends = ("" if end is None else str(end) for end in (part.start, part.stop))
        return ":".join((*ends, *(() if part.step is None else (str(part.step),))))
    if isinstance(part, Tensor):
        return str(part._type)
    if part is Ellipsis:
        return "..."
    text = repr(part)
    return text if len(text) <= 40 else f"{text[:37]}..."


# -- masks ---------------------------------------------------------------------------------


def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    """The elements where the mask is true, as a 1-d tensor. Waits for the workers: the shape depends on values."""
    x, mask = require_tensor("masked_select", input), require_tensor("masked_select", mask)
    try:
        shape = broadcast_shapes(x._type.shape, mask._type.shape)
    except ShapeError as problem:
        raise refuse(ShapeError, str(problem), "masked_select", x, mask) from None
    x, mask = (t if t._type.shape == shape else views.expand(t, shape) for t in (x, mask))
    return call(MASKED_SELECT, (x, mask), (("n", count(mask)),))


def nonzero(input: Tensor, *, as_tuple: bool = False) -> Any:
    """The positions of the elements that are not zero. Waits for the workers: the shape depends on values."""
    x = require_tensor("nonzero", input)
    if as_tuple and not x._type.ndim:
        x = views.reshape(x, 1)
    positions = call(NONZERO, (x,), (("n", count(x)),))
    return views.unbind(positions, 1) if as_tuple else positions


def argwhere(input: Tensor) -> Any:
    """The positions of the elements that are not zero, as rows. Waits for the workers."""
    return nonzero(input)


def count(x: Tensor) -> int:
    """How many elements are not zero. Waits for the workers: a shape depends on it."""
    return int(count_nonzero(x).item())


def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """In a copy: write the elements of source where the mask is true."""
    x, mask = require_tensor("masked_scatter", input), require_tensor("masked_scatter", mask)
    x = views.expand(x, broadcast_shapes(x._type.shape, mask._type.shape))
    return call(MASKED_SCATTER, (x, *_masked_scatter(x, mask, source)))


def masked_scatter_(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    """In place: write the elements of source where the mask is true."""
    return call_into(MASKED_SCATTER, input, _masked_scatter(input, mask, source))


def _masked_scatter(x: Tensor, mask: Tensor, source: Tensor) -> tuple[Tensor, Tensor]:
    _, mask, source = operands("masked_scatter", x, mask, source)
    return views.expand(mask, x._type.shape), source
