"""Random pipelines give torch's losses, gradients, parameters and buffers.

``GT_SEEDS=5000 pytest tests/test_pipeline_programs.py`` tries that many seeds instead of the usual few. A failing case
is shrunk and printed.
"""

from __future__ import annotations

import os
import pathlib

import pytest

from gt.pipeline import part_pass
from tests.support.pipeline_programs import Case, draw, problem, shrunk

pytestmark = pytest.mark.filterwarnings("ignore")
SEEDS = int(os.environ.get("GT_SEEDS", "100"))


def check(seed: int, folder: pathlib.Path) -> None:
    case = draw(seed)
    if problem(case, folder):
        small = shrunk(case, folder)
        pytest.fail(f"{problem(small, folder)}\n\n{small}", pytrace=False)


@pytest.mark.parametrize("seed", range(20))
def test_random_pipelines(seed: int, tmp_path: pathlib.Path) -> None:
    check(seed, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(20, SEEDS))
def test_more_random_pipelines(seed: int, tmp_path: pathlib.Path) -> None:
    check(seed, tmp_path)


def test_a_wrong_gradient_is_noticed(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With equal shares for uneven microbatches, a case fails, and is shrunk to a small one."""
    monkeypatch.setattr(part_pass, "_shares", lambda batches, mean: [1 / len(batches)] * len(batches))
    plain = Case(0, "zb_h1", 1, ("linear", "hand on", "take"), microbatches=2, rows=5, workers=3, steps=3, clip=True)
    assert "differs" in problem(plain, tmp_path)
    small = shrunk(plain, tmp_path)
    assert (small.schedule, small.kinds, small.steps, small.clip) == ("1f1b", ("linear",) * 3, 1, False)
