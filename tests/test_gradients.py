"""Every op with a gradient, every sample: the gradients, and their gradients, are those of torch's autograd.

Floating operands are in float64 (halves stay as they are, compared with their own tolerance), the cotangents random.
"""

from __future__ import annotations

import re
import warnings
import zlib
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.client.grad import backward
from gt.client.tensor.emit import call, call_many
from gt.client.tensor.grad_plan import needed_values
from gt.ops import OPS
from gt.testing import Cluster
from gt.types import SCALAR_OF
from tests.support.oracle import expected
from tests.support.samples import Sample, T, V, samples
from tests.support.samples_nn import WITH_STATISTICS

#: Ops whose second gradient is that of another op.
THROUGH = {"value_selecting_reduction_backward": "gather", "cummaxmin_backward": "gather"}


#: What torch says where it has no gradient; whatever else it says is a failure. Each text with the ops it may come
#: from, in the first or (marked so) the second order.
NOT_IN_TORCH = {
    r"derivative for aten::\w+ is not implemented": {
        *("silu_backward", "mish_backward", "hardsigmoid_backward", "remainder", "ctc_loss_backward"),
        *("second hardsigmoid", "second attention", "second ctc_loss"),
        *("second grid_sample", "grid_sample_backward"),  # before torch 2.13
    },
    r"the derivative for '\w+(: \w+)?' is not implemented": {"igamma", "nextafter"},  # the latter before torch 2.13
    "output_padding is not supported for non-transposed convolutions": {"second convolution_backward"},
    "cannot reshape tensor of 0 elements into shape": {"second embedding"},
    '"i1_backward" not implemented for': {"i1"},  # in half precision
    "linalg_eig_backward: The eigenvectors in the complex case": {"eig"},  # see tests/test_factors.py
    r"Expected isFloatingType\(grad": {"where", "masked_fill"},  # of real and complex operands
}


#: Gradients that torch 2.15 changed: those of equal values in `clamp` and `fmin`, and those at NaN. GT follows 2.13.
CHANGED_IN_TORCH = (
    "clamp(float64[5,3], -1, 2, has_min=True, has_max=True)",
    "clamp(float64[5,3], 0.5, 2, has_min=True, has_max=True)",
    "clamp(bfloat16[5,3], -1, 2, has_min=True, has_max=True)",
    "clamp(float64[5,3], float64[3], 1, has_min=True, has_max=True)",
    "clamp(float64[5,3], float64[3], int64[], has_min=True, has_max=True)",
    "clamp(int32[5,3], float64[3], float64[5,1], has_min=True, has_max=True)",
    "i0(float64[6]:special)",
    "i1(float64[6]:special)",
    "fmin(float64[], float64[4])",
)
IS_CHANGED = torch.__version__ >= "2.15"


#: op -> what GT says where torch has a second gradient and GT has none
REFUSED = {"grid_sample": "grid_sample has no second gradient by the grid"}


def not_in_torch(error: Exception, where: str) -> None:
    expected_gap = any(re.match(text, str(error)) and where in ops for text, ops in NOT_IN_TORCH.items())
    if not expected_gap:
        raise error


def _differentiable() -> list[Sample]:
    chosen = {}
    for sample in samples():
        if OPS[sample.op].vjp is not None and sample.op not in WITH_STATISTICS and not _refused(sample.op):
            widened = replace(sample, operands=tuple(map(_wide, sample.operands)))
            if sample.op.endswith("_backward") and "float16" in str(sample):
                continue  # in halves the ops they belong to are enough
            if any(
                isinstance(x, T | V) and x.dtype.startswith(("float", "bfloat", "complex")) for x in widened.operands
            ):
                chosen[str(widened)] = widened
    return list(chosen.values())


def _refused(op: str) -> bool:
    """Whether its gradient is the second gradient of an op that may have none."""
    return op.removesuffix("_backward") in REFUSED and op.endswith("_backward")


def _wide(x: Any) -> Any:
    wider = {"float32": "float64", "complex64": "complex128"}
    return replace(x, dtype=wider.get(x.dtype, x.dtype)) if isinstance(x, T | V) else x


SAMPLES = _differentiable()
TOLERANCE = {
    torch.complex128: (1e-9, 1e-9),
    torch.float64: (1e-9, 1e-10),
    torch.float16: (2e-2, 2e-2),
    torch.bfloat16: (1e-1, 1e-1),
}


@pytest.fixture(scope="module", autouse=True)
def _client() -> Iterator[None]:
    with Cluster().client():
        yield


def test_every_op_has_a_gradient_or_a_reason() -> None:
    assert {name for name, op in OPS.items() if op.vjp is None} == {name for name, op in OPS.items() if op.no_gradient}


def to_gt(x: Any) -> Any:
    if not isinstance(x, torch.Tensor):
        return x
    x = x.detach()
    return (
        gt.tensor(x.float().numpy()).bfloat16()
        if x.dtype is torch.bfloat16
        else gt.tensor(x.resolve_conj().resolve_neg().numpy())
    )


def to_torch(x: Any) -> torch.Tensor:
    x = x.detach()
    if x.dtype is gt.bfloat16:
        return torch.tensor(x.float().numpy()).bfloat16()
    return torch.tensor(np.array(x.numpy()))


def close(got: Any, want: torch.Tensor | None) -> None:
    if want is None:
        if got is not None:  # NaN: of what there is no end of
            result = to_torch(got).nan_to_num()
            torch.testing.assert_close(
                result, torch.zeros_like(result), rtol=0, atol=TOLERANCE.get(result.dtype, (0, 1e-5))[1]
            )
        return
    result = torch.zeros_like(want) if got is None else to_torch(got)
    assert (result.shape, result.dtype) == (want.shape, want.dtype)
    rtol, atol = TOLERANCE.get(want.dtype, (1e-4, 1e-5))
    torch.testing.assert_close(result, want.detach(), rtol=rtol, atol=atol, equal_nan=True)


def floats(x: Any) -> bool:
    return isinstance(x, torch.Tensor) and (x.dtype.is_floating_point or x.dtype.is_complex)


def forward(sample: Sample, operands: list[Any]) -> tuple[Any, ...]:
    op, attrs = OPS[sample.op], tuple(sample.attrs.items())
    types = tuple(x._type if isinstance(x, gt.Tensor) else SCALAR_OF[type(x)] for x in operands)
    several = len(op.result_types(types, attrs)) > 1
    return call_many(op, tuple(operands), attrs) if several else (call(op, tuple(operands), attrs),)


@pytest.mark.parametrize("sample", SAMPLES, ids=str)
def test_gradients_are_torchs(sample: Sample) -> None:
    if IS_CHANGED and str(sample) in CHANGED_IN_TORCH:
        pytest.skip("torch 2.15 has other gradients here")
    operands = sample.make()
    rng = torch.Generator().manual_seed(zlib.crc32(str(sample).encode()))
    places = [i for i, x in enumerate(operands) if floats(x)]
    alone = [[i] for i in places] if len(places) > 1 else []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for chosen in [places, *alone]:
            ours = [to_gt(x).requires_grad_() if i in chosen else to_gt(x) for i, x in enumerate(operands)]
            theirs = [x.clone().requires_grad_() if i in chosen else x for i, x in enumerate(operands)]
            compare(sample, ours, theirs, chosen, rng)


def drawn(like: torch.Tensor, rng: Any) -> torch.Tensor:
    dtype = torch.complex128 if like.is_complex() else torch.float64
    return torch.randn(like.shape, generator=rng, dtype=dtype).to(like.dtype)


def compare(sample: Sample, ours: list[Any], theirs: list[Any], chosen: list[int], rng: Any) -> None:
    types = [x._type if isinstance(x, gt.Tensor) else SCALAR_OF[type(x)] for x in ours]
    if not any(t.dtype.kind in "fc" for t in OPS[sample.op].result_types(tuple(types), tuple(sample.attrs.items()))):
        return
    with torch.enable_grad():
        try:
            outputs = expected(sample, theirs)
            wanted = [y for y in outputs if floats(y) and y.requires_grad]
            cotangent_values = [drawn(y, rng) for y in wanted]
            cotangents = [c.clone().requires_grad_() for c in cotangent_values]
            leaves = [theirs[i] for i in chosen]
            want = torch.autograd.grad(wanted, leaves, cotangents, create_graph=True, allow_unused=True)
        except RuntimeError as error:
            not_in_torch(error, sample.op)
            return
    if not wanted:
        return
    results = [y for y, w in zip(forward(sample, ours), outputs, strict=True) if floats(w) and w.requires_grad]
    our_cotangents = [to_gt(c).requires_grad_() for c in cotangent_values]
    our_leaves = [ours[i] for i in chosen]
    got = backward.grad(results, our_leaves, our_cotangents, create_graph=True, allow_unused=True)
    for g, w in zip(got, want, strict=True):
        close(g, w)
    if OPS[THROUGH.get(sample.op, sample.op)].vjp is not None:
        second(sample.op, got, want, [*our_leaves, *our_cotangents], [*leaves, *cotangents], rng)


def second(op: str, got: Any, want: Any, ours: list[Any], theirs: list[Any], rng: Any) -> None:
    """The gradients of the gradients, where torch has them."""
    pairs = [(g, w) for g, w in zip(got, want, strict=True) if w is not None and w.requires_grad and g is not None]
    if not pairs or pairs[0][1].dtype not in (torch.float64, torch.complex128):
        return
    cotangents = [drawn(w, rng) for _, w in pairs]
    try:
        wanted = torch.autograd.grad([w for _, w in pairs], theirs, cotangents, allow_unused=True)
    except RuntimeError as error:
        not_in_torch(error, f"second {op}")
        return
    ways = [(g, to_gt(c)) for (g, _), c in zip(pairs, cotangents, strict=True) if g.requires_grad]
    try:
        gradients = backward.grad([g for g, _ in ways], ours, [c for _, c in ways], allow_unused=True) if ways else ()
    except gt.GradError as error:
        if not str(error).startswith(REFUSED.get(op, "no text")):
            raise
        return
    for g, w in zip(gradients or [None] * len(ours), wanted, strict=True):
        close(g, w)


# -- memory ------------------------------------------------------------------------------

#: op -> which operands it keeps of two (or one), and whether the result, when all need gradients
KEEPS = {
    "add": (set(), False),
    "sub": (set(), False),
    "mul": ({0, 1}, False),
    "matmul": ({0, 1}, False),
    "exp": (set(), True),
    "tanh": (set(), True),
    "sigmoid": (set(), True),
    "sqrt": (set(), True),
    "relu": (set(), True),
    "softmax": (set(), True),
    "log_softmax": (set(), True),
    "log": ({0}, False),
    "sin": ({0}, False),
    "gelu": ({0}, False),
    "silu": ({0}, False),
    "abs": ({0}, False),
    "sum": (set(), False),
    "mean": (set(), False),
    "to": (set(), False),
    "clone": (set(), False),
    "reshape": (set(), False),
    "permute": (set(), False),
    "expand": (set(), False),
    "cumsum": (set(), False),
}


@pytest.mark.parametrize("name", KEEPS)
def test_an_op_keeps_what_torch_keeps(name: str) -> None:
    op = OPS[name]
    assert isinstance(op.vjp, tuple)
    results, operands = needed_values(op, (True,) * len(op.vjp))
    assert (set(operands), bool(results)) == KEEPS[name]


def test_a_product_keeps_only_the_other() -> None:
    for name in ("mul", "matmul"):
        assert needed_values(OPS[name], (True, False)) == (frozenset(), {1})
        assert needed_values(OPS[name], (False, True)) == (frozenset(), {0})


def test_an_extreme_keeps_where_it_was_and_not_what() -> None:
    assert needed_values(OPS["max_dim"], (True,), 2) == ({1}, frozenset())
