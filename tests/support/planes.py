"""The expected results of collectives: one table for every data plane.

A row has the arrays and arguments of each rank, and each rank's result, computed here by splitting and combining whole
arrays. Values are small multiples of a quarter, so sums are exact in any order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

COMPLEX = ("complex64", "complex128")
DTYPES = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", *COMPLEX)
OPS = ("sum", "max", "min", "prod")
FEW = ("float32", "bfloat16", "bool", "int16")


@dataclass
class Row:
    name: str
    kind: str
    arrays: list[Any]
    hows: list[dict[str, Any]]
    wants: list[Any]


def values(shape: tuple[int, ...], dtype: str, seed: int) -> torch.Tensor:
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return torch.from_numpy(np.asarray(rng.integers(0, 2, shape) == 1))
    if dtype in COMPLEX:  # only sums of these are reduced
        return torch.complex(values(shape, "float64", seed), values(shape, "float64", seed + 100)).to(
            getattr(torch, dtype)
        )
    step = 4 if dtype.startswith(("float", "bfloat")) else 1
    low = 0 if dtype == "uint8" else -8
    return torch.from_numpy(np.asarray(rng.integers(low, 9, shape) / step)).to(getattr(torch, dtype))


def combine(terms: list[torch.Tensor], op: str) -> torch.Tensor:
    dtype = terms[0].dtype
    whole = torch.stack(terms)
    if dtype is torch.bool:
        return whole.any(0) if op in ("sum", "max") else whole.all(0)
    if dtype.is_complex:
        return whole.sum(0)
    whole = whole.double() if dtype.is_floating_point else whole.long()
    result = {"sum": whole.sum, "prod": whole.prod, "max": whole.amax, "min": whole.amin}[op](0)
    return result.to(dtype)


def layouts(size: int) -> list[tuple[int, ...]]:
    """Sizes by rank: even, uneven by one, uneven by much, some empty, all empty."""
    return [
        (2,) * size,
        tuple(3 - (r > 0) for r in range(size)),
        tuple(5 * r + 1 for r in range(size)),
        (0,) * (size - 1) + (2,),
        (0,) * size,
    ]


def rows(size: int) -> Iterator[Row]:
    for make in (reductions, special, gathers, scatters, transposes, broadcasts, exchanges):
        yield from make(size)


def reductions(size: int) -> Iterator[Row]:
    cases = [(d, op, (3, 2), False) for d in DTYPES for op in (OPS if d not in COMPLEX else ("sum",))]
    cases += [("float32", "sum", shape, overwrite) for shape in ((), (0, 3), (1000,)) for overwrite in (False, True)]
    for dtype, op, shape, overwrite in cases:
        terms = [values(shape, dtype, seed) for seed in range(size)]
        name = f"all_reduce {op} {dtype}{list(shape)} overwrite={overwrite}"
        yield Row(name, "all_reduce", terms, [{"op": op, "overwrite": overwrite}] * size, [combine(terms, op)] * size)
    turned = [values((4, 3), "float32", seed).t() for seed in range(size)]
    yield Row("all_reduce of a view", "all_reduce", turned, [{"op": "sum"}] * size, [combine(turned, "sum")] * size)


def special(size: int) -> Iterator[Row]:
    """NaN wins on whichever rank it is; float16 and bfloat16 are rounded once, not at every step."""
    for dtype in ("float64", "float32", "float16", "bfloat16"):
        for op in ("max", "min"):
            terms = [torch.tensor([1.0, -1.0, -0.5, 2.0]) for _ in range(size)]
            for rank, term in enumerate(terms):
                term[rank] = float("nan") * (-1) ** rank
                term[3] = float("inf") * (-1) ** rank
            terms = [term.to(getattr(torch, dtype)) for term in terms]
            wants = [combine(terms, op)] * size
            yield Row(f"all_reduce {op} of NaN {dtype}", "all_reduce", terms, [{"op": op}] * size, wants)
            how = {"op": op, "dim": 0, "sizes": (4,) + (0,) * (size - 1)}
            cut = [wants[0], *[wants[0][:0]] * (size - 1)]
            yield Row(f"reduce_scatter {op} of NaN {dtype}", "reduce_scatter", terms, [how] * size, cut)
    for dtype, big in (("float16", 2048.0), ("bfloat16", 256.0)):
        terms = [torch.tensor([big if rank == 0 else 1.0]).to(getattr(torch, dtype)) for rank in range(size)]
        want = combine(terms, "sum")
        yield Row(f"all_reduce of {dtype} rounds once", "all_reduce", terms, [{"op": "sum"}] * size, [want] * size)


def gathers(size: int) -> Iterator[Row]:
    for sizes in layouts(size):
        for dim, shape in ((0, (0,)), (0, (0, 3)), (1, (2, 0)), (1, (2, 0, 2)), (1, (1, 0, 2))):
            for dtype in FEW:
                blocks = [values((*shape[:dim], n, *shape[dim + 1 :]), dtype, seed) for seed, n in enumerate(sizes)]
                how = {"dim": dim, "sizes": sizes}
                name = f"all_gather {dtype} along {dim} of {len(shape)}, sizes {sizes}"
                yield Row(name, "all_gather", blocks, [how] * size, [torch.cat(blocks, dim)] * size)


def scatters(size: int) -> Iterator[Row]:
    for sizes in layouts(size):
        for dim in (0, 1):
            cases = [(d, "sum") for d in DTYPES] + [(d, op) for d in FEW for op in OPS[1:]]
            for dtype, op in cases:
                shape = (sum(sizes), 3) if dim == 0 else (3, sum(sizes))
                terms = [values(shape, dtype, seed) for seed in range(size)]
                how = {"dim": dim, "sizes": sizes, "op": op}
                name = f"reduce_scatter {op} {dtype} along {dim}, sizes {sizes}"
                wants = list(combine(terms, op).split(sizes, dim))
                yield Row(name, "reduce_scatter", terms, [how] * size, wants)


def transposes(size: int) -> Iterator[Row]:
    for joins in layouts(size):
        for cuts in layouts(size):
            for join, cut in ((0, 1), (1, 0), (0, 2), (2, 1)):
                shape = [2, 2, 2]
                shape[join], shape[cut] = sum(joins), sum(cuts)
                whole = values(tuple(shape), "float16", 1)
                how = {"join": join, "join_sizes": joins, "cut": cut, "cut_sizes": cuts}
                name = f"all_to_all from S({join}) {joins} to S({cut}) {cuts}"
                yield Row(
                    name, "all_to_all", list(whole.split(joins, join)), [how] * size, list(whole.split(cuts, cut))
                )


def broadcasts(size: int) -> Iterator[Row]:
    for root in range(size):
        for dtype, shape in ((d, s) for d in DTYPES for s in ((), (3, 2), (0, 2))):
            x = values(shape, dtype, 3)
            how = {"root": root, "shape": shape, "dtype": dtype}
            arrays = [x if rank == root else None for rank in range(size)]
            yield Row(f"broadcast {dtype}{list(shape)} from {root}", "broadcast", arrays, [how] * size, [x] * size)


def exchanges(size: int) -> Iterator[Row]:
    if size > 1:
        large = values((400, 500), "float32", 0)  # its note travels on its own
        yield _sent(size, large)
        yield _sent(size, large[:, :400])  # not contiguous
        yield _reblocked(size, "float64", (60_000,) + (0,) * (size - 1), (0,) * (size - 1) + (60_000,))
    for dtype in DTYPES:
        if size > 1:
            yield _sent(size, values((3, 2), dtype, 0))
        yield _reblocked(size, dtype, (4,) * size, tuple(range(2, 2 + size)))
        yield _reblocked(size, dtype, (6,) + (0,) * (size - 1), (0,) * (size - 1) + (6,))


def _sent(size: int, x: torch.Tensor) -> Row:
    """Rank 0 sends everything to the last rank; the others take no part."""
    dtype, shape = str(x.dtype).removeprefix("torch."), tuple(x.shape)
    nothing = {"sends": (), "receives": (), "keeps": (), "shape": None, "dtype": dtype}
    hows = [dict(nothing) for _ in range(size)]
    hows[0]["sends"] = ((size - 1, (0, 0), shape),)
    hows[-1] |= {"receives": ((0, (0, 0), shape),), "shape": shape}
    hows = [how | {"sources": (0,), "targets": (size - 1,)} for how in hows]
    arrays, wants = [x, *[None] * (size - 1)], [*[None] * (size - 1), x]
    return Row(f"exchange {dtype}{list(shape)}: one sends to another", "exchange", arrays, hows, wants)


def _reblocked(size: int, dtype: str, old: tuple[int, ...], new: tuple[int, ...]) -> Row:
    """From one cut of the columns to another, row by row: several regions a pair, some stay on their rank."""
    width = min(sum(old), sum(new))
    whole = values((2, sum(old)), dtype, 5)[:, :width]
    cut = lambda sizes: [(min(sum(sizes[:r]), width), min(sum(sizes[: r + 1]), width)) for r in range(size)]
    before, after = cut(old), cut(new)
    hows = [{"sends": [], "receives": [], "keeps": [], "shape": (2, b - a), "dtype": dtype} for a, b in after]
    for source, (a, b) in enumerate(before):
        for target, (c, d) in enumerate(after):
            low, high = max(a, c), min(b, d)
            for row in (0, 1) if low < high else ():
                source_start, target_start, n = (row, low - a), (row, low - c), (1, high - low)
                if source == target:
                    hows[source]["keeps"].append((source_start, target_start, n))
                else:
                    hows[source]["sends"].append((target, source_start, n))
                    hows[target]["receives"].append((source, target_start, n))
    hows = [how | {"sources": range(size), "targets": range(size)} for how in hows]
    arrays = [whole[:, a:b].clone() for a, b in before]
    return Row(f"exchange {dtype}: {old} to {new}", "exchange", arrays, hows, [whole[:, a:b] for a, b in after])


def check(row: Row, rank: int, got: Any, numpy: bool) -> None:
    want = row.wants[rank]
    if want is None:
        assert got is None, f"{row.name}: rank {rank} got {got}"
        return
    assert isinstance(got, np.ndarray if numpy else torch.Tensor), f"{row.name}: a {type(got).__name__}"
    contiguous = got.flags["C_CONTIGUOUS"] if numpy else got.is_contiguous()
    got = torch.from_numpy(got) if numpy else got
    assert contiguous, row.name
    assert got.dtype == want.dtype, f"{row.name}: {got.dtype}"
    assert got.shape == want.shape, f"{row.name}: {got.shape}, not {want.shape}"
    assert torch.equal(got.nan_to_num(77), want.nan_to_num(77)), f"{row.name}: rank {rank} got {got}, not {want}"


def copy_of(array: torch.Tensor | None, numpy: bool) -> Any:
    if array is None:
        return None
    return array.numpy().copy(order="K") if numpy else array.clone()


def fits(row: Row, numpy: bool) -> bool:
    return not (numpy and any(x is not None and x.dtype is torch.bfloat16 for x in row.arrays))
