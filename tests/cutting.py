"""Calls cut by hand: each worker's share of a call computed on its own, on torch's CPU engine, and put together again.

Here placements are tried, not planned: what `gt.ops.split.rows` claims, and everything else there might be.
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any

import torch

from gt.ops import OPS, Op, sign
from gt.ops.placement import P, Partial, Placement, R, Replicate, Shard, bounds
from gt.ops.split import Apart, Cut, Row, Split, rows
from gt.types import Scalar, TensorType
from gt.worker.engines import make_engine
from tests.samples import Sample, T, type_of

ENGINE = make_engine("torch", "cpu")
#: (relative, absolute)
TOLERANCES = {torch.float64: (1e-9, 1e-9), torch.float32: (2e-4, 1e-4)}
HALVES = {torch.float16: (3e-2, 1e-1), torch.bfloat16: (1e-1, 2e-1)}

Tensors = tuple[torch.Tensor, ...]


class Call:
    """A sample with its operands, its result, and how it may be cut."""

    def __init__(self, sample: Sample, draw: int = 0) -> None:
        self.sample, self.op = sample, OPS[sample.op]
        rng = torch.Generator().manual_seed(zlib.crc32(str(sample).encode()) + draw)
        self.operands = [x.make(rng) if isinstance(x, T) else x for x in sample.operands]
        self.operands = [x.make(rng) if hasattr(x, "make") else x for x in self.operands]
        self.tensors = [x for x in self.operands if isinstance(x, torch.Tensor)]
        self.attrs = dict(sample.attrs)
        self.ins = tuple(t for t in map(type_of, self.operands) if not isinstance(t, Scalar))
        self.whole = self.run(self.tensors, self.attrs)
        self.outs = tuple(t for t in map(type_of, self.whole) if isinstance(t, TensorType))
        self.rng = rng

    def run(self, tensors: Sequence[torch.Tensor], attrs: dict[str, Any], expect: Any = None) -> Tensors:
        """One worker's results; raises if their types are not the expected ones, or not those inferred."""
        given = iter(tensors)
        operands = [next(given) if isinstance(x, torch.Tensor) else x for x in self.operands]
        signature = sign(self.op, tuple(attrs.items()), tuple(map(type_of, operands)))
        if expect is not None and signature.outs != expect:
            raise WrongType(f"{signature} gives {signature.outs}, not {expect}")
        with torch.no_grad():
            made = ENGINE.link(signature)(*operands)
        made = tuple(made) if len(signature.outs) > 1 else (made,)
        assert tuple(map(type_of, made)) == signature.outs, str(signature)
        return made

    def split(self) -> Split | Apart | None:
        return self.op.split(*map(type_of, self.operands), **self.attrs) if self.op.split else None

    def rows(self, workers: int) -> list[Row]:
        split = self.split()
        if split is None:
            return []
        if isinstance(split, Split):
            return rows(split, self.ins, self.outs, workers)
        return list(self._rows_apart(split, workers))

    def _rows_apart(self, split: Apart, workers: int) -> Iterator[Row]:
        """Each part's rows with the others' first, and all parts' last together: they are independent."""
        choices = [
            rows(part, [self.ins[i] for i in ins], [self.outs[i] for i in outs], workers)
            for ins, outs, part in split.parts
        ]
        first = [0] * len(choices)
        picks = [first, *([*first[:p], k, *first[p + 1 :]] for p, c in enumerate(choices) for k in range(1, len(c)))]
        for pick in [*picks, [len(c) - 1 for c in choices]]:
            ins, outs = [R] * len(self.ins), [R] * len(self.outs)
            for k, c, (at, made, _) in zip(pick, choices, split.parts, strict=True):
                for i, placement in zip(at, c[k].ins, strict=True):
                    ins[i] = placement
                for i, placement in zip(made, c[k].outs, strict=True):
                    outs[i] = placement
            yield Row(tuple(ins), tuple(outs))


class WrongType(Exception):
    pass


# -- blocks --------------------------------------------------------------------------------


def block_type(t: TensorType, placement: Placement, workers: int, rank: int) -> tuple[TensorType, tuple[int, ...]]:
    """A block, and where it begins."""
    if not isinstance(placement, Shard):
        return t, (0,) * t.ndim
    start, length = bounds(t.shape[placement.dim], workers, rank)
    shape, at = list(t.shape), [0] * t.ndim
    shape[placement.dim], at[placement.dim] = length, start
    return TensorType(tuple(shape), t.dtype), tuple(at)


def cut(x: torch.Tensor, placement: Placement, workers: int, rng: torch.Generator) -> list[torch.Tensor]:
    match placement:
        case Shard(dim):
            return [x.narrow(dim, *bounds(x.shape[dim], workers, r)) for r in range(workers)]
        case Partial():  # random terms, never multiples of x: relu and max would pass by luck
            noise = [
                (torch.randint(-30, 31, x.shape, generator=rng) / 8).to(x.dtype) for _ in range(workers - 1)
            ]
            return [*noise, x - sum(noise)]
        case _:
            return [x] * workers


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
            return reduce(COMBINE[how], parts)
        case _:
            return parts[0] if all(close(parts[0], p) for p in parts) else None


def close(got: torch.Tensor | None, want: torch.Tensor) -> bool:
    if got is None or got.shape != want.shape or got.dtype != want.dtype:
        return False
    rtol, atol = (TOLERANCES | HALVES).get(want.dtype, (0, 0))
    if want.is_floating_point() and want.numel():  # terms may be as large as the largest result
        atol *= max(1.0, float(want.nan_to_num(0, 0, 0).abs().max()))
    return bool(torch.allclose(got, want, rtol=rtol, atol=atol, equal_nan=True))


# -- shares --------------------------------------------------------------------------------


def share(call: Call, row: Row, workers: int, rank: int) -> Cut:
    ins = [block_type(t, p, workers, rank) for t, p in zip(call.ins, row.ins, strict=True)]
    outs = [block_type(t, p, workers, rank) for t, p in zip(call.outs, row.outs, strict=True)]
    return Cut(
        ins=tuple(t for t, _ in ins),
        outs=tuple(t for t, _ in outs),
        ins_at=tuple(at for _, at in ins),
        outs_at=tuple(at for _, at in outs),
        whole_ins=call.ins,
        whole_outs=call.outs,
    )


def local(op: Op, attrs: dict[str, Any], part: Cut) -> dict[str, Any]:
    return op.local(attrs, part) if op.local else attrs


def works(call: Call, row: Row, workers: int) -> bool:
    """Does the result come out of the shares? Raises what an op raises that cannot do its share."""
    blocks = [cut(x, p, workers, call.rng) for x, p in zip(call.tensors, row.ins, strict=True)]
    made = []
    for rank in range(workers):
        part = share(call, row, workers, rank)
        attrs = local(call.op, call.attrs, part)
        made.append(call.run([b[rank] for b in blocks], attrs, part.outs))
    return all(
        close(join(parts, p), whole) for parts, p, whole in zip(zip(*made, strict=True), row.outs, call.whole, strict=True)
    )


# -- everything there might be -------------------------------------------------------------


def placements(t: TensorType, partial: Sequence[Placement]) -> list[Placement]:
    return [R, *(Shard(d) for d in range(t.ndim) if t.shape[d] > 1), *partial]


def operand_placements(call: Call) -> Iterator[tuple[Placement, ...]]:
    return itertools.product(*(placements(t, [P] if t.dtype.kind == "f" else []) for t in call.ins))


def result_placements(t: TensorType) -> list[Placement]:
    folds = [Partial("max"), Partial("min")] if t.dtype.kind == "b" else [Partial(how) for how in COMBINE]
    return placements(t, folds)


def found(call: Call, workers: int) -> set[Row]:
    """All rows that work."""
    made: set[Row] = set()
    for ins in operand_placements(call):
        made.update(_found(call, ins, workers) if call.op.local is None else _found_locally(call, ins, workers))
    return {row for row in made if not useless(row, made)}


def _found(call: Call, ins: tuple[Placement, ...], workers: int) -> Iterator[Row]:
    blocks = [cut(x, p, workers, call.rng) for x, p in zip(call.tensors, ins, strict=True)]
    try:
        made = [call.run([b[r] for b in blocks], call.attrs) for r in range(workers)]
    except Exception:  # whatever a kernel says to operands that do not go together
        return
    fitting = []
    for i, whole in enumerate(call.whole):
        parts = [m[i] for m in made]
        fitting.append([p for p in result_placements(call.outs[i]) if fits(parts, p, call.outs[i], whole)])
    yield from (Row(ins, outs) for outs in itertools.product(*fitting))


def fits(parts: Sequence[torch.Tensor], p: Placement, t: TensorType, whole: torch.Tensor) -> bool:
    types = [block_type(t, p, len(parts), r)[0] for r in range(len(parts))]
    return all(type_of(x) is b for x, b in zip(parts, types, strict=True)) and close(join(parts, p), whole)


def _found_locally(call: Call, ins: tuple[Placement, ...], workers: int) -> Iterator[Row]:
    for outs in itertools.product(*map(result_placements, call.outs)):
        try:
            if works(call, Row(ins, outs), workers):
                yield Row(ins, outs)
        except Exception:  # as above
            continue


def useless(row: Row, others: set[Row]) -> bool:
    """Terms of what everyone has whole."""
    for i, p in enumerate(row.outs):
        if isinstance(p, Partial) and Row(row.ins, (*row.outs[:i], R, *row.outs[i + 1 :])) in others:
            return True
    return all(isinstance(p, Replicate) for p in row.ins) and any(isinstance(p, Partial) for p in row.outs)


def show(row: Row) -> str:
    return f"{' '.join(map(str, row.ins))} -> {' '.join(map(str, row.outs))}"
