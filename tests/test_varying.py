"""Numbers in memory: what an op gives with 0-d tensors in the place of its numbers is what it gives with those."""

from __future__ import annotations

import pytest
import torch

from gt.errors import DTypeError, ShapeError
from gt.ops import OPS, sign
from gt.ops.varying import always, unfit, vary
from gt.types import BYTES, INT, Scalar
from gt.worker.engines import make_engine
from tests.support.samples import Sample, samples, type_of

ENGINE = make_engine("torch", "cpu")
CPU = torch.device("cpu")
#: no graph holds complex numbers
SAMPLES = [s for s in samples() if "complex" not in str(s)]
WITH_NUMBERS = [s for s in SAMPLES if any(isinstance(x, int | float) for x in s.operands) and not OPS[s.op].effects]
TOLERANCES = {"float64": 1e-11, "float32": 2e-5, "float16": 4e-3, "bfloat16": 2e-2}


def signed(sample: Sample, into: bool = False):
    operands = sample.make()
    return sign(OPS[sample.op], tuple(sample.attrs.items()), tuple(map(type_of, operands)), into), operands


def in_memory(numbers):
    return [torch.tensor(n, dtype=torch.float64 if isinstance(n, float) else torch.int64) for n in numbers]


def agree(a: torch.Tensor, b: torch.Tensor) -> bool:
    tolerance = TOLERANCES.get(str(a.dtype).removeprefix("torch."), 0)
    return a.dtype == b.dtype and torch.allclose(a, b, tolerance, tolerance, equal_nan=True)


def tuples(results):
    return results if isinstance(results, tuple) else (results,)


def check(sample: Sample, into: bool, compiled: bool) -> bool:
    signature, operands = signed(sample, into)
    numbers = tuple(x for x, t in zip(operands, signature.ins, strict=True) if isinstance(t, Scalar))
    changing = always(signature, compiled) or frozenset(range(len(numbers)))
    varied = vary(signature, numbers, changing, CPU, compiled)
    if varied is None:
        return False
    tensors = [x for x in operands if isinstance(x, torch.Tensor)]
    expected = tuples(ENGINE.link(signature)(*(x.clone() if isinstance(x, torch.Tensor) else x for x in operands)))
    results = tuples(varied.run(*(x.clone() for x in tensors), *in_memory(varied.derive(numbers))))
    assert len(expected) == len(results)
    for a, b in zip(expected, results, strict=True):
        assert agree(a, b), f"{a} is not {b}"
    return True


@pytest.mark.parametrize("name", sorted({s.op for s in WITH_NUMBERS}))
def test_a_number_in_memory_is_the_same_number(name: str) -> None:
    tried = 0
    for sample in (s for s in WITH_NUMBERS if s.op == name):
        if BYTES not in signed(sample)[0].ins:
            tried += check(sample, into=False, compiled=False)
    assert tried or not OPS[name].common


@pytest.mark.parametrize("name", ["put_view", "index_put", "masked_fill", "mul", "addcmul", "lerp"])
def test_in_place(name: str) -> None:
    tried = 0
    for sample in (s for s in WITH_NUMBERS if s.op == name):
        try:
            signed(sample, into=True)
        except (ShapeError, DTypeError):
            continue
        tried += check(sample, into=True, compiled=False)
    assert tried


STEPS = [s for s in samples() if OPS[s.op].steps]


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("sample", STEPS, ids=str)
def test_a_step_in_place(sample: Sample, compiled: bool) -> None:
    if sample.op == "adafactor_step":
        pytest.skip("its numbers meet in Python")
    if sample.op == "adam_step" and not compiled and sample.operands[0].dtype == "float64":
        pytest.skip("torch's fused kernel takes a learning rate in memory in float32 only")
    assert check(sample, into=True, compiled=compiled)


def test_signatures_that_a_graph_must_not_contain() -> None:
    by_name = {s.op: s for s in SAMPLES}
    complex_abs = next(s for s in samples() if s.op == "abs" and "complex" in str(s))
    assert "complex numbers" in unfit(signed(complex_abs)[0], on_gpu=True)
    assert "depends on values" in unfit(signed(by_name["nonzero"])[0], on_gpu=True)
    whole = sign(OPS["floor_divide"], (), (type_of(torch.ones(3, dtype=torch.int64)), type_of(2)))
    assert "stops at a division by zero" in unfit(whole, on_gpu=False)
    assert not unfit(whole, on_gpu=True)
    assert not unfit(signed(by_name["matmul"])[0], on_gpu=False)
    assert "depends on values" in unfit(signed(by_name["svd"])[0], on_gpu=False)
    assert not unfit(signed(by_name["svd"])[0], on_gpu=True)


STARTING = [s for s in WITH_NUMBERS if s.op in ("slice", "put_view", "view_backward")]


@pytest.mark.parametrize("sample", STARTING, ids=str)
def test_starts_in_memory_are_checked(sample: Sample) -> None:
    """As the op's own kernel checks them: the one that reads starts from memory would read past the tensor."""
    signature, operands = signed(sample)
    at = [i for i, t in enumerate(signature.ins) if isinstance(t, Scalar)]
    varied = vary(signature, tuple(operands[i] for i in at), frozenset(range(len(at))), CPU, compiled=True)
    assert varied is not None
    for i in at:
        for start in range(-2, 9) if signature.ins[i] is INT and i else ():
            changed = [
                start if k == i else x.clone() if isinstance(x, torch.Tensor) else x for k, x in enumerate(operands)
            ]
            assert fails(ENGINE.link(signature), *changed) == fails(varied.derive, tuple(changed[k] for k in at)), (
                i,
                start,
            )


def fails(run, *arguments) -> bool:
    try:
        run(*arguments)
    except IndexError:
        return True
    return False
