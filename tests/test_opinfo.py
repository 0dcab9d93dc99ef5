"""PyTorch's own sample inputs for every name that GT has too: values, dtypes, shapes, errors and gradients.

``GT_FUZZ=100000 pytest tests/test_opinfo.py`` takes all samples, instead of a few of each op.
"""

from __future__ import annotations

import itertools
import os
import random
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

from gt.testing import Cluster
from tests.support.opinfo_gaps import GAPS, Gap

pytest.importorskip("expecttest", reason="torch's samples need it: pip install expecttest")

from tests.support.opinfo import FAMILIES, OPS, Case, cases, difference, forms

FIRST = 6  # the simplest samples come first, and are always taken
EACH = int(os.environ.get("GT_FUZZ", "8"))


@pytest.fixture(scope="module", autouse=True)
def _client() -> Iterator[None]:
    with Cluster().client():
        yield


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def chosen(op: Any, family: str) -> list[Case]:
    """The first samples, and some of the others: different ones for each op, the same in each run."""
    more = max(EACH - FIRST, 0)
    first = list(itertools.islice(cases(op, family), FIRST + 8 * more))
    rest = first[FIRST:]
    return first[:FIRST] + random.Random(f"{op.formatted_name} {family}").sample(rest, min(more, len(rest)))


def calls(op: Any, cases: list[Case]) -> Iterator[tuple[Case, Any]]:
    for case in cases:
        for form in forms(op):
            if not form.method or type(case.input).__name__ == "Tensor":
                yield case, form


#: `make test` tries one of this many ops, `make test-all` the others too
EACH = 5
NAMES = [op.formatted_name for op in OPS]


def marks(place: int) -> list[pytest.MarkDecorator]:
    return [pytest.mark.long] if place % EACH else []


@pytest.mark.parametrize("op", [pytest.param(op, marks=marks(k)) for k, op in enumerate(OPS)], ids=NAMES)
def test_does_what_torch_does(op: Any) -> None:
    wrong = []
    for family in FAMILIES:
        for case, form in calls(op, chosen(op, family)):
            if not any(gap.covers(case, form) for gap in GAPS) and (problem := difference(case, form)):
                wrong.append(f"{form.name}: {case}: {problem}")
    assert not wrong, f"{len(wrong)} calls differ, the first: {wrong[0]}"


@pytest.mark.parametrize("gap", GAPS, ids=str)
def test_a_gap_is_still_there(gap: Gap) -> None:
    op = next(op for op in OPS if op.formatted_name == gap.op)
    covered = ((c, f) for c, f in calls(op, cases(op, gap.family)) if gap.covers(c, f))  # type: ignore[arg-type]
    assert any(difference(case, form) for case, form in covered), "nothing differs any more: take the row out"
