"""Ops by which each worker writes its own block of a tensor into a file, or reads its own block of a tensor in a file.

The values of a tensor are in row-major order, one after the other. So a block of it is a number of *runs*: ranges of
bytes that are contiguous both in the file and in the block. A block of rows is a single run. What a worker may open is
said in `gt.ops.system.files`.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Any

from gt.errors import ShapeError
from gt.ops.infer import require_ints
from gt.ops.infer import sizes as checked
from gt.ops.op import op
from gt.ops.split import Share, folding
from gt.ops.system.files import DONE, bytes_torch, open_saving, open_seen
from gt.types import OperandType, Shape, TensorType

#: Runs shorter than this are read together with what is between them, in pieces of `PIECE_BYTES`.
MIN_RUN_BYTES = 4096
PIECE_BYTES = 16 << 20


def _check_block(x: TensorType, starts: Shape, whole: Shape) -> None:
    if not x.ndim or not len(starts) == len(whole) == x.ndim:
        raise ShapeError(f"a start and a size of the whole for each of {x.ndim} dims, not {starts} and {whole}")
    for start in starts:
        require_ints(start=start)
    if any(s < 0 or s + n > size for s, n, size in zip(starts, x.shape, checked(whole), strict=True)):
        raise ShapeError(f"the block at {starts} of {x.shape} is not inside {whole}")


def _of_share(attrs: dict[str, Any], share: Share, number: int) -> dict[str, Any]:
    """The block of one worker."""
    return {"starts": share.ins_at[number], "whole": share.whole_ins[number].shape}


def runs(starts: Shape, sizes: Shape, whole: Shape, itemsize: int) -> Iterator[tuple[int, int, int]]:
    """(offset in the whole, offset in the block, length) of each run of a block, in bytes."""
    if not prod(sizes):
        return
    first = len(sizes)  # the dims from here on are in one run
    while first and (first == len(sizes) or sizes[first] == whole[first]):
        first -= 1
    length = prod(sizes[first:]) * itemsize
    strides = [prod(whole[d + 1 :]) * itemsize for d in range(len(whole))]
    start = sum(s * stride for s, stride in zip(starts, strides, strict=True))
    for number, at in enumerate(product(*map(range, sizes[:first]))):
        yield start + sum(i * stride for i, stride in zip(at, strides, strict=False)), number * length, length


# -- writing -------------------------------------------------------------------------------


def _saved(request: OperandType, x: TensorType, *, starts: Shape, whole: Shape) -> TensorType:
    _check_block(x, starts, whole)
    return DONE


def _save(request: Any, data: Any, sizes: Shape, itemsize: int, starts: Shape, whole: Shape) -> int:
    """Writes a block, whose bytes are these; returns their number."""
    import os

    file, fields = open_saving(request)
    view, total = memoryview(data), 0
    with file:
        for at, begin, length in runs(starts, sizes, whole, itemsize):
            done = 0
            while done < length:
                done += os.pwrite(file.fileno(), view[begin + done : begin + length], fields["offset"] + at + done)
            total += length
    return total


# The client calls fsync once for all of them: one host has one cache of a file.
op(
    "save_block",
    complex="rule",
    no_gradient="it reads or writes a file",
    whole="each worker writes its own block",
    operands="Bt",
    infer=_saved,
    effects=True,
    own_blocks=True,
    local=lambda attrs, share: _of_share(attrs, share, 0),
    torch=lambda torch, request, x, *, starts, whole: torch.tensor(
        _save(request, bytes_torch(torch, x), x.shape, x.element_size(), starts, whole)
    ),
    kernel=lambda np, request, x, *, starts, whole: np.asarray(
        _save(request, np.ascontiguousarray(x).reshape(-1).view("u1").data, x.shape, x.itemsize, starts, whole)
    ),
)


# -- reading -------------------------------------------------------------------------------


def _loaded(x: TensorType, request: OperandType, *, starts: Shape, whole: Shape) -> TensorType:
    _check_block(x, starts, whole)
    return x


def common_part(a: Shape, a_sizes: Shape, b: Shape, b_sizes: Shape) -> tuple[Shape, Shape] | None:
    """Where the common part of two blocks begins, and its sizes; None if there is none."""
    low = tuple(map(max, a, b))
    high = tuple(min(i + n, j + m) for i, n, j, m in zip(a, a_sizes, b, b_sizes, strict=True))
    if any(lo >= hi for lo, hi in zip(low, high, strict=True)):
        return None
    return low, tuple(hi - lo for lo, hi in zip(low, high, strict=True))


def _parts(request: Any, shape: Shape, itemsize: int, starts: Shape) -> Iterator[tuple[tuple[slice, ...], Shape, Any]]:
    """(where in the block, its sizes, a function that reads its bytes into a buffer) of the part of each chunk."""
    file, fields = open_seen(request)
    with file:
        for offset, chunk_at, chunk_sizes in fields["chunks"]:
            found = common_part(tuple(chunk_at), tuple(chunk_sizes), starts, tuple(shape))
            if found is None:
                continue
            at, sizes = found
            where = tuple(slice(a - s, a - s + n) for a, s, n in zip(at, starts, sizes, strict=True))
            inside = tuple(a - c for a, c in zip(at, chunk_at, strict=True))
            ranges = runs(inside, sizes, tuple(chunk_sizes), itemsize)
            yield where, sizes, lambda buffer, offset=offset, ranges=ranges: _read(file, offset, ranges, buffer)


def _read(file: Any, offset: int, ranges: Iterator[tuple[int, int, int]], buffer: memoryview) -> None:
    """Reads the runs of a part into a buffer of its size."""
    piece, piece_at = b"", 0
    for at, begin, length in ranges:
        at += offset
        if length >= MIN_RUN_BYTES or length == len(buffer):
            _read_exactly(file, at, buffer[begin : begin + length])
            continue
        if not piece_at <= at <= at + length <= piece_at + len(piece):
            file.seek(at)
            piece, piece_at = file.read(PIECE_BYTES), at
        if at + length > piece_at + len(piece):
            raise ValueError("the file is too short")
        buffer[begin : begin + length] = memoryview(piece)[at - piece_at : at - piece_at + length]


def _read_exactly(file: Any, at: int, buffer: memoryview) -> None:
    file.seek(at)
    done = 0
    while done < len(buffer):
        count = file.readinto(buffer[done:])
        if not count:
            raise ValueError("the file is too short")
        done += count


def _load_torch(torch: Any, x: Any, request: Any, *, starts: Shape, whole: Shape) -> Any:
    """Reads into x: directly into its memory where that has the order of the file."""
    for where, sizes, read in _parts(request, tuple(x.shape), x.element_size(), starts):
        part = x[where]
        # torch reports any single element as contiguous
        direct = part.is_contiguous() and part.numel() > 1 and not part.is_cuda and part.dtype is not torch.bool
        host = part if direct else torch.empty(sizes, dtype=part.dtype, pin_memory=part.is_cuda)
        read(host.reshape(-1).view(torch.uint8).numpy().data)
        if not direct:  # a bool that is neither 0 nor 1 would count as more than one
            part.copy_(host.view(torch.uint8) != 0 if part.dtype is torch.bool else host)
    return x


def _load_numpy(np: Any, x: Any, request: Any, *, starts: Shape, whole: Shape) -> Any:
    result = np.array(x)
    for where, sizes, read in _parts(request, x.shape, x.itemsize, starts):
        part = np.empty(prod(sizes) * x.itemsize, np.uint8)
        read(part.data)
        result[where] = (part != 0 if x.dtype == bool else part.view(x.dtype)).reshape(sizes)
    return result


op(
    "load_block",
    complex="rule",
    no_gradient="it reads or writes a file",
    whole="each worker reads its own block",
    operands="tB",
    infer=_loaded,
    effects=True,
    own_blocks=True,
    local=lambda attrs, share: _of_share(attrs, share, 0),
    torch=lambda torch, x, request, **attrs: _load_torch(torch, x.clone(), request, **attrs),
    inplace=_load_torch,
    kernel=_load_numpy,
)


# By this the client notices that all workers have read their blocks. It moves nothing, and reads no element.
op(
    "count_elements",
    complex="rule",
    no_gradient="it counts elements",
    operands="t",
    infer=lambda x: DONE,
    split=lambda x: folding(x, dim=None, keepdim=False, how="sum"),
    torch=lambda torch, x: torch.full((), x.numel(), dtype=torch.int64, device=x.device),
    kernel=lambda np, x: np.asarray(x.size),
)
