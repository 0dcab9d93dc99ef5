"""One program, run by torch and by GT, and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.testing import Cluster

BACKENDS = ("torch", "numpy")


@pytest.fixture(params=BACKENDS)
def session(request: pytest.FixtureRequest) -> Iterator[Any]:
    with Cluster(workers=1, backend=request.param).client() as made:
        yield made


def to_torch(value: Any) -> Any:
    """The same value in torch's hands, to compare with."""
    if isinstance(value, gt.Tensor):
        if value.dtype is gt.bfloat16:
            return torch.from_numpy(value.float().numpy().copy()).bfloat16()
        return torch.from_numpy(np.array(value.numpy()))
    if isinstance(value, tuple | list) and not isinstance(value, gt.Size):
        return [to_torch(v) for v in value]
    if isinstance(value, gt.DType):
        return getattr(torch, value.name)
    return value


def agree(ours: Any, theirs: Any, exact: bool = True) -> None:
    """Same structure, dtypes, shapes and values."""
    if isinstance(theirs, tuple | list) and not isinstance(theirs, torch.Size):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            agree(a, b, exact)
        return
    if isinstance(theirs, torch.Tensor):
        assert ours.dtype.name == str(theirs.dtype).removeprefix("torch.")
        assert tuple(ours.shape) == tuple(theirs.shape)
        options = {"rtol": 0, "atol": 0} if exact else {"rtol": 1e-5, "atol": 1e-6}
        torch.testing.assert_close(to_torch(ours), theirs, equal_nan=True, **options)
        return
    assert to_torch(ours) == theirs


#: the inputs programs are written over: a name, and how it is made
INPUTS: dict[str, Callable[[], np.ndarray]] = {
    "x": lambda: np.arange(12, dtype=np.float32).reshape(3, 4) - 5.5,
    "y": lambda: np.linspace(0.5, 4, 12, dtype=np.float32).reshape(3, 4),
    "v": lambda: np.array([1.5, -2.0, 0.25, 3.0], np.float32),
    "w": lambda: np.array([0.5, 2.0, -1.0], np.float32),
    "i": lambda: np.arange(-6, 6, dtype=np.int64).reshape(3, 4),
    "j": lambda: np.array([2, 0, 1], np.int64),
    "b": lambda: np.array([True, False, True]),
    "m": lambda: (np.arange(12) % 3 == 0).reshape(3, 4),
    "d": lambda: np.array([[0.1, 0.2], [0.3, -0.4]], np.float64),
    "s": lambda: np.array(2.5, np.float32),
    "c": lambda: np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    "e": lambda: np.zeros((0, 3), np.float32),
    "n": lambda: np.array([1.0, np.nan, -np.inf, np.inf, 0.0], np.float32),
}


def worlds() -> tuple[dict[str, Any], dict[str, Any]]:
    """The names a program may use, for GT and for torch; ``gt`` is the library, whichever it is."""
    ours: dict[str, Any] = {name: gt.tensor(make()) for name, make in INPUTS.items()}
    theirs: dict[str, Any] = {name: torch.tensor(make()) for name, make in INPUTS.items()}
    return {"gt": gt, "np": np, **ours}, {"gt": torch, "np": np, **theirs}


def same(expression: str, exact: bool = True) -> None:
    ours, theirs = worlds()
    agree(eval(expression, ours), eval(expression, theirs), exact)


def same_after(statements: str) -> None:
    """Run statements in both worlds, and compare every tensor there is afterwards."""
    ours, theirs = worlds()
    exec(statements, ours)
    exec(statements, theirs)
    for name, value in theirs.items():
        if isinstance(value, torch.Tensor):
            agree(ours[name], value)


def refused(session: Any, statement: str, error: type[Exception], text: str) -> None:
    """The last statement raises exactly that, at once, and nothing is sent."""
    ours, _ = worlds()
    *before, statement = statement.split("; ")
    exec("; ".join(before), ours)
    before = list(session.words)
    with pytest.raises(error) as caught:
        exec(statement, ours)
    assert str(caught.value) == text
    assert session.words == before
