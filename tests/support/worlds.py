"""One program, run by torch and by GT, and compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.client.stream.connect import connected
from gt.testing import Cluster

BACKENDS = ("torch", "numpy")


@pytest.fixture(params=BACKENDS)
def session(request: pytest.FixtureRequest) -> Iterator[Any]:
    with Cluster(workers=1, backend=request.param).client() as session:
        yield session


def to_torch(value: Any) -> Any:
    """The same value as a torch tensor, to compare with."""
    if isinstance(value, gt.Tensor):
        if value.dtype is gt.bfloat16:
            return torch.from_numpy(value.float().numpy().copy()).bfloat16()
        return torch.from_numpy(np.array(value.numpy()))
    if isinstance(value, tuple | list) and not isinstance(value, gt.Size):
        return [to_torch(v) for v in value]
    if isinstance(value, gt.DType):
        return getattr(torch, value.name)
    return value


#: Ops whose bits are the same on every machine and with every library: they move values, or round once as IEEE 754
#: requires. All others (exp, pow, sums in some order) depend on the library, its vector instructions and the layout. So
#: does torch's sqrt, which is MKL's on x86-64: on AMD's processors a fifth of its results are rounded otherwise.
EXACT = """
upload full full_like clone copy to where masked_fill clamp clamp_many put_view slice view reshape permute expand
split cat flip roll repeat tril triu diagonal unfold pad index index_put gather scatter masked_select masked_put
masked_scatter nonzero sort topk kthvalue searchsorted unique_ranks max_dim min_dim amax amin argmax argmin all any
cummax cummin mode add sub mul div square neg abs sign floor ceil trunc round frac relu maximum minimum fmax fmin
copysign heaviside nextafter nan_to_num eq ne lt le gt ge isnan isinf isposinf isneginf signbit isfinite logical_and
logical_or logical_xor logical_not placed
"""
#: (relative, absolute): how far the others may differ in float32 and float64, and in float16 and bfloat16
ROUNDING, HALF_ROUNDING = (1e-5, 1e-6), (1e-2, 1e-3)


def tolerance(dtype: torch.dtype) -> tuple[float, float]:
    """How far a result of this session may be from torch's: not at all, if only `EXACT` ops were used in it."""
    session = connected()
    assert session is not None
    used = {signature.op.name for signature in session.signatures.by_code.values()}
    if not dtype.is_floating_point or used <= set(EXACT.split()):
        return 0.0, 0.0
    return ROUNDING if dtype.itemsize > 2 else HALF_ROUNDING


def agree(ours: Any, theirs: Any) -> None:
    """Same structure, dtypes, shapes and values."""
    if isinstance(theirs, tuple | list) and not isinstance(theirs, torch.Size):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            agree(a, b)
        return
    if isinstance(theirs, torch.Tensor):
        assert ours.dtype.name == str(theirs.dtype).removeprefix("torch.")
        assert tuple(ours.shape) == tuple(theirs.shape)
        rtol, atol = tolerance(theirs.dtype)
        torch.testing.assert_close(to_torch(ours), theirs, rtol=rtol, atol=atol, equal_nan=True)
        return
    if isinstance(theirs, float):
        rtol, atol = tolerance(torch.float32)
        assert isinstance(ours, float)
        assert ours == pytest.approx(theirs, rel=rtol, abs=atol, nan_ok=True)
        return
    assert to_torch(ours) == theirs


#: the inputs of programs: a name, and how it is created
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
    """The names a program may use, for GT and for torch; ``gt`` is the library, either of them."""
    ours: dict[str, Any] = {name: gt.tensor(make()) for name, make in INPUTS.items()}
    theirs: dict[str, Any] = {name: torch.tensor(make()) for name, make in INPUTS.items()}
    return {"gt": gt, "np": np, **ours}, {"gt": torch, "np": np, **theirs}


def same(expression: str) -> None:
    ours, theirs = worlds()
    agree(eval(expression, ours), eval(expression, theirs))


def same_after(statements: str) -> None:
    """Run statements in both worlds, and compare every tensor afterwards."""
    ours, theirs = worlds()
    exec(statements, ours)
    exec(statements, theirs)
    for name, value in theirs.items():
        if isinstance(value, torch.Tensor):
            agree(ours[name], value)


def refused(session: Any, statement: str, error: type[Exception], text: str) -> None:
    """The last statement raises exactly this, at once, and nothing is sent."""
    ours, _ = worlds()
    *before, statement = statement.split("; ")
    exec("; ".join(before), ours)
    before = list(session.outbox.words)
    with pytest.raises(error) as caught:
        exec(statement, ours)
    assert str(caught.value) == text
    assert session.outbox.words == before
