"""A function that torch has under several names is one function here, and each name agrees with torch."""

from __future__ import annotations

from typing import Any

import pytest

import gt
from gt.functions import activations
from tests.support.worlds import same, session

__all__ = ["session"]

#: F.x and gt.x are the same object
SHARED = ("celu", "celu_", "hardshrink", "prelu", "relu_", "rrelu", "selu", "selu_", "threshold", "threshold_", "tanh")


@pytest.mark.parametrize("name", SHARED)
def test_one_object(name: str) -> None:
    assert getattr(gt, name) is getattr(gt.nn.functional, name)
    assert getattr(gt, name) is getattr(activations, name)


@pytest.mark.parametrize("place", ["gt", "gt.nn.functional"])
@pytest.mark.parametrize(
    "call",
    ["celu(x, 2.0)", "prelu(x, w.abs()[:1])", "prelu(c, w)", "selu(x)", "hardshrink(x, 0.2)",
     "rrelu(x, 0.1, 0.3)", "threshold(x, 0.1, 20.0)", "relu(x)"],
)  # fmt: skip
def test_activations_agree_with_torch(session: Any, place: str, call: str) -> None:
    same(f"{place}.{call}")


@pytest.mark.parametrize("place", [gt, gt.nn.functional])
def test_activations_refuse_what_torch_refuses(session: Any, place: Any) -> None:
    x = gt.ones(2, 3)
    with pytest.raises(gt.ShapeError, match="alpha must not be 0"):
        place.celu(x, 0)
    with pytest.raises(gt.ShapeError, match="one weight, or one for each of 3 channels"):
        place.prelu(x, gt.ones(1, 3))
    with pytest.raises(gt.ShapeError, match="lower is greater than upper"):
        place.rrelu(x, 0.5, 0.1)


NORMS = [
    "gt.norm(x, 3)", "gt.linalg.vector_norm(x, 3)", "gt.linalg.norm(x, 1)", "gt.linalg.norm(x)", "gt.norm(x, 'nuc')",
    "gt.linalg.matrix_norm(x, 'nuc')", "gt.norm(x.float(), 2, 1, dtype=gt.float64)", "gt.linalg.norm(x, 'nuc')",
    "gt.linalg.vector_norm(x.float(), 2, 1, dtype=gt.float64)", "gt.linalg.matrix_norm(x.float(), dtype=gt.float64)",
    "gt.dist(x, y, 3)", "gt.linalg.svdvals(x)",
]  # fmt: skip


@pytest.mark.parametrize("expression", [*NORMS, "gt.vander(w)", "gt.vander(w, 2, True)", "gt.linalg.vander(w, N=4)"])
def test_norms_and_powers_agree_with_torch(session: Any, expression: str) -> None:
    same(expression)


def test_a_derived_function_has_a_signature_and_a_docstring() -> None:
    import inspect

    assert str(inspect.signature(gt.exp)) == "(input: 'Tensor') -> 'Tensor'"
    assert str(inspect.signature(gt.median)).startswith("(input: 'Tensor', dim: ")
    assert str(inspect.signature(gt.median)).endswith("keepdim: 'bool' = False, *, axis=None, keepdims=None) -> 'Any'")
    assert str(inspect.signature(gt.full)).endswith("layout=None, pin_memory=False, memory_format=None) -> 'Tensor'")
    assert inspect.getsource(gt.full).startswith("@with_options\ndef full(")
    assert gt.exp.__doc__ == "e to the power of each element.\n\nSee `torch.exp`."
    assert gt.absolute is gt.abs
    assert gt.special.psi is gt.digamma
    assert gt.Tensor.arctan2_ is gt.Tensor.atan2_
