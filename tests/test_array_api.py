"""What the array API standard has and torch does not. Numpy, which follows the standard, is the oracle."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import gt
from gt.testing import Cluster


@pytest.fixture(autouse=True)
def session() -> Iterator[Any]:
    with Cluster(backend="numpy").client() as session:
        yield session


CALLS = {
    "flip": lambda xp, x: xp.flip(x, axis=1),
    "flip several": lambda xp, x: xp.flip(x, axis=(0, 2)),
    "flip all": lambda xp, x: xp.flip(x),
    "roll": lambda xp, x: xp.roll(x, 1, axis=2),
    "roll several": lambda xp, x: xp.roll(x, (1, 2), axis=(0, 2)),
    "roll all": lambda xp, x: xp.roll(x, 2, axis=None),
    "tril": lambda xp, x: xp.tril(x, k=1),
    "triu": lambda xp, x: xp.triu(x, k=-1),
    "squeeze": lambda xp, x: xp.squeeze(x[:, :1], axis=1),
    "squeeze several": lambda xp, x: xp.squeeze(x[:1, :1], axis=(0, 1)),
    "vecdot": lambda xp, x: xp.vecdot(x, x + 1, axis=1),
    "trace": lambda xp, x: xp.linalg.trace(x, offset=1),
    "expand_dims": lambda xp, x: xp.expand_dims(x, axis=1),
    "permute_dims": lambda xp, x: xp.permute_dims(x, (2, 0, 1)),
}


@pytest.mark.parametrize("name", CALLS)
def test_calls_give_the_numbers_of_numpy(name: str) -> None:
    x = np.arange(24).reshape(2, 3, 4)
    np.testing.assert_array_equal(CALLS[name](gt, gt.tensor(x)).numpy(), CALLS[name](np, x))


def test_vecdot_promotes_and_compares_sizes() -> None:
    a, b = gt.tensor([1, 2], dtype=gt.uint8), gt.tensor([3, 4], dtype=gt.int16)
    assert gt.vecdot(a, a).dtype is gt.uint8
    assert gt.vecdot(a, b).dtype is gt.int16
    assert gt.vecdot(a, b).item() == 11
    with pytest.raises(gt.ShapeError, match=r"vecdot\(uint8\[2\], int16\[1\], axis=-1\): sizes differ along the axis"):
        gt.vecdot(a, b[:1])


def test_torchs_own_forms_still_work() -> None:
    x = gt.arange(6).reshape(2, 3)
    assert gt.flip(x, ()).tolist() == x.tolist()
    assert x.flip(0).tolist() == gt.flip(x, dims=(0,)).tolist() == x.tolist()[::-1]
    assert x.tril(1).tolist() == gt.tril(x, diagonal=1).tolist() == gt.tril(x, k=1).tolist()


@pytest.mark.parametrize("name", ["complex64", "complex128"])
def test_limits_of_complex_dtypes(name: str) -> None:
    ours, theirs = gt.finfo(getattr(gt, name)), torch.finfo(getattr(torch, name))
    names = ("bits", "eps", "max", "min", "tiny", "smallest_normal", "dtype")
    assert [getattr(ours, n) for n in names] == [getattr(theirs, n) for n in names]


def test_from_dlpack_copies() -> None:
    array = np.arange(3)
    x = gt.from_dlpack(array, device="cpu", copy=True)
    array[0] = 5
    assert x.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="shares no memory"):
        gt.from_dlpack(array, copy=False)
