"""Every op, every sample: the torch engine, the numpy engine, torch itself and the inferred types all agree."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from gt.errors import DTypeError, GtError
from gt.ops import OPS, Op, sign
from gt.types import Scalar, TensorType
from gt.worker.engines import make_engine
from tests.support.oracle import (
    DIFFERENT_ON_A_GPU,
    SETTLED,
    TOLERANCES,
    TOLERANCES_OF_NUMPY,
    TOLERANCES_ON_A_GPU,
    expected,
)
from tests.support.samples import LIMITS, Limit, Sample, T, samples, type_of

SAMPLES = samples()
ENGINES = {name: make_engine(name, "cpu") for name in ("torch", "numpy")}
if torch.cuda.is_available():
    ENGINES["cuda"] = make_engine("torch", "cuda:0")


NOT_OF_INTEGERS = {limit.sample.op for limit in LIMITS if limit.where == "cuda"}


def over(chosen: list[Sample]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("sample", chosen, ids=str)


def engines(sample: Sample) -> Iterator[str]:
    """Those that can run it, one after the other (see LIMITS)."""
    integers = not any(t.dtype.kind == "f" for t in map(type_of, sample.make()) if not isinstance(t, Scalar))
    cannot = {"numpy": "bfloat16" in str(sample), "cuda": sample.op in NOT_OF_INTEGERS and integers}
    for engine in ENGINES:
        if not cannot.get(engine):
            print("engine:", engine)  # pytest shows it if the test fails
            yield engine


@pytest.fixture(autouse=True)
def _as_in_the_worker() -> Iterator[None]:
    """Without gradients; and cudnn computes in the full precision of float32, so that results can be compared."""
    with torch.no_grad(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


def run(
    engine: str, sample: Sample, operands: list[Any], into: bool = False
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The results on one engine, and their inferred types."""
    types = tuple(map(type_of, operands))
    signature = sign(OPS[sample.op], tuple(sample.attrs.items()), types, into)
    linked = ENGINES[engine].link(signature)
    arguments = [as_array(engine, x) for x in operands]
    with warnings.catch_warnings():
        if sample.warns:
            warnings.filterwarnings("ignore", f".*{sample.warns}", UserWarning)
        outputs = linked(*arguments)
    results = tuple(outputs) if len(signature.outs) > 1 else (outputs,)
    return results, signature.outs


def as_array(engine: str, x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    return {"numpy": lambda: x.numpy(), "torch": lambda: x, "cuda": lambda: x.cuda()}[engine]()


def agree(engine: str, sample: Sample, results: Any, wanted: Any) -> None:
    results = [torch.tensor(r) if isinstance(r, np.ndarray) else r.cpu() for r in results]
    if engine == "cuda" and sample.op in DIFFERENT_ON_A_GPU:
        wanted = [w.cpu() for w in quietly(sample, [as_array(engine, x) for x in sample.make()])]
    if sample.op in SETTLED:
        results, wanted = SETTLED[sample.op](*results), SETTLED[sample.op](*wanted)
    first = type_of(sample.make()[0])
    known = {"cuda": TOLERANCES_ON_A_GPU, "numpy": TOLERANCES_OF_NUMPY}.get(engine, {})
    tolerance = known.get((sample.op, first.dtype.name)) if isinstance(first, TensorType) else None
    for got, want in zip(results, wanted, strict=True):
        same(got, want, tolerance)


def same(got: Any, want: torch.Tensor, tolerance: tuple[float, float] | None = None) -> None:
    got = torch.tensor(got) if isinstance(got, np.ndarray) else got.cpu()
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    if torch.equal(got, want):
        return
    rtol, atol = tolerance or TOLERANCES.get(str(want.dtype).removeprefix("torch."), (0, 0))
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True)


def quietly(sample: Sample, operands: list[Any]) -> tuple[torch.Tensor, ...]:
    with warnings.catch_warnings():
        if sample.warns:
            warnings.filterwarnings("ignore", f".*{sample.warns}", UserWarning)
        return expected(sample, operands)


def test_every_op_has_a_sample() -> None:
    assert set(OPS) == {s.op for s in SAMPLES}


@over(SAMPLES)
def test_agrees_with_torch(sample: Sample) -> None:
    untouched = sample.make()
    wanted = quietly(sample, untouched)
    for engine in engines(sample):
        operands = [as_array(engine, x) for x in sample.make()]
        results, types = run(engine, sample, operands)
        assert tuple(map(type_of, wanted)) == types
        agree(engine, sample, results, wanted)
        for after, before in zip(operands, untouched, strict=True):
            assert not isinstance(before, torch.Tensor) or same(after, before) is None, "an op changes no operand"
        check_memory(OPS[sample.op], operands, results)


def check_memory(op: Op, operands: list[Any], results: tuple[Any, ...]) -> None:
    """A view shares its first operand's memory; every other result has memory of its own, all of it writable."""
    arrays = [x for x in operands if isinstance(x, torch.Tensor | np.ndarray)]
    for place, result in enumerate(results):
        if not type_of(result).numel:
            continue
        if op.view:
            assert shares_memory(result, operands[0])
        else:
            assert not any(shares_memory(result, other) for other in (*arrays, *results[:place]))
            assert all(size < 2 or stride for size, stride in zip(result.shape, strides(result), strict=True))
            assert isinstance(result, torch.Tensor) or result.flags.writeable


def shares_memory(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return bool(np.shares_memory(a, b))
    return bool(a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr())


def strides(x: Any) -> tuple[int, ...]:
    return x.stride() if isinstance(x, torch.Tensor) else x.strides


def has_strides(x: Any) -> bool:
    return isinstance(x, T) and len(x.shape) > 1 and 0 not in x.shape


@over([s for s in SAMPLES if any(map(has_strides, s.operands))])
def test_strides_do_not_matter(sample: Sample) -> None:
    operands = sample.make()
    wanted = quietly(sample, operands)
    for engine in engines(sample):
        for laid_out in (_transposed, _spaced):
            results, _ = run(engine, sample, [laid_out(x) for x in operands])
            agree(engine, sample, results, wanted)


def _spaced(x: Any) -> Any:
    """The same values, each beside one that is none of them."""
    if not isinstance(x, torch.Tensor) or not x.ndim:
        return x
    wider = torch.ones(*x.shape, 2, dtype=x.dtype)
    wider[..., 0] = x
    return wider[..., 0]


def _transposed(x: Any) -> Any:
    """The same values, laid out columns first."""
    return x.mT.contiguous().mT if isinstance(x, torch.Tensor) and x.ndim > 1 else x


def _in_place() -> list[Sample]:
    """The samples whose result fits into their first operand."""
    fitting = []
    for sample in SAMPLES:
        types = tuple(map(type_of, sample.make()))
        if not types or isinstance(types[0], Scalar) or (OPS[sample.op].view and not OPS[sample.op].inplace):
            continue
        try:
            sign(OPS[sample.op], tuple(sample.attrs.items()), types, into=True)
        except GtError:
            continue
        fitting.append(sample)
    return fitting


IN_PLACE = _in_place()


def test_every_kernel_in_place_has_a_sample() -> None:
    assert {name for name, op in OPS.items() if op.inplace} <= {s.op for s in IN_PLACE}


@over(IN_PLACE)
def test_in_place_is_the_same_written_over(sample: Sample) -> None:
    wanted = [w.to(x.dtype) for w, x in zip(quietly(sample, sample.make()), sample.make(), strict=False)]
    for engine in engines(sample):
        for lay_out in (lambda x: x, _transposed, _spaced):
            arguments = [as_array(engine, lay_out(x)) for x in sample.make()]
            results, _ = run(engine, sample, arguments, into=True)
            kept = list(zip(results, arguments, wanted, strict=False))
            assert all(got is target for got, target, _ in kept)
            agree(engine, sample, [got for got, _, _ in kept], [want for _, _, want in kept])


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.why)
def test_limits_are_still_there(limit: Limit) -> None:
    operands = limit.sample.make()
    if limit.where == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    engine = ENGINES.get(limit.where, ENGINES["torch"])
    moved = [x.to(engine.device) if isinstance(x, torch.Tensor) else x for x in operands]

    def call() -> None:
        signature = sign(OPS[limit.sample.op], tuple(limit.sample.attrs.items()), tuple(map(type_of, operands)))
        assert limit.where != "infer", "inference takes it now"
        engine.link(signature)(*[as_array(engine.name, x) for x in moved])

    with pytest.raises(limit.error):
        call()


def test_dividing_integers_by_zero_stops_on_both_engines() -> None:
    for op in ("floor_divide", "remainder", "fmod"):
        sample = Sample(op, ())
        for engine in ("torch", "numpy"):  # a GPU gives any number, as torch's does
            with pytest.raises((ZeroDivisionError, RuntimeError)):
                run(engine, sample, [torch.tensor([1, 2]), torch.tensor([1, 0])])


def test_the_numpy_engine_refuses_bfloat16_by_name() -> None:
    with pytest.raises(DTypeError, match="no bfloat16; use float32, or a worker with --backend torch"):
        run("numpy", Sample("clone", ()), [torch.zeros(2, dtype=torch.bfloat16)])
