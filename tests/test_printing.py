"""The text of a tensor is torch's, letter by letter, and only what is shown is read."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import gt
from gt.testing import Cluster
from tests.support.worlds import session

__all__ = ["session"]


def as_torch_writes(x: torch.Tensor) -> str:
    return str(x).replace("torch.", "gt.")


VALUES = [
    np.array(1.5, np.float32),
    np.array(3.0, np.float32),
    np.array(7),
    np.array(True),
    np.array(np.nan, np.float32),
    np.array(1e-9),
    np.array([], np.float32),
    np.array([], np.int64),
    np.zeros((0, 3), np.float32),
    np.zeros((2, 0), np.float64),
    np.zeros((0, 3), np.bool_),
    np.array([1.0, 2.0], np.float32),
    np.array([1.0, 2.5], np.float32),
    np.array([1e10, 1], np.float32),
    np.array([1e-5, 1], np.float32),
    np.array([1000.0, 1], np.float32),
    np.array([1001.0, 1], np.float32),
    np.array([1e8, 5e7], np.float32),
    np.array([2e8, 1e8], np.float32),
    np.array([0.1, 123.456], np.float32),
    np.array([-0.0, 0.0], np.float32),
    np.array([np.nan, np.inf, -np.inf], np.float32),
    np.array([np.nan, np.inf, 1.0], np.float32),
    np.array([np.nan, -np.inf, 1.5], np.float32),
    np.array([np.inf, 1e-9], np.float32),
    np.array([np.finfo(np.float32).max, np.finfo(np.float32).tiny], np.float32),
    np.array([1, -200, 3]),
    np.array([[True, False], [False, True]]),
    np.arange(-5, 5, dtype=np.int8),
    np.arange(5, dtype=np.uint8),
    np.arange(5, dtype=np.int32).reshape(1, 5),
    np.arange(4, dtype=np.float16),
    np.arange(6, dtype=np.float64).reshape(2, 3),
    np.arange(60, dtype=np.float32),
    np.arange(60, dtype=np.float64).reshape(3, 20) / 7,
    np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    np.arange(120, dtype=np.int64).reshape(2, 3, 4, 5),
    np.arange(1000),
    np.arange(1001),
    np.arange(1001, dtype=np.int32),
    np.arange(10_000, dtype=np.float32).reshape(100, 100),
    np.arange(10_000, dtype=np.float64).reshape(100, 100) / 3,
    np.arange(10_000, dtype=np.float32).reshape(5, 2000),
    np.arange(10_000, dtype=np.float32).reshape(2000, 5),
    np.arange(20_000).reshape(10, 20, 100),
    np.arange(9261).reshape(21, 21, 21) % 2 == 0,
    np.arange(4096, dtype=np.float32).reshape(8, 8, 8, 8),
    np.zeros((2, 0, 3), np.float32),
    np.full((30, 50), 1e-7),
    np.full(4, 9.99995e99),
]


@pytest.mark.parametrize("array", VALUES, ids=lambda a: f"{a.dtype}{list(a.shape)}")
def test_text(session, array):
    assert str(gt.tensor(array)) == as_torch_writes(torch.tensor(array))
    assert repr(gt.tensor(array)) == as_torch_writes(torch.tensor(array))


def test_bfloat16():
    with Cluster().client():
        for values in ([1.5, 2.25, -3], [1e10, 1e-3], []):
            ours, theirs = gt.tensor(values, dtype=gt.bfloat16), torch.tensor(values, dtype=torch.bfloat16)
            assert str(ours) == as_torch_writes(theirs)


def test_options(session):
    x, y = gt.arange(2000) / 7, torch.arange(2000) / 7
    for options in ({"precision": 2}, {"profile": "short"}, {"edgeitems": 5, "linewidth": 40}, {"sci_mode": True}):
        try:
            gt.set_printoptions(**options)
            torch.set_printoptions(**options)
            assert str(x) == str(y)
            assert str(x[:5]) == str(y[:5])
        finally:
            gt.set_printoptions(profile="default")
            torch.set_printoptions(profile="default")
    with pytest.raises(TypeError, match="presicion"):
        gt.set_printoptions(presicion=2)
    with pytest.raises(gt.ConfigError, match="the profiles are default, short, full"):
        gt.set_printoptions(profile="long")


def test_only_the_corners_are_read(session, monkeypatch):
    x = gt.ones(200, 300, 10)
    read, sizes = session.read, []
    monkeypatch.setattr(session, "read", lambda name, kind: (sizes.append(kind.nbytes), read(name, kind))[1])
    assert str(x) == as_torch_writes(torch.ones(200, 300, 10))
    assert sizes == [6 * 6 * 6 * 4]


SHAPES = arrays.array_shapes(min_dims=0, max_dims=3, max_side=12)
DTYPES = st.sampled_from([np.float32, np.float64, np.float16, np.int64, np.int16, np.uint8, np.bool_])


@pytest.fixture(scope="module")
def cluster():
    with Cluster(backend="numpy").client():
        yield


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_any_array(cluster, data):
    array = data.draw(arrays.arrays(data.draw(DTYPES), data.draw(SHAPES)))
    assert str(gt.tensor(array)) == as_torch_writes(torch.tensor(array))
