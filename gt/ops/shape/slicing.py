"""Basic indexing is the view `slice`; these ops make such views and write into views.

The starts of a slice are operands, not attributes, so a loop over rows is one signature. The result of a write is the
whole tensor, with the elements that it leaves untouched.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gt.errors import DimError, DTypeError, ShapeError
from gt.ops.elements import apart, element
from gt.ops.infer import assignable, check_imaginary, require_ints, shown, sizes
from gt.ops.op import EITHER, OPS, Attrs, NumberRule, op
from gt.ops.signature import Signature
from gt.ops.splits_index import put, put_back, putting, putting_back, sliced, slicing
from gt.types import INT, OperandType, Shape, TensorType

#: ("i",), ("s", length, step) or ("n",)
Item = tuple[Any, ...]

# -- basic indexing ------------------------------------------------------------------------


def _taken(items: tuple[Item, ...]) -> int:
    """The number of dims, and so of starts, that an index expression uses."""
    return sum(item[0] != "n" for item in items)


def _sliced(x: TensorType, *starts: OperandType, items: tuple[Item, ...]) -> TensorType:
    for item in items:
        if item not in (("i",), ("n",)) and (len(item) != 3 or item[0] != "s"):
            raise DimError(f"an index is ('i',), ('n',) or ('s', length, step), not {item}")
    if _taken(items) != x.ndim or len(starts) != x.ndim:
        raise DimError(f"{_taken(items)} indices with {len(starts)} starts for {x.ndim} dims")
    if any(start is not INT for start in starts):  # starts in a chain of views are checked only here
        raise DTypeError("the starts are ints")
    dims = iter(x.shape)
    # a size for a slice, 1 for a new axis, and none for an int
    pieces = [(1,) if item[0] == "n" else _piece(next(dims), *item) for item in items]
    return TensorType(tuple(n for piece in pieces for n in piece), x.dtype)


def _piece(size: int, kind: str, length: int = 1, step: int = 1) -> Shape:
    require_ints(length=length, step=step)
    if step < 1:
        raise ShapeError(f"step {step} must be at least 1; flip the dim to go backwards")
    if length < 0 or (length > 0 and (length - 1) * step >= size):
        raise DimError(f"{length} elements with step {step} are not within size {size}")
    return () if kind == "i" else (length,)


def _slice(xp: Any, x: Any, *starts: int, items: tuple[Item, ...]) -> Any:
    at = zip(starts, x.shape, strict=True)
    # without the ellipsis, numpy would give a scalar, which is not a view, for a single element
    return x[(*(None if item[0] == "n" else _part(*next(at), *item) for item in items), ...)]


def _part(start: int, size: int, kind: str, length: int = 1, step: int = 1) -> int | slice:
    """Raises where Python would shorten a slice: its length is part of the result's type."""
    last = start + (length - 1) * step if length else start - 1
    if start < 0 or last >= size:
        raise IndexError(f"{length} elements with step {step} from {start} on are not within size {size}")
    return start if kind == "i" else slice(start, start + length * step, step)


def _max_start(size: int, kind: str, length: int = 1, step: int = 1) -> int:
    """The largest start that `_part` accepts."""
    return size - 1 - (length - 1) * step if length else size


def _slice_back(needs: Any, g: Any, _y: Any, _x: Any, *starts: int, items: tuple[Item, ...]) -> list[Any]:
    chain = (("slice", (("items", items),)),)
    return [g._op("view_backward", *starts, chain=chain, shape=tuple(_x.shape)), *(None,) * len(starts)]


# -- writing into views --------------------------------------------------------------------

#: ((view op's name, its attributes), …): the steps from a base to its view
Chain = tuple[tuple[str, Attrs], ...]


def viewed(base: Any, starts: tuple[Any, ...], chain: Chain, step: Any) -> Any:
    """Applies every op of the chain to the base; each uses the starts it needs."""
    for name, attrs in chain:
        arguments = dict(attrs)
        count = _taken(arguments["items"]) if "items" in arguments else 0
        base, starts = step(OPS[name], base, starts[:count], arguments), starts[count:]
    if starts:
        raise DimError(f"{len(starts)} starts too many for the chain of views")
    return base


def max_starts(base: TensorType, chain: Chain) -> tuple[int, ...]:
    """The largest valid value of each start in a chain of views."""
    limits: list[int] = []

    def step(via: Any, x: TensorType, starts: tuple[OperandType, ...], attrs: dict[str, Any]) -> Any:
        if starts:
            taken = [item for item in attrs["items"] if item[0] != "n"]
            limits.extend(_max_start(n, *item) for n, item in zip(x.shape, taken, strict=True))
        return via.infer(x, *starts, **attrs)

    items = [arguments["items"] for arguments in (dict(attrs) for _, attrs in chain) if "items" in arguments]
    viewed(base, (INT,) * sum(map(_taken, items)), chain, step)
    return tuple(limits)


def _view_type(via: Any, x: TensorType, starts: tuple[OperandType, ...], attrs: dict[str, Any]) -> TensorType:
    result = via.infer(x, *starts, **attrs)
    if not via.view or isinstance(result, tuple):
        raise ShapeError(f"{via.name} does not make one view")
    if result.nbytes > x.nbytes or (
        via.name == "unfold" and attrs["step"] < attrs["size"] and result.shape[attrs["dim"]] > 1
    ):
        raise ShapeError(f"{via.name} shows elements more than once; write into a clone")
    return TensorType(result.shape, result.dtype)


def _put(base: TensorType, value: OperandType, *starts: OperandType, chain: Chain) -> TensorType:
    view = viewed(base, starts, chain, _view_type)
    assignable(value, view.shape)
    check_imaginary(value, view)
    return base


def fitting(value: Any, ndim: int) -> Any:
    """The value without leading sizes of 1, which torch ignores in an assignment."""
    return value.reshape(value.shape[value.ndim - ndim :]) if value.ndim > ndim else value


def _put_torch(torch: Any, base: Any, value: Any, *starts: int, chain: Chain) -> Any:
    whole = base if base.is_contiguous() else base.contiguous()
    view = viewed(whole, starts, chain, lambda via, x, at, attrs: (via.torch or via.kernel)(torch, x, *at, **attrs))
    if view.numel() and view.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr():
        raise RuntimeError(f"put_view: {shown(base.shape)} has no view through {chain}; write into a reshape's base")
    if isinstance(value, torch.Tensor):
        view.copy_(fitting(apart(value, whole), view.ndim))
    else:
        view.fill_(value)
    return base if whole is base else base.copy_(whole)


def _put_numpy(np: Any, base: Any, value: Any, *starts: int, chain: Chain) -> Any:
    whole = np.array(base, order="C")
    view = viewed(whole, starts, chain, lambda via, x, at, attrs: (via.numpy or via.kernel)(np, x, *at, **attrs))
    if view.size and not np.may_share_memory(view, whole):
        raise RuntimeError(f"put_view: {shown(base.shape)} has no view through {chain}; write into a reshape's base")
    view[...] = filling(np, value, view.ndim, view.dtype, element)
    return whole


def filling(np: Any, value: Any, ndim: int, dtype: Any, convert: Any) -> Any:
    """The value to assign to this many dims of a numpy array."""
    return fitting(value, ndim).astype(dtype) if isinstance(value, np.ndarray) else convert(np, value, dtype)


def assigned(g: Any, value: Any) -> Any:
    """The gradient of an assigned value, with the leading sizes of 1 that were ignored."""
    extra = value.ndim - g.ndim
    return g.reshape((1,) * extra + tuple(g.shape)) if extra > 0 else g


def _through(g: Any, starts: tuple[int, ...], chain: Chain) -> Any:
    return viewed(g, starts, chain, lambda via, x, at, attrs: x._op(via.name, *at, **attrs))


def _put_back(needs: Any, g: Any, _y: Any, _base: Any, _value: Any, *starts: int, chain: Chain) -> list[Any]:
    return [
        g._op("put_view", 0, *starts, chain=chain) if needs[0] else None,
        assigned(_through(g, starts, chain), _value) if needs[1] else None,
        *(None,) * len(starts),
    ]


def _shown_in(g: TensorType, *starts: OperandType, chain: Chain, shape: Shape) -> TensorType:
    """Zeros of this shape, with g in the view that the chain gives."""
    result = TensorType(sizes(shape), g.dtype)
    seen = viewed(result, starts, chain, _view_type).shape
    if seen != g.shape:
        raise ShapeError(f"{shown(g.shape)} is not the view's shape {shown(seen)}")
    return result


# -- starts in memory ----------------------------------------------------------------------


def _slice_in_memory(signature: Signature, device: Any) -> Any:
    items = dict(signature.attrs)["items"]
    return lambda x, *starts: _select_at(x, starts, items)


def _select_at(x: Any, starts: tuple[Any, ...], items: tuple[Item, ...]) -> Any:
    """A copy of the elements: there is no view whose start is in memory."""
    import torch

    at, dim, shape = iter(starts), 0, []
    for kind, *rest in items:
        if kind == "n":
            shape.append(1)
            continue
        (length, step), start = rest or (1, 1), next(at)
        if isinstance(start, torch.Tensor):
            x = torch.index_select(x, dim, torch.arange(0, length * step, step, device=x.device) + start)
        else:
            x = x[(slice(None),) * dim + (slice(start, start + length * step, step),)]
        dim += 1
        shape += [length] if kind == "s" else []
    return x.reshape(shape)


def _put_in_memory(signature: Signature, device: Any) -> Any:
    chain = dict(signature.attrs)["chain"]

    def run(base: Any, value: Any, *starts: Any) -> Any:
        import torch

        in_place = signature.into and base.is_contiguous()
        whole = base if in_place else base.clone(memory_format=torch.contiguous_format)
        _write_elements(whole, value, starts, chain)
        return whole if whole is base or not signature.into else base.copy_(whole)

    return run


def _put_back_in_memory(signature: Signature, device: Any) -> Any:
    chain, shape = (dict(signature.attrs)[k] for k in ("chain", "shape"))
    return lambda g, *starts: _write_elements(g.new_zeros(shape), g, starts, chain)


def _write_elements(whole: Any, value: Any, starts: tuple[Any, ...], chain: Chain) -> Any:
    """Writes element by element: the same views, of the positions in ``whole``, say where."""
    import torch

    def step(via: Any, x: Any, at: tuple[Any, ...], attrs: dict[str, Any]) -> Any:
        return _select_at(x, at, **attrs) if at else (via.torch or via.kernel)(torch, x, **attrs)

    places = viewed(torch.arange(whole.numel(), device=whole.device).view(whole.shape), starts, chain, step)
    if isinstance(value, torch.Tensor):
        value = fitting(value.to(whole.dtype), places.ndim).expand(places.shape).reshape(-1)
    else:
        value = whole.new_full((), value)
    torch.ops.aten.index_put_(whole.view(-1), [places.reshape(-1)], value)
    return whole


def _check_starts(signature: Signature) -> Callable[[tuple[Any, ...]], None]:
    """Kernels that read starts from memory do not check them, so this does, before they are written there."""
    attrs, base = dict(signature.attrs), signature.ins[0]
    assert isinstance(base, TensorType)
    if "items" in attrs:
        limits = max_starts(base, ((signature.op.name, signature.attrs),))
    else:
        limits = max_starts(TensorType(attrs.get("shape", base.shape), base.dtype), attrs["chain"])

    def check(numbers: tuple[Any, ...]) -> None:
        starts = numbers[len(numbers) - len(limits) :]
        for start, limit in zip(starts, limits, strict=True):
            if not 0 <= start <= limit:
                raise IndexError(f"a slice starts at {start}; valid starts are 0 to {limit}")

    return check


# -- the ops -------------------------------------------------------------------------------

op(
    "slice",
    complex="rule",
    operands="ti*",
    infer=_sliced,
    split=slicing,
    local=sliced,
    view=True,
    vjp=_slice_back,
    kernel=_slice,
    varying=NumberRule(run=_slice_in_memory, check=_check_starts),
)

op(
    "put_view",
    complex="rule",
    operands=f"t{EITHER}i*",
    infer=_put,
    split=putting,
    local=put,
    vjp=_put_back,
    torch=lambda torch, base, *rest, chain: _put_torch(
        torch, base.clone(memory_format=torch.contiguous_format), *rest, chain=chain
    ),
    kernel=_put_numpy,
    inplace=_put_torch,
    varying=NumberRule(run=_put_in_memory, check=_check_starts),
)

op(
    "view_backward",
    complex="rule",
    operands="ti*",
    varying=NumberRule(run=_put_back_in_memory, check=_check_starts),
    infer=_shown_in,
    split=putting_back,
    local=put_back,
    vjp=lambda needs, g, _y, _x, *starts, chain, shape: [_through(g, starts, chain), *(None,) * len(starts)],
    torch=lambda torch, g, *starts, chain, shape: _put_torch(torch, g.new_zeros(shape), g, *starts, chain=chain),
    kernel=lambda np, g, *starts, chain, shape: _put_numpy(np, np.zeros(shape, dtype=g.dtype), g, *starts, chain=chain),
)
