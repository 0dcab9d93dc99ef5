"""What follows from the entries of ops: generated files, docs, and errors for entries that contradict themselves."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest

from docs import make_ops_page
from gt.functions.derived import FUNCTIONS
from gt.ops import OPS, Op
from gt.ops.infer import same
from gt.ops.op import op

ROOT = pathlib.Path(__file__).parent.parent


def test_the_stub_is_current() -> None:
    assert make_ops_page.STUB.read_text() == make_ops_page.declarations(), "run python -m docs.make_ops_page"


def test_the_page_names_every_field() -> None:
    text = (ROOT / "docs" / "ops.md").read_text()
    assert [field for field in Op.__struct_fields__ if f"`{field}`" not in text] == []


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"vjp": (None,), "no_gradient": "it has none"}, "has a vjp, so no_gradient is wrong"),
        ({"split": same, "whole": "it cannot"}, "has a split, so whole is wrong"),
        ({"autocast": "float16"}, "autocast is one of"),
        ({"function": "x", "doc": "The same."}, "function is one of"),
        ({"function": "t"}, "its function needs a doc"),
    ],
)
def test_an_entry_that_contradicts_itself(fields: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=f"op 'example': {text}"):
        op("example", infer=same, kernel=lambda xp, x: x, **fields)
    assert "example" not in OPS


def test_an_op_is_declared_once() -> None:
    with pytest.raises(ValueError, match="op 'exp' is declared twice"):
        op("exp", infer=same, kernel=lambda xp, x: x)


def test_every_derived_function_is_documented() -> None:
    for name, function in FUNCTIONS.items():
        first, _, see = function.__doc__.partition("\n\n")
        assert first.endswith("."), name
        assert see.startswith("See `torch."), name
