"""Short pieces of torch programs give the same values with GT, after the rename alone."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest
import torch

import gt
from tests.programs_of_others.rename import rename
from tests.support.snippets import FUNCTION_SNIPPETS, SNIPPETS, pieces
from tests.support.worlds import session

__all__ = ["session"]

PIECES = pieces(SNIPPETS) | pieces(FUNCTION_SNIPPETS)


def run(source: str, framework: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What the piece leaves in ``out``."""
    module = types.ModuleType("snippet")
    monkeypatch.setitem(sys.modules, "snippet", module)  # classes look for their module
    names = {framework.__name__: framework, "nn": framework.nn, "F": framework.nn.functional, "np": np}
    module.__dict__.update(names)
    exec(compile(rename(source) if framework is gt else source, "snippet", "exec"), module.__dict__)
    return plain(module.__dict__["out"])


def plain(x: Any) -> Any:
    """Tensors as arrays, so that the two worlds can be compared."""
    if isinstance(x, torch.Tensor | gt.Tensor):
        return x.detach().numpy()
    if isinstance(x, dict):
        return {key: plain(value) for key, value in x.items()}
    return [plain(value) for value in x] if isinstance(x, list | tuple) else x


def check(expected: Any, actual: Any, path: str = "out") -> None:
    if isinstance(expected, dict | list):
        keys = list(expected) if isinstance(expected, dict) else range(len(expected))
        assert len(actual) == len(expected), path
        for key in keys:
            check(expected[key], actual[key], f"{path}[{key!r}]")
    elif isinstance(expected, np.ndarray):
        assert isinstance(actual, np.ndarray), path
        assert actual.dtype == expected.dtype, path
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-6, err_msg=path)
    elif isinstance(expected, float):
        assert actual == pytest.approx(expected, rel=1e-6), path
    else:
        assert actual == expected, path


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", PIECES)
def test_a_piece_of_a_program(session, monkeypatch, name):
    # the device of torch, which other tests register, makes autograd replay views; then torch fails after unsqueeze_
    with torch.autograd._force_original_view_tracking(False):
        expected = run(PIECES[name], torch, monkeypatch)
    assert expected, "a piece without values compares nothing"
    check(expected, run(PIECES[name], gt, monkeypatch))
