"""Each kind of collective as a plan: the backend call it makes, and how its result is built.

Four backend calls are enough, the same for gloo and NCCL: all-reduce, all-gather of equal blocks, all-to-all of any
blocks, broadcast. All but the first move bytes of any dtype. An array that is contiguous already (the outermost dim,
equal sizes) is used directly; any other is packed and unpacked.

A backend reduces only the dtypes that it has, and rounds at every step. So

    bool             is sent as uint8: sum (any) becomes max, prod (all) becomes min
    int16            is reduced as int32
    complex          is added as pairs of real numbers
    float16/bfloat16 are added as float32 and rounded once (with two members the one addition rounds once anyway);
                     NCCL adds them directly, because there fewer bytes matter more
    max, min         of floats compare integers that have the order of the floats, with NaN at the end: NaN wins, as in
                     torch

and `reduce_scatter` is an all-to-all of terms that are added at their destination. It moves the same number of bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

Tensor = torch.Tensor
Backend = Any  # a ProcessGroupGloo or ProcessGroupNCCL; torch has no types for them

HALF_DTYPES = (torch.float16, torch.bfloat16)
#: the integers a float's bits are compared as
KEYS = {torch.float32: torch.int32, torch.float64: torch.int64}
REDUCE: dict[str, Any] = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}
#: the reductions that compare, and the integer that stands for NaN
NAN_AT: dict[str, Callable[[torch.dtype], int]] = {
    "max": lambda d: torch.iinfo(d).max,
    "min": lambda d: torch.iinfo(d).min,
}
#: reduction of bool -> the same reduction of uint8
LOGIC = {"sum": "max", "prod": "min", "max": "max", "min": "min"}
#: terms along dim 0 -> their combination; torch adds float16 and bfloat16 in float32
COMBINE: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda t: t.sum(0, dtype=t.dtype),
    "prod": lambda t: (t.float() if t.dtype in HALF_DTYPES else t).prod(0, dtype=_wide_dtype(t.dtype)).to(t.dtype),
    "max": lambda t: t.amax(0),
    "min": lambda t: t.amin(0),
}


@dataclass(slots=True)
class CollectiveCall:
    """One member's arguments of a collective."""

    array: Tensor | None
    options: dict[str, Any]
    rank: int
    size: int
    #: (shape, dtype) -> memory that the backend can read and write
    empty: Callable[[Sequence[int], torch.dtype], Tensor]
    #: whether sums of float16 and bfloat16 are rounded only once, for twice the bytes
    exact: bool = True
    #: a number that travels with the value of a `NOTED` kind, over gloo
    note: int = 0
    #: counts the collectives of the group, the same on all members
    number: int = 0

    @property
    def operand(self) -> Tensor:
        assert self.array is not None
        return self.array


class CollectivePlan(NamedTuple):
    #: starts the collective; None if there is nothing to move
    issue: Callable[[Backend], Any] | None
    #: builds the result; called once the collective is complete
    finish: Callable[[], Tensor | None]
    #: the largest note of the members that had the value; None if the notes are not sent with it
    note: Callable[[], int] | None = None


# -- the kinds -------------------------------------------------------------------------------


def all_reduce(call: CollectiveCall) -> CollectivePlan:
    operand = call.operand
    x, op, decode = _encode(operand, call.options["op"], call.exact and call.size > 2)
    if not x.is_contiguous() or (x.data_ptr() == operand.data_ptr() and not call.options.get("overwrite")):
        x = call.empty(x.shape, x.dtype).copy_(x)
    options = dist.AllreduceOptions()
    options.reduceOp = REDUCE[op]
    return CollectivePlan(
        _issue_unless(x.numel() == 0, lambda backend: backend.allreduce([x], options)), lambda: decode(x)
    )


def all_gather(call: CollectiveCall) -> CollectivePlan:
    x, dim, sizes = call.operand.contiguous(), call.options["dim"], call.options["sizes"]
    shapes = [_with_size(x.shape, dim, n) for n in sizes]
    out = call.empty((sum(map(prod, shapes)),), x.dtype)
    if len(set(sizes)) == 1:
        issue = lambda backend: backend._allgather_base(_bytes(out), _bytes(x))
    else:
        copies, counts = _bytes(x).repeat(call.size), _nbytes(shapes, x.dtype)
        issue = lambda backend: backend.alltoall_base(_bytes(out), copies, counts, [counts[call.rank]] * call.size)
    pieces = call.options.get("interleave", 1)
    finish = lambda: swap_pieces(_join_blocks(out, shapes, dim), dim, call.size, pieces)
    return CollectivePlan(_issue_unless(out.numel() == 0, issue), finish)


def reduce_scatter(call: CollectiveCall) -> CollectivePlan:
    dim, sizes = call.options["dim"], call.options["sizes"]
    x = swap_pieces(call.operand, dim, call.options.get("interleave", 1), call.size)
    packed, counts = _cut_blocks(x, dim, sizes, call)
    block_shape = _with_size(x.shape, dim, sizes[call.rank])
    terms = call.empty((call.size, *block_shape), x.dtype)
    received = [counts[call.rank]] * call.size
    issue = lambda backend: backend.alltoall_base(_bytes(terms), _bytes(packed), received, counts)
    return CollectivePlan(_issue_unless(x.numel() == 0, issue), lambda: _combine(terms, call.options["op"]))


def all_to_all(call: CollectiveCall) -> CollectivePlan:
    x, join, cut, cuts = call.operand, call.options["join"], call.options["cut"], call.options["cut_sizes"]
    packed, counts = _cut_blocks(x, cut, cuts, call)
    shapes = [_with_size(_with_size(x.shape, cut, cuts[call.rank]), join, n) for n in call.options["join_sizes"]]
    out = call.empty((sum(map(prod, shapes)),), x.dtype)
    issue = lambda backend: backend.alltoall_base(_bytes(out), _bytes(packed), _nbytes(shapes, x.dtype), counts)
    return CollectivePlan(issue, lambda: _join_blocks(out, shapes, join))


def broadcast(call: CollectiveCall) -> CollectivePlan:
    options = dist.BroadcastOptions()
    options.rootRank = call.options["root"]
    out = call.empty(call.options["shape"], dtype_of(call.options["dtype"]))
    if call.array is not None:
        out.copy_(call.array)
    return CollectivePlan(
        _issue_unless(out.numel() == 0, lambda backend: backend.broadcast([_bytes(out)], options)), lambda: out
    )


def exchange(call: CollectiveCall) -> CollectivePlan:
    """With NCCL; with gloo see `gt.worker.collectives.noted`."""
    x, options, ranks = call.array, call.options, range(call.size)
    regions = [[region(call.operand, starts, n) for to, starts, n in options["sends"] if to == r] for r in ranks]
    shapes = [[n for source, _, n in options["receives"] if source == r] for r in ranks]
    dtype = x.dtype if x is not None else dtype_of(options["dtype"])
    packed, _ = pack([x for row in regions for x in row], call, dtype)
    received = call.empty((sum(prod(n) for row in shapes for n in row),), dtype)
    sent_bytes = [sum(part.numel() for part in row) * dtype.itemsize for row in regions]
    received_bytes = [sum(_nbytes(row, dtype)) for row in shapes]
    whole = tuple(options["shape"]) if options["shape"] is not None else None
    is_result = not options["keeps"] and [tuple(n) for row in shapes for n in row] == [whole]
    out = received.view(whole) if is_result and whole is not None else kept(call, whole, dtype)
    issue = lambda backend: backend.alltoall_base(_bytes(received), _bytes(packed), received_bytes, sent_bytes)
    return CollectivePlan(
        issue, lambda: out if is_result or out is None else _copy_received(received, out, options["receives"])
    )


KINDS: dict[str, Callable[[CollectiveCall], CollectivePlan]] = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "all_to_all": all_to_all,
    "broadcast": broadcast,
    "exchange": exchange,
}


# -- encoding and packing --------------------------------------------------------------------


def _encode(x: Tensor, op: str, widen: bool) -> tuple[Tensor, str, Callable[[Tensor], Tensor]]:
    """The tensor in a dtype that the backend can reduce, the reduction, and a function that decodes the result."""
    dtype = x.dtype
    if dtype is torch.bool:
        return x.view(torch.uint8), LOGIC[op], lambda t: t.view(torch.bool)
    if dtype.is_complex:  # only sums: they are those of the parts
        assert op == "sum", "complex numbers have no order, and products are not split"
        return torch.view_as_real(x), op, torch.view_as_complex
    if dtype is torch.int16:
        return x.int(), op, lambda t: t.to(dtype)
    if not dtype.is_floating_point:
        return x, op, lambda t: t
    if op not in NAN_AT:
        return (x.float() if dtype in HALF_DTYPES and widen else x), op, lambda t: t.to(dtype)
    wide = x.to(_wide_dtype(dtype))
    key = _order_preserving(wide.contiguous().view(KEYS[wide.dtype]))
    key.masked_fill_(wide.isnan(), NAN_AT[op](key.dtype))
    return key, op, lambda t: _order_preserving(t).view(wide.dtype).to(dtype)


def _order_preserving(bits: Tensor) -> Tensor:
    """Convert a float's bits to an integer that compares as the float does. Applied twice, it gives the bits again."""
    return bits ^ ((bits >> (bits.element_size() * 8 - 1)) & torch.iinfo(bits.dtype).max)


def _combine(terms: Tensor, op: str) -> Tensor:
    if terms.dtype is torch.bool:
        return COMBINE[LOGIC[op]](terms.view(torch.uint8)).view(torch.bool)
    return COMBINE[op](terms)


def _cut_blocks(x: Tensor, dim: int, sizes: Sequence[int], call: CollectiveCall) -> tuple[Tensor, list[int]]:
    """The blocks along ``dim``, one after the other, and the bytes of each."""
    if prod(x.shape[:dim]) == 1 and x.is_contiguous():
        row = prod(x.shape[dim + 1 :]) * x.element_size()
        return x, [n * row for n in sizes]
    return pack([x.narrow(dim, end - n, n) for n, end in zip(sizes, accumulate(sizes), strict=True)], call)


def pack(parts: list[Tensor], call: CollectiveCall, dtype: torch.dtype | None = None) -> tuple[Tensor, list[int]]:
    """The tensors one after the other in one flat tensor, and the bytes of each; a single one is not copied."""
    dtype = dtype or parts[0].dtype
    counts = [x.numel() * dtype.itemsize for x in parts]
    full = [x for x in parts if x.numel()]
    if len(full) == 1 and full[0].is_contiguous():
        return full[0], counts
    packed = call.empty((sum(counts) // dtype.itemsize,), dtype)
    for x, target in zip(full, split(packed, [x.numel() for x in full]), strict=True):
        target.view(x.shape).copy_(x)
    return packed, counts


def swap_pieces(x: Tensor, dim: int, outer: int, inner: int) -> Tensor:
    """The dim, seen as ``outer`` blocks of ``inner`` pieces, as ``inner`` blocks of ``outer`` pieces."""
    if outer == 1 or inner == 1:
        return x
    pieces = x.reshape(*x.shape[:dim], outer, inner, x.shape[dim] // (outer * inner), *x.shape[dim + 1 :])
    return pieces.transpose(dim, dim + 1).reshape(x.shape).contiguous()


def _join_blocks(flat: Tensor, shapes: list[tuple[int, ...]], dim: int) -> Tensor:
    """Join blocks, stored one after the other in ``flat``, along ``dim``."""
    whole = _with_size(shapes[0], dim, sum(shape[dim] for shape in shapes))
    if prod(whole[:dim]) == 1 or flat.numel() == 0:
        return flat.view(whole)
    blocks = split(flat, [prod(shape) for shape in shapes])
    return torch.cat([block.view(shape) for block, shape in zip(blocks, shapes, strict=True)], dim)


def kept(call: CollectiveCall, shape: Sequence[int] | None, dtype: torch.dtype) -> Tensor | None:
    """The result of an exchange, filled with the regions that stay on this rank."""
    if shape is None:
        return None
    out = call.empty(shape, dtype)
    for source, target, n in call.options["keeps"]:
        region(out, target, n).copy_(region(call.operand, source, n))
    return out


def _copy_received(flat: Tensor, out: Tensor, receives: Sequence[Any]) -> Tensor:
    """Copy the received regions, which are stored by rank and in order, to their positions in ``out``."""
    regions = sorted(receives, key=lambda row: row[0])
    blocks = split(flat, [prod(n) for _, _, n in regions])
    for block, (_, starts, n) in zip(blocks, regions, strict=True):
        region(out, starts, n).copy_(block.view(tuple(n)))
    return out


def region(x: Tensor, starts: Sequence[int], sizes: Sequence[int]) -> Tensor:
    return x[tuple(slice(start, start + n) for start, n in zip(starts, sizes, strict=True))]


def split(flat: Tensor, counts: list[int]) -> list[Tensor]:
    return [flat[end - n : end] for n, end in zip(counts, accumulate(counts), strict=True)]


def _issue_unless(empty: bool, issue: Callable[[Backend], Any]) -> Callable[[Backend], Any] | None:
    """None if there is nothing to move. All members decide alike, from the same sizes."""
    return None if empty else issue


def _bytes(x: Tensor) -> Tensor:
    # torch cannot view an empty tensor in a dtype of another size
    return x.view(-1).view(torch.uint8) if x.numel() else x.new_empty(0, dtype=torch.uint8)


def _nbytes(shapes: Sequence[Sequence[int]], dtype: torch.dtype) -> list[int]:
    return [prod(shape) * dtype.itemsize for shape in shapes]


def _with_size(shape: Sequence[int], dim: int, size: int) -> tuple[int, ...]:
    return (*shape[:dim], size, *shape[dim + 1 :])


def _wide_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in HALF_DTYPES else dtype


def dtype_of(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype
