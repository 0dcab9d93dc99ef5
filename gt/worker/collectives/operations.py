"""Each kind of collective as a plan: what goes over the wire, and how the result is made of what came.

The wire has four calls, the same for gloo and NCCL: all-reduce, all-gather of equal blocks, all-to-all of any
blocks, broadcast. All but the first move bytes, whatever the dtype. Where what is sent or received is in one piece
already (the outermost dim, equal sizes), it is used as it lies; elsewhere it is packed and unpacked.

A reduction over the wire knows the dtypes that gloo and NCCL know, and rounds at every step, so

    bool             travels as uint8; any is max, all is min
    int16            is reduced as int32
    float16/bfloat16 are added as float32 and rounded once (with two members the one addition rounds once anyway);
                     NCCL adds them as it does for everybody, since there the bytes count
    max, min         of floats compare integers in the floats' order with NaN at its end: NaN wins, as in torch

and `reduce_scatter` is an all-to-all of terms, added at their destination: the bytes are the same.
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
Group = Any  # a ProcessGroupGloo or ProcessGroupNCCL; torch does not type them

HALVES = (torch.float16, torch.bfloat16)
#: the integers a float's bits are compared as
KEYS = {torch.float32: torch.int32, torch.float64: torch.int64}
REDUCE: dict[str, Any] = {
    "sum": dist.ReduceOp.SUM,
    "prod": dist.ReduceOp.PRODUCT,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}
#: the reductions that compare, and which end of the order NaN is put at
NAN_AT: dict[str, Callable[[torch.dtype], int]] = {
    "max": lambda d: torch.iinfo(d).max,
    "min": lambda d: torch.iinfo(d).min,
}
#: sum and prod of truth values
LOGIC = {"sum": "max", "prod": "min", "max": "max", "min": "min"}
#: terms along dim 0 to their combination; torch adds halves in float32 by itself
COMBINE: dict[str, Callable[[Tensor], Tensor]] = {
    "sum": lambda t: t.sum(0, dtype=t.dtype),
    "prod": lambda t: (t.float() if t.dtype in HALVES else t).prod(0, dtype=_wide(t.dtype)).to(t.dtype),
    "max": lambda t: t.amax(0),
    "min": lambda t: t.amin(0),
}


@dataclass(slots=True)
class Call:
    """One collective as one member sees it."""

    array: Tensor | None
    how: dict[str, Any]
    rank: int
    size: int
    #: (shape, dtype) -> memory on the device the wire reads and writes
    empty: Callable[[Sequence[int], torch.dtype], Tensor]
    #: must sums of halves be rounded once only, for twice the bytes?
    exact: bool = True

    @property
    def given(self) -> Tensor:
        assert self.array is not None
        return self.array


class Plan(NamedTuple):
    #: hands the collective to the group; None if there is nothing to move
    issue: Callable[[Group], Any] | None
    #: called once what was issued is complete
    finish: Callable[[], Tensor | None]


# -- the kinds -------------------------------------------------------------------------------


def all_reduce(call: Call) -> Plan:
    given = call.given
    x, op, decode = _encoded(given, call.how["op"], call.exact and call.size > 2)
    if not x.is_contiguous() or (x.data_ptr() == given.data_ptr() and not call.how.get("own")):
        x = call.empty(x.shape, x.dtype).copy_(x)
    options = dist.AllreduceOptions()
    options.reduceOp = REDUCE[op]
    return Plan(_unless(x.numel() == 0, lambda group: group.allreduce([x], options)), lambda: decode(x))


def all_gather(call: Call) -> Plan:
    x, dim, sizes = call.given.contiguous(), call.how["dim"], call.how["sizes"]
    shapes = [_with(x.shape, dim, n) for n in sizes]
    out = call.empty((sum(map(prod, shapes)),), x.dtype)
    if len(set(sizes)) == 1:
        issue = lambda group: group._allgather_base(_bytes(out), _bytes(x))
    else:
        copies, counts = _bytes(x).repeat(call.size), _nbytes(shapes, x.dtype)
        issue = lambda group: group.alltoall_base(_bytes(out), copies, counts, [counts[call.rank]] * call.size)
    return Plan(_unless(out.numel() == 0, issue), lambda: _joined(out, shapes, dim))


def reduce_scatter(call: Call) -> Plan:
    x, dim, sizes = call.given, call.how["dim"], call.how["sizes"]
    packed, counts = _cut(x, dim, sizes, call)
    own = _with(x.shape, dim, sizes[call.rank])
    terms = call.empty((call.size, *own), x.dtype)
    received = [counts[call.rank]] * call.size
    issue = lambda group: group.alltoall_base(_bytes(terms), _bytes(packed), received, counts)
    return Plan(_unless(x.numel() == 0, issue), lambda: _combined(terms, call.how["op"]))


def all_to_all(call: Call) -> Plan:
    x, join, cut, cuts = call.given, call.how["join"], call.how["cut"], call.how["cut_sizes"]
    packed, counts = _cut(x, cut, cuts, call)
    shapes = [_with(_with(x.shape, cut, cuts[call.rank]), join, n) for n in call.how["join_sizes"]]
    out = call.empty((sum(map(prod, shapes)),), x.dtype)
    issue = lambda group: group.alltoall_base(_bytes(out), _bytes(packed), _nbytes(shapes, x.dtype), counts)
    return Plan(issue, lambda: _joined(out, shapes, join))


def broadcast(call: Call) -> Plan:
    options = dist.BroadcastOptions()
    options.rootRank = call.how["root"]
    out = call.empty(call.how["shape"], _dtype(call.how["dtype"]))
    if call.array is not None:
        out.copy_(call.array)
    return Plan(_unless(out.numel() == 0, lambda group: group.broadcast([_bytes(out)], options)), lambda: out)


def exchange(call: Call) -> Plan:
    x, how, ranks = call.array, call.how, range(call.size)
    pieces = [[_region(call.given, starts, n) for to, starts, n in how["sends"] if to == r] for r in ranks]
    shapes = [[n for source, _, n in how["receives"] if source == r] for r in ranks]
    dtype = x.dtype if x is not None else _dtype(how["dtype"])
    packed, _ = _packed([piece for row in pieces for piece in row], call, dtype)
    came = call.empty((sum(prod(n) for row in shapes for n in row),), dtype)
    sent = [sum(piece.numel() for piece in row) * dtype.itemsize for row in pieces]
    received = [sum(_nbytes(row, dtype)) for row in shapes]
    whole = tuple(how["shape"]) if how["shape"] is not None else None
    at_once = not how["keeps"] and [tuple(n) for row in shapes for n in row] == [whole]
    out = came.view(whole) if at_once and whole is not None else _kept(call, whole, dtype)
    issue = lambda group: group.alltoall_base(_bytes(came), _bytes(packed), received, sent)
    return Plan(issue, lambda: out if at_once or out is None else _placed(came, out, how["receives"]))


KINDS: dict[str, Callable[[Call], Plan]] = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "reduce_scatter": reduce_scatter,
    "all_to_all": all_to_all,
    "broadcast": broadcast,
    "exchange": exchange,
}


# -- what they are made of -------------------------------------------------------------------


def _encoded(x: Tensor, op: str, widen: bool) -> tuple[Tensor, str, Callable[[Tensor], Tensor]]:
    """In a dtype the wire can reduce; with the reduction to ask for, and the way back."""
    dtype = x.dtype
    if dtype is torch.bool:
        return x.view(torch.uint8), LOGIC[op], lambda t: t.view(torch.bool)
    if dtype is torch.int16:
        return x.int(), op, lambda t: t.to(dtype)
    if not dtype.is_floating_point:
        return x, op, lambda t: t
    if op not in NAN_AT:
        return (x.float() if dtype in HALVES and widen else x), op, lambda t: t.to(dtype)
    wide = x.to(_wide(dtype))
    key = _ordered(wide.contiguous().view(KEYS[wide.dtype]))
    key.masked_fill_(wide.isnan(), NAN_AT[op](key.dtype))
    return key, op, lambda t: _ordered(t).view(wide.dtype).to(dtype)


def _ordered(bits: Tensor) -> Tensor:
    """Between a float's bits and an integer that compares as the float does; its own inverse."""
    return bits ^ ((bits >> (bits.element_size() * 8 - 1)) & torch.iinfo(bits.dtype).max)


def _combined(terms: Tensor, op: str) -> Tensor:
    if terms.dtype is torch.bool:
        return COMBINE[LOGIC[op]](terms.view(torch.uint8)).view(torch.bool)
    return COMBINE[op](terms)


def _cut(x: Tensor, dim: int, sizes: Sequence[int], call: Call) -> tuple[Tensor, list[int]]:
    """The blocks along ``dim`` one behind the other, and the bytes of each."""
    if prod(x.shape[:dim]) == 1 and x.is_contiguous():
        row = prod(x.shape[dim + 1 :]) * x.element_size()
        return x, [n * row for n in sizes]
    return _packed([x.narrow(dim, end - n, n) for n, end in zip(sizes, accumulate(sizes), strict=True)], call)


def _packed(pieces: list[Tensor], call: Call, dtype: torch.dtype | None = None) -> tuple[Tensor, list[int]]:
    """The pieces one behind the other, and the bytes of each; no copy if there is but one."""
    dtype = dtype or pieces[0].dtype
    counts = [piece.numel() * dtype.itemsize for piece in pieces]
    full = [piece for piece in pieces if piece.numel()]
    if len(full) == 1 and full[0].is_contiguous():
        return full[0], counts
    packed = call.empty((sum(counts) // dtype.itemsize,), dtype)
    for piece, place in zip(full, _split(packed, [p.numel() for p in full]), strict=True):
        place.view(piece.shape).copy_(piece)
    return packed, counts


def _joined(flat: Tensor, shapes: list[tuple[int, ...]], dim: int) -> Tensor:
    """Blocks that lie one behind the other, as one array cut along ``dim``."""
    whole = _with(shapes[0], dim, sum(shape[dim] for shape in shapes))
    if prod(whole[:dim]) == 1 or flat.numel() == 0:
        return flat.view(whole)
    blocks = _split(flat, [prod(shape) for shape in shapes])
    return torch.cat([block.view(shape) for block, shape in zip(blocks, shapes, strict=True)], dim)


def _kept(call: Call, shape: Sequence[int] | None, dtype: torch.dtype) -> Tensor | None:
    """The result of an exchange, so far with what was here already."""
    if shape is None:
        return None
    out = call.empty(shape, dtype)
    for source, target, n in call.how["keeps"]:
        _region(out, target, n).copy_(_region(call.given, source, n))
    return out


def _placed(came: Tensor, out: Tensor, receives: Sequence[Any]) -> Tensor:
    """The regions that came, by rank and in order, put where they belong."""
    regions = sorted(receives, key=lambda region: region[0])
    blocks = _split(came, [prod(n) for _, _, n in regions])
    for block, (_, starts, n) in zip(blocks, regions, strict=True):
        _region(out, starts, n).copy_(block.view(tuple(n)))
    return out


def _region(x: Tensor, starts: Sequence[int], sizes: Sequence[int]) -> Tensor:
    return x[tuple(slice(start, start + n) for start, n in zip(starts, sizes, strict=True))]


def _split(flat: Tensor, counts: list[int]) -> list[Tensor]:
    return [flat[end - n : end] for n, end in zip(counts, accumulate(counts), strict=True)]


def _unless(nothing: bool, issue: Callable[[Group], Any]) -> Callable[[Group], Any] | None:
    """Every member knows that there is nothing to move."""
    return None if nothing else issue


def _bytes(x: Tensor) -> Tensor:
    # torch does not see the same bytes in another dtype where there are none
    return x.view(-1).view(torch.uint8) if x.numel() else x.new_empty(0, dtype=torch.uint8)


def _nbytes(shapes: Sequence[Sequence[int]], dtype: torch.dtype) -> list[int]:
    return [prod(shape) * dtype.itemsize for shape in shapes]


def _with(shape: Sequence[int], dim: int, size: int) -> tuple[int, ...]:
    return (*shape[:dim], size, *shape[dim + 1 :])


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in HALVES else dtype


def _dtype(name: str) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, name)
    return dtype
