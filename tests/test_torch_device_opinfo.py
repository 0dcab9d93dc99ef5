"""PyTorch's own sample inputs on the device ``gtx``: values, dtypes, errors, in place, ``out=`` and gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.testing._internal.common_methods_invocations import op_db

from gt.testing import Cluster
from gt.torch_device import backend, register
from tests.support import device_opinfo as device
from tests.support.device_gaps import DIFFERENT, MISSING, is_known
from tests.support.sizes import ROOT

pytest.importorskip("expecttest", reason="torch's samples need it: pip install expecttest")

#: samples of each family
SAMPLES = 3
#: `make test` tries one of this many ops, `make test-all` the others too
EACH = 16
#: torch's sparse tensors are no tensors of the device
OPS = [op for op in op_db if not op.name.startswith(("to_sparse", "sparse"))]


@pytest.fixture(scope="module", autouse=True)
def _client() -> Iterator[None]:
    with Cluster().client():
        yield


def marks(place: int) -> list[pytest.MarkDecorator]:
    return [pytest.mark.long] if place % EACH else []


@pytest.mark.parametrize("op", [pytest.param(op, marks=marks(k), id=op.formatted_name) for k, op in enumerate(OPS)])
def test_computes_what_torch_computes(op: Any) -> None:
    wrong = []
    for family in device.TRIED:
        for case in device.samples(op, family, SAMPLES):
            problems = {way: device.difference(case, call) for way, call in device.ways(op)}
            if op.supports_out and family == "float32":
                problems["out"] = device.write_into_out(case)
            wrong += [f"{w}: {case}: {p}" for w, p in problems.items() if p and not is_known(case, p)]
    assert not wrong, f"{len(wrong)} calls differ, the first: {wrong[0]}"


def test_this_version_of_torch_was_tried() -> None:
    """A new version passes the tests of the device first; then it is added, with the date, to docs/torch.md too."""
    version = ".".join(torch.__version__.split(".")[:2])
    assert version in backend.TRIED_VERSIONS
    assert f"| {version} |" in (ROOT / "docs" / "torch.md").read_text()


def test_what_is_listed_as_missing_is_missing() -> None:
    """Also that each is an overload of this version of torch."""
    names = {overload.partition(".")[0] for overload in backend.overloads()}
    assert names >= MISSING
    assert not {o for o in register.OVERLOADS if o.partition(".")[0] in MISSING}


def test_every_difference_is_an_op() -> None:
    assert {op.formatted_name for op in OPS} >= set(DIFFERENT)
