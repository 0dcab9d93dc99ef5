"""Calls split by hand: each worker's share of a call is computed alone, on torch's CPU engine, and the results joined.

Placements are tried here, not planned: those that `gt.ops.split.rows` claims, and all other ones.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any

import torch

from gt.ops import OPS, sign
from gt.ops.placement import P, Partial, Parts, Placement, R, Replicate, Shard, bounds, count
from gt.ops.split import Apart, Row, Share, Split, rows
from gt.types import Scalar, TensorType
from gt.worker.engines import make_engine
from tests.support.samples import Sample, T, V, type_of

ENGINE = make_engine("torch", "cpu")
#: (relative, absolute)
TOLERANCES = {
    torch.float64: (1e-9, 1e-9),
    torch.float32: (2e-4, 1e-4),
    torch.complex128: (1e-9, 1e-9),
    torch.complex64: (2e-4, 1e-4),
}
HALVES = {torch.float16: (3e-2, 1e-1), torch.bfloat16: (1e-1, 2e-1)}

Tensors = tuple[torch.Tensor, ...]
#: for each axis its workers, or their weights
Mesh = tuple[Parts, ...]
Ranks = tuple[int, ...]
#: a block, and its start
Block = tuple[TensorType, tuple[int, ...]]


class Call:
    """A sample with its operands, its result, and its legal placements."""

    def __init__(self, sample: Sample, draw: int = 0) -> None:
        self.sample, self.op = sample, OPS[sample.op]
        rng = torch.Generator().manual_seed(zlib.crc32(str(sample).encode()) + draw)
        self.operands = [x.make(rng) if isinstance(x, T | V) else x for x in sample.operands]
        self.tensors = [x for x in self.operands if isinstance(x, torch.Tensor)]
        self.attrs = dict(sample.attrs)
        self.ins = tuple(t for t in map(type_of, self.operands) if not isinstance(t, Scalar))
        self.whole = self.run(self.tensors, self.attrs)
        self.outs = tuple(t for t in map(type_of, self.whole) if isinstance(t, TensorType))
        self.rng = rng

    def run(self, tensors: Sequence[torch.Tensor], attrs: dict[str, Any], expect: Any = None) -> Tensors:
        """One worker's results; raises if their types are not the expected ones, or not those inferred."""
        remaining = iter(tensors)
        operands = [next(remaining) if isinstance(x, torch.Tensor) else x for x in self.operands]
        signature = sign(self.op, tuple(attrs.items()), tuple(map(type_of, operands)))
        if expect is not None and signature.outs != expect:
            raise WrongType(f"{signature} gives {signature.outs}, not {expect}")
        with torch.no_grad():
            results = ENGINE.link(signature)(*operands)
        results = tuple(results) if len(signature.outs) > 1 else (results,)
        assert tuple(map(type_of, results)) == signature.outs, str(signature)
        return results

    def split(self) -> Split | Apart | None:
        return self.op.split(*map(type_of, self.operands), **self.attrs) if self.op.split else None

    def rows(self, workers: Parts) -> list[Row]:
        split = self.split()
        if split is None:
            return [Row((R,) * len(self.ins), (R,) * len(self.outs))]
        if isinstance(split, Split):
            return rows(split, self.ins, self.outs, workers)
        return list(self._rows_apart(split, workers))

    def _rows_apart(self, split: Apart, workers: Parts) -> Iterator[Row]:
        """The rows of each part combined with the first rows of the others, and the last rows of all parts: parts are
        independent, so more combinations show nothing new."""
        choices = [
            rows(part, [self.ins[i] for i in ins], [self.outs[i] for i in outs], workers)
            for ins, outs, part in split.parts
        ]
        first = [0] * len(choices)
        picks = [first, *([*first[:p], k, *first[p + 1 :]] for p, c in enumerate(choices) for k in range(1, len(c)))]
        for pick in [*picks, [len(c) - 1 for c in choices]]:
            ins, outs = [R] * len(self.ins), [R] * len(self.outs)
            for k, c, (in_positions, out_positions, _) in zip(pick, choices, split.parts, strict=True):
                for i, placement in zip(in_positions, c[k].ins, strict=True):
                    ins[i] = placement
                for i, placement in zip(out_positions, c[k].outs, strict=True):
                    outs[i] = placement
            yield Row(tuple(ins), tuple(outs))


class WrongType(Exception):
    pass


# -- blocks --------------------------------------------------------------------------------


def block_type(t: TensorType, placement: Placement, workers: Parts, rank: int) -> Block:
    if not isinstance(placement, Shard):
        return t, (0,) * t.ndim
    start, length = bounds(t.shape[placement.dim], workers, rank)
    shape, at = list(t.shape), [0] * t.ndim
    shape[placement.dim], at[placement.dim] = length, start
    return TensorType(tuple(shape), t.dtype), tuple(at)


def cut(x: torch.Tensor, placement: Placement, workers: Parts, rng: torch.Generator) -> list[torch.Tensor]:
    n = count(workers)
    match placement:
        case Shard(dim):
            return [x.narrow(dim, *bounds(x.shape[dim], workers, r)) for r in range(n)]
        case Partial():  # random terms, never multiples of x: relu and max would pass by luck
            noise = [_noise(x, rng) for _ in range(n - 1)]
            return [*noise, x - sum(noise)]
        case _:
            return [x] * n


def _noise(x: torch.Tensor, rng: torch.Generator) -> torch.Tensor:
    parts = [torch.randint(-30, 31, x.shape, generator=rng) / 8 for _ in range(1 + x.is_complex())]
    return (torch.complex(*parts) if x.is_complex() else parts[0]).to(x.dtype)


COMBINE: dict[str, Callable[..., torch.Tensor]] = {
    "sum": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
    "prod": torch.mul,
}


def join(parts: Sequence[torch.Tensor], placement: Placement) -> torch.Tensor | None:
    match placement:
        case Shard(dim):
            return torch.cat(list(parts), dim)
        case Partial(how):
            if parts[0].is_complex() and how in ("max", "min"):  # complex numbers have no order
                return None
            return reduce(COMBINE[how], parts)
        case _:
            return parts[0] if all(close(parts[0], p) for p in parts) else None


def close(got: torch.Tensor | None, want: torch.Tensor) -> bool:
    if got is None or got.shape != want.shape or got.dtype != want.dtype:
        return False
    rtol, atol = (TOLERANCES | HALVES).get(want.dtype, (0, 0))
    if (want.is_floating_point() or want.is_complex()) and want.numel():
        # partial terms may be as large as the largest result
        atol *= max(1.0, float(want.abs().nan_to_num(0, 0, 0).max()))
    return bool(torch.allclose(got, want, rtol=rtol, atol=atol, equal_nan=True))


# -- shares --------------------------------------------------------------------------------
# a mesh has one number of workers for each axis, or their weights, and a path one row: the second row splits the blocks
# of the first


def shares(types: Sequence[TensorType], placed: Sequence[Sequence[Placement]], mesh: Mesh, at: Ranks) -> list[Block]:
    """The blocks of these types at one position of the mesh, and their starts."""
    blocks: list[Block] = [(t, (0,) * t.ndim) for t in types]
    for placements, workers, rank in zip(placed, mesh, at, strict=True):
        cuts = [block_type(t, p, workers, rank) for (t, _), p in zip(blocks, placements, strict=True)]
        blocks = [
            (t, tuple(map(sum, zip(start, more, strict=True))))
            for (_, start), (t, more) in zip(blocks, cuts, strict=True)
        ]
    return blocks


def share(call: Call, path: Sequence[Row], mesh: Mesh, at: Ranks) -> Share:
    ins = shares(call.ins, [row.ins for row in path], mesh, at)
    outs = shares(call.outs, [row.outs for row in path], mesh, at)
    return Share(
        ins=tuple(t for t, _ in ins),
        outs=tuple(t for t, _ in outs),
        ins_at=tuple(start for _, start in ins),
        outs_at=tuple(start for _, start in outs),
        whole_ins=call.ins,
        whole_outs=call.outs,
    )


def cut_all(x: torch.Tensor, placed: Sequence[Placement], mesh: Mesh, rng: torch.Generator) -> list[torch.Tensor]:
    """A tensor's blocks, in the order of the mesh."""
    if not placed:
        return [x]
    return [b for part in cut(x, placed[0], mesh[0], rng) for b in cut_all(part, placed[1:], mesh[1:], rng)]


def join_all(parts: Sequence[torch.Tensor], placed: Sequence[Placement], mesh: Mesh) -> torch.Tensor | None:
    if not placed:
        return parts[0]
    n = count(mesh[0])
    inner = len(parts) // n
    joined = [join_all(parts[k * inner : (k + 1) * inner], placed[1:], mesh[1:]) for k in range(n)]
    return join([x for x in joined if x is not None], placed[0]) if all(x is not None for x in joined) else None


def works(call: Call, path: Sequence[Row], mesh: Mesh) -> bool:
    """Do the shares join to the whole result? Raises what the op raises if it cannot compute its share."""
    blocks = [cut_all(x, [row.ins[i] for row in path], mesh, call.rng) for i, x in enumerate(call.tensors)]
    results = []
    for n, at in enumerate(itertools.product(*(range(count(parts)) for parts in mesh))):
        worker = share(call, path, mesh, at)
        attrs = call.op.local(call.attrs, worker) if call.op.local else call.attrs
        results.append(call.run([b[n] for b in blocks], attrs, worker.outs))
    return all(
        close(join_all([r[i] for r in results], [row.outs[i] for row in path], mesh), whole)
        for i, whole in enumerate(call.whole)
    )


def paths(call: Call, mesh: Mesh) -> Iterator[tuple[Row, ...]]:
    """Every placement on a mesh of two axes: a row for the first axis, and one for the second that is legal for all
    blocks."""
    split = call.split()
    if not isinstance(split, Split):
        return
    for row in rows(split, call.ins, call.outs, mesh[0]):
        allowed: list[list[Row]] = []
        for rank in range(count(mesh[0])):
            ins = [t for t, _ in shares(call.ins, [row.ins], mesh[:1], (rank,))]
            outs = [t for t, _ in shares(call.outs, [row.outs], mesh[:1], (rank,))]
            allowed.append(rows(split, ins, outs, mesh[1]))
        yield from ((row, second) for second in allowed[0] if all(second in more for more in allowed[1:]))


# -- all placements ------------------------------------------------------------------------


def placements(t: TensorType, partial: Sequence[Placement]) -> list[Placement]:
    return [R, *(Shard(d) for d in range(t.ndim) if t.shape[d] > 1), *partial]


def result_placements(t: TensorType, ins: Sequence[Placement]) -> list[Placement]:
    """From partial sums an op produces partial sums, or nothing useful."""
    from_partial = any(isinstance(p, Partial) for p in ins)
    folds = [Partial("max"), Partial("min")] if t.dtype.kind == "b" else [Partial(how) for how in COMBINE]
    return placements(t, [P] if from_partial and t.dtype.kind != "b" else [] if from_partial else folds)


def working_rows(call: Call, workers: int, limit: int) -> set[Row]:
    """All rows that work. Of more than ``limit`` candidates, about that many are tried, always the same ones."""
    choices = [*itertools.product(*(placements(t, [P] if t.dtype.kind == "f" else []) for t in call.ins))]
    working: set[Row] = set()
    if call.op.local is None:
        for ins in some(choices, limit):
            working.update(_working_rows(call, ins, workers))
    else:
        results = {ins: itertools.product(*(result_placements(t, ins) for t in call.outs)) for ins in choices}
        guesses = some([Row(ins, outs) for ins in choices for outs in results[ins]], limit)
        working.update(row for row in guesses if can(call, row, workers))
    return {row for row in working if not useless(row, working)}


def some(choices: Sequence[Any], limit: int) -> Iterator[Any]:
    every = -(-len(choices) // limit)
    return (c for c in choices if zlib.crc32(str(c).encode()) % every == 0)


def can(call: Call, row: Row, workers: int) -> bool:
    """Does the row work? A kernel may raise anything for operands that do not fit together."""
    try:
        return works(call, (row,), (workers,))
    except Exception:
        return False


def _working_rows(call: Call, ins: tuple[Placement, ...], workers: int) -> Iterator[Row]:
    blocks = [cut(x, p, workers, call.rng) for x, p in zip(call.tensors, ins, strict=True)]
    try:
        results = [call.run([b[r] for b in blocks], call.attrs) for r in range(workers)]
    except Exception:  # as in `can`
        return
    fitting = []
    for i, whole in enumerate(call.whole):
        parts = [r[i] for r in results]
        fitting.append([p for p in result_placements(call.outs[i], ins) if fits(parts, p, call.outs[i], whole)])
    yield from (Row(ins, outs) for outs in itertools.product(*fitting))


def fits(parts: Sequence[torch.Tensor], p: Placement, t: TensorType, whole: torch.Tensor) -> bool:
    types = [block_type(t, p, len(parts), r)[0] for r in range(len(parts))]
    return all(type_of(x) is b for x, b in zip(parts, types, strict=True)) and close(join(parts, p), whole)


def useless(row: Row, others: set[Row]) -> bool:
    """A result is partial although the same row works with it replicated, or all operands are replicated."""
    for i, p in enumerate(row.outs):
        if isinstance(p, Partial) and Row(row.ins, (*row.outs[:i], R, *row.outs[i + 1 :])) in others:
            return True
    return all(isinstance(p, Replicate) for p in row.ins) and any(isinstance(p, Partial) for p in row.outs)


def show(row: Row) -> str:
    return f"{' '.join(map(str, row.ins))} -> {' '.join(map(str, row.outs))}"
