"""What the splits claim, tried by brute force: none wrong and none missing.

``GT_SEEDS=5 pytest tests/test_splits.py`` takes 5 samples of each kind instead of one, and tries more rows and values.
"""

from __future__ import annotations

import itertools
import os
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from gt.ops import OPS
from gt.ops.placement import Partial
from gt.ops.split import Apart, Row, Split, rows
from gt.types import TensorType, float32
from tests.support.samples import Sample, T, V, samples
from tests.support.splitting import Call, can, paths, show, working_rows, works

SEEDS = int(os.environ.get("GT_SEEDS", "1"))
#: rows a sample tries in the search for missing ones
TRIED = 100 * SEEDS


@dataclass(frozen=True)
class Luck:
    """Rows that work and are not claimed."""

    ops: str
    row: str
    why: str
    #: for these samples only
    of: str = ""


LUCK = [
    Luck("mul div", r".*P\(sum\).* -> P\(sum\)", "linear but where the factor is infinite, or the divisor zero"),
    Luck("to copy", r".*P\(sum\).* -> P\(sum\)", "linear but where a term overflows, or rounds"),
    Luck("nan_to_num hardshrink softshrink", r"P\(sum\) -> P\(sum\)", "the same as nothing at all for these values"),
    Luck("clamp var std pow", r"P\(sum\) -> R", "a constant for these attributes"),
    Luck("nextafter", ".*", "so near to its first operand that no test tells them apart"),
    Luck("xlogy", ".*P.*", "linear in the first operand but where the logarithm is infinite"),
    Luck("heaviside", r"\S+ P\(sum\) -> .*", "no operand is zero, and then the values do not matter"),
    Luck("logcumsumexp", ".*", "infinities swallow everything", of="inf"),
    Luck("any all amax amin prod", r"S\(\d\) -> (R|P\(\w+\))", "the same in each block, or truths"),
    Luck("vector_norm", r".*-> R|.*P\(prod\)", "all, or none, are zero"),
    Luck("dropout dropout_backward", r"P\(sum\).*-> R.*", "nothing is left of it", of="p=1.0"),
    Luck("cat", r"S\(0\) -> S\(0\)", "a single tensor"),
    Luck("where", r"R P\(sum\) -> P\(sum\)", "the other is the number 0"),
    Luck("round_decimals", r"P\(sum\) -> P\(sum\)", "nothing to round"),
    Luck("addmm", ".*", "with beta=0 the first operand does not matter", of=r", 0, 1\)$"),
    Luck("scatter index_put", r"R S\(\d\) -> P\(max\)", "truths", of="bool"),
    Luck("scatter_reduce", r"P\(sum\) R R -> P\(sum\)", "linear in what is multiplied, which is no term"),
    Luck("searchsorted", r".*P\(max\)", "all that is less is in one block"),
    Luck("attention", r"R R S\(\d\)( R)? -> S\(\d\) R", "torch's fast kernels want values as wide as keys"),
    Luck("convolution_backward", r".*P\(sum\).*", "one of the two gradients is linear in x, the other in the weight"),
    Luck("grid_sample_backward", r"R P\(sum\) R -> R.*", "of the two gradients, only the grid's depends on the image"),
    Luck("grid_sample_backward", ".*", "the gradient of the grid is zero", of="mode=nearest"),
    Luck("ctc_loss", r"P\(sum\) R R R -> P\(sum\)", "a sum of log probabilities, or infinite", of=r"\[2,0,3\]"),
    Luck("convolution convolution_backward", r".*S\([2-4]\).*", "a kernel of one element looks at no neighbours"),
    Luck("put_view", ".*", "all of the target is written over: what was in it does not matter", of=r"chain=\(\)"),
    Luck("copy", r"(P\(sum\)|S\(\d\)|R) .*", "all of the target is written over: what was in it does not matter"),
    Luck("view_backward put_view", ".*", "chains of views are worked out for slices", of=r"\('(?!slice)"),
    Luck("masked_put", r"P\(sum\) R -> P\(sum\)", "a mask that chooses nothing", of="False,False"),
    Luck("max_pool_backward", r".*-> P\(sum\)", "where it only adds up at places, a term for each part of them"),
    Luck("nll_loss", r".*P\(max\).*", "the same total in each block"),
    Luck("nll_loss_backward", r".* P\(sum\).*", "the input's values do not matter; and linear in weights, as below"),
    Luck("mse_loss_backward", r"R P\(sum\) P\(sum\) -> P\(sum\)", "linear in the difference, which is no term"),
    Luck(
        "layer_norm rms_norm group_norm batch_norm batch_norm_tracked layer_norm_backward rms_norm_backward "
        "group_norm_backward batch_norm_backward batch_norm_inference nll_loss binary_cross_entropy "
        "binary_cross_entropy_backward binary_cross_entropy_with_logits",
        r".*P\(sum\).* -> .*",
        "linear in weights and biases, or in statistics: these are never terms",
    ),
]  # fmt: skip


def kind(sample: Sample) -> tuple[Any, ...]:
    """Samples of one kind differ in their values, and in the widths of their dtypes."""
    operands = tuple((x.shape, x.of) if isinstance(x, T) else str(x) for x in sample.operands)
    return operands, dtypes(sample), str({k: v for k, v in sample.attrs.items() if k != "dtype"})


def dtypes(sample: Sample) -> tuple[str, ...]:
    return tuple(x.dtype[0] for x in sample.operands if isinstance(x, T | V))


def in_halves(sample: Sample) -> bool:
    """Their rounding hides what is wrong."""
    return any(f"{d}" in str(sample) for d in ("bfloat16", "float16"))


def by_op() -> dict[str, list[Sample]]:
    """Some samples of each kind, for each op that can be cut."""
    by_kind: dict[str, dict[Any, list[Sample]]] = {}
    for sample in samples():
        if OPS[sample.op].split is not None and not in_halves(sample):
            by_kind.setdefault(sample.op, {}).setdefault(kind(sample), []).append(sample)
    return {op: [s for same in kinds.values() for s in same[:SEEDS]] for op, kinds in by_kind.items()}


SAMPLES = by_op()


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's warnings are checked elsewhere
        yield


def test_every_op_is_split_or_says_why_not() -> None:
    assert {name for name, op in OPS.items() if op.split is None} == {name for name, op in OPS.items() if op.whole}
    assert set(SAMPLES) == {name for name, op in OPS.items() if not op.whole}


@pytest.mark.parametrize("op", SAMPLES)
def test_every_row_works(op: str) -> None:
    for sample in SAMPLES[op]:
        call = Call(sample)
        for workers in (2, 3):
            for row in call.rows(workers):
                assert works(call, (row,), (workers,)), f"{sample} over {workers}: {show(row)}"


@pytest.mark.parametrize("op", SAMPLES)
def test_every_row_works_with_weights(op: str) -> None:
    weights = 4, 1, 2
    for sample in SAMPLES[op]:
        call = Call(sample)
        for row in call.rows(weights):
            assert works(call, (row,), (weights,)), f"{sample} over {weights}: {show(row)}"


@pytest.mark.parametrize(
    "mesh",
    [(2, 2), pytest.param(((3, 1), (1, 2)), marks=pytest.mark.long)],
    ids=["even", "weighted"],
)
@pytest.mark.parametrize("op", SAMPLES)
def test_every_row_works_on_a_mesh(op: str, mesh: Any) -> None:
    calls = [Call(sample) for sample in SAMPLES[op][:: -(-len(SAMPLES[op]) // 8)]]
    for call in sorted(calls, key=lambda c: sum(t.numel for t in c.ins))[-SEEDS:]:
        for path in paths(call, mesh):
            assert works(call, path, mesh), f"{call.sample}: {' then '.join(map(show, path))}"


@pytest.mark.parametrize("op", SAMPLES)
def test_no_row_is_missing(op: str) -> None:
    for alike in alike_in_rank(SAMPLES[op]):
        call = Call(alike[0])
        if isinstance(call.split(), Apart):
            continue
        working = {row for row in working_rows(call, 3, TRIED) - set(call.rows(3)) if not lucky(op, row, call)}
        for sample, draw, workers in itertools.product(alike, range(1, 4 + SEEDS), (2, 3)):
            if working:  # probably by chance: other values decide
                call = Call(sample, draw)
                working = {row for row in working if can(call, row, workers) and row not in call.rows(workers)}
        assert not working, f"{alike[0]}: {sorted(map(show, working))}"


def alike_in_rank(chosen: list[Sample]) -> list[list[Sample]]:
    """Samples that are cut alike; large enough that few wrong rows pass by chance."""
    alike: dict[Any, list[Sample]] = {}
    for sample in chosen:
        call = Call(sample)
        large = all(t.numel for t in (*call.ins, *call.outs)) and (call.ins or call.outs)[0].numel > 1
        if large and "special" not in str(sample) and len(call.ins) < 6:
            ranks = tuple(tuple(n == 1 for n in x.shape) if isinstance(x, T) else str(x) for x in sample.operands)
            attrs = str({k: v for k, v in sample.attrs.items() if k != "dtype"})
            alike.setdefault((ranks, attrs, dtypes(sample)), []).append(sample)
    groups = [same[: SEEDS + 1] for same in alike.values()]
    return groups[:: max(1, -(-len(groups) // (10 * SEEDS)))]


def lucky(op: str, row: Row, call: Call) -> bool:
    if any(isinstance(p, Partial) for p in row.ins) and not any(t.dtype.kind == "f" for t in call.outs):
        return True  # a truth or a place that is the same in each term
    named = (luck for luck in LUCK if op in luck.ops.split() and re.search(luck.of, str(call.sample)))
    return any(re.fullmatch(luck.row, show(row)) for luck in named)


# -- the notation --------------------------------------------------------------------------


def shown(split: Split, ins: list[tuple[int, ...]], outs: list[tuple[int, ...]], workers: int) -> list[str]:
    types = [[TensorType(s, float32) for s in shapes] for shapes in (ins, outs)]
    return [show(row) for row in rows(split, types[0], types[1], workers)]


NOTATION = [
    (Split("mk,kn->mn"), [(4, 6), (6, 5)], [(4, 5)], "R R -> R|S(0) R -> S(0)|S(1) S(0) -> P(sum)|R S(1) -> S(1)"),
    (Split("a.->a."), [(4, 6)], [(4, 6)], "R -> R|S(0) -> S(0)"),
    (Split("ab->a", reduce="max"), [(4, 6)], [(4,)], "R -> R|S(0) -> S(0)|S(1) -> P(max)"),
    (Split("ab->a", filled="b"), [(1, 1)], [(1,)], "R -> R|S(0) -> S(0)"),
    (Split("->a"), [], [(4,)], " -> R| -> S(0)"),
    (Split("k,k,->", added=(2,)), [(4,), (4,), ()], [()], "R R R -> R|S(0) S(0) P(sum) -> P(sum)"),
    (Split("a->a,", reduce="sum,max"), [(4,)], [(4,), ()], "R -> R R|S(0) -> S(0) P(max)"),
    (Split("a->a,a", linear=((0,),), still=(1,)), [(4,)], [(4,)] * 2, "R -> R R|S(0) -> S(0) S(0)|P(sum) -> P(sum) R"),
    (Split("->", reduce="max", terms=True), [()], [()], "R -> P(max)"),
    (Split("a.->a"), [(4, 3)], [(12,)], "R -> R|S(0) -> S(0)"),
    (Split("a.->a"), [(5, 3)], [(15,)], "R -> R"),
]  # fmt: skip


@pytest.mark.parametrize(("split", "ins", "outs", "expected"), NOTATION, ids=str)
def test_the_notation(split: Split, ins: Any, outs: Any, expected: str) -> None:
    assert shown(split, ins, outs, 2) == expected.split("|")


def test_dims_beyond_the_alphabet_stay_whole() -> None:
    many = TensorType((1,) * 60 + (2, 2))
    for name, attrs in (("add", {}), ("matmul", {}), ("sum", {"dim": (0, 61), "keepdim": False, "dtype": None})):
        operands = (many,) if attrs else (many, many)
        inferred = OPS[name].infer(*operands, **attrs)
        split = OPS[name].split(*operands, **attrs)
        assert len(rows(split, operands, (inferred,), 2)) > 1
