"""Positions out of range: `Op.positions` says what kernels refuse, and compiled code fails instead of its process."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import gt
from gt.ops import OPS, sign
from gt.ops.positions import Positions
from gt.testing import Cluster
from gt.types import FLOAT, TensorType, float32, int64
from gt.worker.engines import make_engine
from gt.worker.hot.levels import Levels
from tests.support.samples import Sample, samples, type_of
from tests.test_hot_levels import folder  # noqa: F401, a fixture
from tests.test_hot_levels import section as make_section

ENGINE = make_engine("torch", "cpu")
INTS = (torch.int32, torch.int64)
FAR = 10**6


def outside(op: str, operands: list[Any], attrs: dict[str, Any]) -> bool:
    declared: Any = OPS[op].positions
    positions: tuple[Positions, ...] = declared(*map(type_of, operands), **attrs) if declared else ()
    for at in positions:
        least = -at.size if at.from_end else 0
        if any(not least <= v < at.size and v != at.ignored for v in operands[at.operand].flatten().tolist()):
            return True
    return False


def refused(sample: Sample, operands: list[Any]) -> bool:
    signature = sign(OPS[sample.op], tuple(sample.attrs.items()), tuple(map(type_of, operands)), False)
    try:
        ENGINE.link(signature)(*operands)
    except (IndexError, RuntimeError) as error:
        return re.search("out of (bounds|range)", str(error)) is not None
    except ValueError:  # the values decide more than positions: a count, or the sizes of packed batches
        assert OPS[sample.op].reads_values
    return False


def moved(sample: Sample) -> list[list[Any]]:
    """The operands with one integer far away, for each that is a tensor of integers."""
    variants = []
    for k, x in enumerate(sample.make()):
        if isinstance(x, torch.Tensor) and x.dtype in INTS and x.numel():
            for value in (FAR, -FAR):
                operands = [y.clone() if isinstance(y, torch.Tensor) else y for y in sample.make()]
                operands[k].view(-1)[-1] = value
                variants.append(operands)
    return variants


def with_integers() -> dict[str, list[Sample]]:
    by_op: dict[str, list[Sample]] = {}
    for sample in samples():
        if not OPS[sample.op].effects and any(getattr(x, "dtype", None) in INTS for x in sample.make()):
            by_op.setdefault(sample.op, []).append(sample)
    return by_op


SAMPLES = with_integers()


@pytest.mark.parametrize("op", sorted(SAMPLES))
@pytest.mark.filterwarnings("ignore")
def test_an_entry_says_what_its_kernel_refuses(op: str) -> None:
    refusals = 0
    with torch.no_grad():
        for sample in SAMPLES[op]:
            assert not outside(op, sample.make(), sample.attrs), sample
            for operands in moved(sample):
                was = refused(sample, operands)
                assert was == outside(op, operands, sample.attrs), sample
                refusals += was
    assert bool(refusals) == (OPS[op].positions is not None)


def test_every_entry_with_positions_has_samples() -> None:
    assert {name for name, op in OPS.items() if op.positions} <= set(SAMPLES)


ROWS, ITEMS, WIDE = 2000, 3000, 64


def calls() -> list[tuple[str, tuple[Any, ...], dict[str, Any], tuple[int, ...]]]:
    """(op, operands, attributes, shape of the result); "row" and "class" are positions, in one dim and in two."""
    x, items = (ROWS, WIDE), (ITEMS, WIDE)
    pool = {"size": (ROWS,), "window": ()}
    none = {"reduction": "none", "ignore_index": -100}
    return [
        ("index", (x, "row"), {"dims": (0,)}, items),
        ("index_put", (x, items, "row"), {"dims": (0,), "accumulate": True}, x),
        ("index_backward", (items, "row"), {"dims": (0,), "shape": x}, x),
        ("embedding", (x, "row"), {"padding_idx": -1, "by_freq": False}, items),
        ("gather", (x, "rows"), {"dim": 0}, items),
        ("scatter", (x, "rows", 1.5), {"dim": 0}, x),
        ("scatter_add", (x, "rows", items), {"dim": 0}, x),
        ("scatter_reduce", (x, "rows", items), {"dim": 0, "reduce": "amax", "include_self": True}, x),
        ("cummaxmin_backward", (items, "rows"), {"dim": 0}, items),
        (
            "value_selecting_reduction_backward",
            ((ITEMS,), "row"),
            {"dim": 1, "size": ROWS, "keepdim": False},
            (ITEMS, ROWS),
        ),
        ("nll_loss", ((ITEMS, ROWS), "row"), none, (ITEMS,)),
        ("nll_loss_backward", ((ITEMS,), (ITEMS, ROWS), "row"), none, (ITEMS, ROWS)),
        ("cross_entropy", ((ITEMS, ROWS), "row"), {**none, "dtype": None}, (ITEMS,)),
        ("cross_entropy_backward", ((ITEMS,), (ITEMS, ROWS), "row"), {**none, "dtype": None}, (ITEMS, ROWS)),
        ("max_pool_backward", ((1, 4, ITEMS), "planes"), pool, (1, 4, ROWS)),
    ]


SHAPES = {"row": (ITEMS,), "rows": (ITEMS, WIDE), "planes": (1, 4, ITEMS)}


def all_in_one() -> tuple[Any, list[Any], dict[str, int], list[int]]:
    """A section of all calls; its inputs; for each call the input with its positions; and the numbers it runs with."""
    inputs: list[Any] = []
    steps, holders, results, numbers = [], {}, [], []
    listed = calls()
    count = sum(1 for _, operands, _, _ in listed for x in operands if not isinstance(x, float))
    for at, (name, operands, attrs, _) in enumerate(listed):
        types: list[Any] = []
        slots = []
        for x in operands:
            if isinstance(x, float):
                types.append(FLOAT)
                slots.append(~len(numbers))
                numbers.append(x)
                continue
            shape = SHAPES[x] if isinstance(x, str) else x
            types.append(TensorType(shape, int64 if isinstance(x, str) else float32))
            slots.append(len(inputs))
            if isinstance(x, str):
                holders[name] = len(inputs)
            inputs.append(torch.randint(0, ROWS, shape) if isinstance(x, str) else torch.randn(shape))
        steps.append((name, tuple(types), tuple(slots), (count + at,), False, attrs))
        results.append(count + at)
    return make_section(*steps, inputs=count, results=tuple(results), compile=True), inputs, holders, numbers


@pytest.fixture
def two_threads() -> Any:
    """torch compiles large loops for several threads; an exception in one of them ends the process."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_compiled_code_fails_and_not_its_process(two_threads: Any) -> None:
    section, inputs, holders, numbers = all_in_one()
    # what reads values on a CPU is not compiled here
    assert set(holders) == {name for name, op in OPS.items() if op.positions and not op.reads_values}
    levels = Levels(ENGINE, "off")
    assert levels.run(section, inputs, numbers, {}) is not None, levels.stats()
    for name, k in holders.items():
        for value in (FAR, -FAR, ROWS if name != "cummaxmin_backward" else ITEMS):
            levels = without_errors(levels, section, inputs, numbers)
            changed = [x.clone() for x in inputs]
            changed[k].view(-1)[77] = value
            assert levels.run(section, changed, numbers, {}) is None, (name, value)


def test_an_index_into_a_dim_of_size_0_runs_by_steps() -> None:
    t, at = TensorType((0, 3), float32), TensorType((2,), int64)
    how = {"padding_idx": -1, "by_freq": False}
    section = make_section(("embedding", (t, at), (0, 1), (2,), False, how), inputs=2, results=(2,), compile=True)
    levels = Levels(ENGINE, "off")
    assert levels.run(section, [torch.zeros(0, 3), torch.tensor([0, 1])], [], {}) is None
    assert levels.stats()[0]["reasons"] == ["embedding indexes a dim of size 0"]


def test_a_fragment_that_writes_its_inputs_fails_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bad positions were replaced by 0, so what it wrote is wrong and must not be read."""
    monkeypatch.setenv("GT_TEMPLATES", "1")
    cluster = Cluster()
    (worker,) = cluster.workers.values()
    worker.replayer.levels = Levels(ENGINE, "all")
    with cluster.client():
        weight, kept = gt.zeros(4), gt.ones(2)
        indices = [gt.full((2,), 9 if k == 5 else 1, dtype=gt.int64) for k in range(6)]
        gt.step()
        for index in indices:
            weight.index_add_(0, index, kept)
            result = (weight * 2).tanh() + kept.sum() * 3
            gt.step()
            cluster.settle()
        assert "compiled" in [entry["level"] for entry in worker.replayer.levels.stats()]
        with pytest.raises(gt.RemoteError, match="a position is out of range"):
            weight.numpy()
        with pytest.raises(gt.RemoteError, match="a position is out of range"):
            result.numpy()
        assert kept.numpy().tolist() == [1, 1]


def without_errors(levels: Levels, section: Any, inputs: list[Any], numbers: list[Any]) -> Levels:
    """Reset the error count: compiled code is given up after a few errors."""
    (switch,) = levels._switches.values()
    switch.errors = 0
    assert levels.run(section, inputs, numbers, {}) is not None
    return levels
