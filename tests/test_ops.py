"""Every op, every sample: the torch engine, the numpy engine, torch itself and the inferred types all agree."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from gt.errors import DTypeError, GtError
from gt.ops import OPS, sign
from gt.types import Scalar
from gt.worker.engines import make_engine
from tests.oracle import expected
from tests.samples import LIMITS, Limit, Sample, samples, type_of

SAMPLES = samples()
ENGINES = {name: make_engine(name, "cpu") for name in ("torch", "numpy")}
every = pytest.mark.parametrize("sample", SAMPLES, ids=str)
on_each_engine = pytest.mark.parametrize("engine", ENGINES)

#: (relative, absolute): how far results may be apart by rounding
TOLERANCES = {"float64": (1e-11, 1e-12), "float32": (2e-5, 1e-5), "float16": (4e-3, 4e-3), "bfloat16": (2e-2, 2e-2)}


@pytest.fixture(autouse=True)
def _no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def run(
    engine: str, sample: Sample, operands: list[Any], into: bool = False
) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """The results on one engine, and their inferred types."""
    types = tuple(map(type_of, operands))
    signature = sign(OPS[sample.op], tuple(sample.attrs.items()), types, into)
    given = [as_array(engine, x) for x in operands]
    with warnings.catch_warnings():
        if sample.warns:
            warnings.filterwarnings("ignore", f".*{sample.warns}", UserWarning)
        made = ENGINES[engine].link(signature)(*given)
    results = tuple(made) if len(signature.outs) > 1 else (made,)
    return results, signature.outs


def as_array(engine: str, x: Any) -> Any:
    return x.numpy() if engine == "numpy" and isinstance(x, torch.Tensor) else x


def skip_if_limited(engine: str, sample: Sample) -> None:
    named = {d for d in sample.attrs.values() if isinstance(d, str)} | {
        getattr(x, "dtype", "") for x in sample.operands
    }
    if engine == "numpy" and "bfloat16" in named:
        pytest.skip("numpy has no bfloat16")


def same(got: Any, want: torch.Tensor) -> None:
    got = torch.from_numpy(got) if isinstance(got, np.ndarray) else got
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    rtol, atol = TOLERANCES.get(str(want.dtype).removeprefix("torch."), (0, 0))
    torch.testing.assert_close(got, want, rtol=rtol, atol=atol, equal_nan=True)


def quietly(sample: Sample, operands: list[Any]) -> tuple[torch.Tensor, ...]:
    with warnings.catch_warnings():
        if sample.warns:
            warnings.filterwarnings("ignore", f".*{sample.warns}", UserWarning)
        return expected(sample, operands)


def test_every_op_has_a_sample() -> None:
    assert set(OPS) == {s.op for s in SAMPLES}


@every
@on_each_engine
def test_agrees_with_torch(engine: str, sample: Sample) -> None:
    skip_if_limited(engine, sample)
    operands = sample.make()
    results, types = run(engine, sample, operands)
    wanted = quietly(sample, sample.make())
    assert len(results) == len(wanted) == len(types)
    for got, want, inferred in zip(results, wanted, types, strict=True):
        assert type_of(want) is inferred
        same(got, want)
    for after, before in zip(operands, sample.make(), strict=True):  # an op changes no operand
        assert torch.equal(after.nan_to_num(), before.nan_to_num()) if isinstance(after, torch.Tensor) else True


@every
@on_each_engine
def test_strides_do_not_matter(engine: str, sample: Sample) -> None:
    skip_if_limited(engine, sample)
    operands = sample.make()
    if not any(isinstance(x, torch.Tensor) and x.ndim > 1 for x in operands):
        pytest.skip("nothing here has strides worth the name")
    results, _ = run(engine, sample, [_transposed(x) for x in operands])
    for got, want in zip(results, quietly(sample, operands), strict=True):
        same(got, want)


def _transposed(x: Any) -> Any:
    """The same values, laid out columns first."""
    return x.mT.contiguous().mT if isinstance(x, torch.Tensor) and x.ndim > 1 else x


def shares_memory(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return bool(np.shares_memory(a, b))
    return bool(a.numel()) and a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


@every
@on_each_engine
def test_views_share_memory_and_the_rest_is_fresh(engine: str, sample: Sample) -> None:
    skip_if_limited(engine, sample)
    operands = [as_array(engine, x) for x in sample.make()]
    results, types = run(engine, sample, operands)
    arrays = [x for x in operands if isinstance(x, torch.Tensor | np.ndarray)]
    for place, (result, kind) in enumerate(zip(results, types, strict=True)):
        if OPS[sample.op].view:
            assert shares_memory(result, operands[0]) or not kind.numel
            continue
        assert not any(shares_memory(result, other) for other in (*arrays, *results[:place]))
        assert all(size < 2 or stride for size, stride in zip(result.shape, _strides(result), strict=True))
        assert isinstance(result, torch.Tensor) or result.flags.writeable


def _strides(x: Any) -> tuple[int, ...]:
    return x.stride() if isinstance(x, torch.Tensor) else x.strides


def _in_place() -> list[Sample]:
    """The samples whose result fits into their first operand."""
    found = []
    for sample in SAMPLES:
        types = tuple(map(type_of, sample.make()))
        if not types or isinstance(types[0], Scalar) or OPS[sample.op].view:
            continue
        try:
            sign(OPS[sample.op], tuple(sample.attrs.items()), types, into=True)
        except GtError:
            continue
        found.append(sample)
    return found


IN_PLACE = _in_place()


def test_every_kernel_in_place_has_a_sample() -> None:
    assert {name for name, op in OPS.items() if op.inplace} <= {s.op for s in IN_PLACE}


@pytest.mark.parametrize("strided", [False, True], ids=["contiguous", "transposed"])
@pytest.mark.parametrize("sample", IN_PLACE, ids=str)
@on_each_engine
def test_in_place_is_the_same_written_over(engine: str, sample: Sample, strided: bool) -> None:
    skip_if_limited(engine, sample)
    operands = sample.make()
    if strided and operands[0].ndim < 2:
        pytest.skip("the same as contiguous")
    (want,) = quietly(sample, sample.make())
    given = [as_array(engine, _transposed(x) if strided else x) for x in operands]
    (got,), _ = run(engine, sample, given, into=True)
    assert got is given[0]
    same(got, want.to(operands[0].dtype))


@pytest.mark.parametrize("limit", LIMITS, ids=lambda limit: limit.why)
def test_limits_are_still_there(limit: Limit) -> None:
    operands = limit.sample.make()
    if limit.where == "cuda" and not torch.cuda.is_available():
        pytest.skip("no GPU")
    engine = make_engine("torch", "cuda:0") if limit.where == "cuda" else ENGINES.get(limit.where, ENGINES["torch"])
    moved = [x.to(engine.device) if isinstance(x, torch.Tensor) else x for x in operands]
    arrays = [as_array(engine.name, x) for x in moved]

    def call() -> None:
        signature = sign(OPS[limit.sample.op], tuple(limit.sample.attrs.items()), tuple(map(type_of, operands)))
        assert limit.where != "infer", "inference takes it now"
        engine.link(signature)(*arrays)

    with pytest.raises(limit.error):
        call()


def test_dividing_integers_by_zero_stops_on_both_engines() -> None:
    for op in ("floor_divide", "remainder", "fmod"):
        sample = Sample(op, ())
        for engine in ENGINES:
            with pytest.raises((ZeroDivisionError, RuntimeError)):
                run(engine, sample, [torch.tensor([1, 2]), torch.tensor([1, 0])])


def test_the_numpy_engine_refuses_bfloat16_by_name() -> None:
    with pytest.raises(DTypeError, match="no bfloat16; use float32, or a worker with --backend torch"):
        run("numpy", Sample("clone", ()), [torch.zeros(2, dtype=torch.bfloat16)])
