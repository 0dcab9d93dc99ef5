"""Random numbers depend only on seed, stream and position."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from gt.ops.random import draw, philox

DRAWS = {
    "words": lambda start, n: philox.words(3, 4, start, n),
    "float64": lambda start, n: philox.uniform(3, 4, start, n, "float64"),
    "float32": lambda start, n: philox.uniform(3, 4, start, n, "float32"),
    "bfloat16": lambda start, n: philox.uniform(3, 4, start, n, "bfloat16"),
    "at_least": lambda start, n: philox.at_least(3, 4, start, n, 0.3),
    "normal": lambda start, n: philox.normal(3, 4, start, n, "float32"),
    "normal64": lambda start, n: philox.normal(3, 4, start, n, "float64"),
    "integers": lambda start, n: philox.integers(3, 4, -5, 12, start, n),
}


@pytest.mark.parametrize("key", [(0, 0), (1, 2), (-1, 2**63), (2**64 + 7, 2**80)], ids=str)
def test_words_are_numpys(key: tuple[int, int]) -> None:
    seed, stream = (k % 2**64 for k in key)
    want = np.random.Philox(key=seed | stream << 64).random_raw(41)
    assert np.array_equal(philox.words(*key, 0, 41), want)


@pytest.mark.parametrize("draw", DRAWS)
def test_a_range_is_a_slice_of_the_whole(draw: str) -> None:
    whole = DRAWS[draw](0, 40)
    for start in range(9):
        for count in (0, 1, 2, 7, 12):
            assert np.array_equal(DRAWS[draw](start, count), whole[start : start + count]), (start, count)


def test_a_range_may_start_far_out() -> None:
    far = 2**40 + 3
    assert np.array_equal(philox.words(1, 2, far, 5), philox.words(1, 2, far - 3, 8)[3:])


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_uniforms_stay_below_one_and_fill_the_range(dtype: str) -> None:
    values = philox.uniform(0, 0, 0, 20_000, dtype)
    assert values.min() >= 0
    assert values.max() < 1
    assert abs(values.mean() - 0.5) < 0.01
    assert abs(values.var() - 1 / 12) < 0.005


@pytest.mark.parametrize("bound", [0.0, 2**-24, 0.3, 0.5, 0.6, 1 - 2**-24, 1.0])
def test_at_least_compares_the_uniforms(bound: float) -> None:
    uniform = philox.uniform(0, 0, 0, 20_000, "float32")
    assert np.array_equal(philox.at_least(0, 0, 0, 20_000, bound), uniform >= np.float32(bound))


def test_at_least_includes_the_bound() -> None:
    uniform = philox.uniform(0, 0, 0, 50, "float32")
    assert all(philox.at_least(0, 0, i, 1, float(u)).all() for i, u in enumerate(uniform))


def test_threads_draw_apart() -> None:
    """Each thread has its own source: numbers drawn at the same time do not mix."""
    want = [philox.words(seed, 1, 0, 1000) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        drawn = list(pool.map(lambda i: philox.words(i % 8, 1, 0, 1000), range(400)))
    assert all(np.array_equal(words, want[i % 8]) for i, words in enumerate(drawn))


def test_normals_are_normal() -> None:
    values = philox.normal(0, 0, 0, 50_000, "float32")
    assert abs(values.mean()) < 0.02
    assert abs(values.std() - 1) < 0.02
    assert abs(float(np.mean(values**4)) - 3) < 0.15
    assert abs(float(np.corrcoef(values[::2], values[1::2])[0, 1])) < 0.02
    assert np.isfinite(values).all()


def test_seeds_and_streams_differ() -> None:
    drawn = {philox.words(seed, stream, 0, 4).tobytes() for seed in range(10) for stream in range(10)}
    assert len(drawn) == 100


def test_an_empty_range_of_integers_is_refused() -> None:
    with pytest.raises(ValueError, match="no integer is at least 3 and less than 3"):
        philox.integers(0, 0, 3, 3, 0, 1)


def test_the_gpus_numbers_are_numpys() -> None:
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no GPU")
    from gt.ops.random import philox_gpu

    assert philox_gpu.differences(torch.device("cuda:0")) == []


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(5,), (1, 7), (1, 1, 1000)])
def test_small_draws_by_weight_are_those_of_the_kernel_for_large_ones(
    shape: tuple[int, ...], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = torch.rand(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    small = [draw._weigh_torch(torch, weights, 7, i, num_samples=9) for i in range(20)]
    monkeypatch.setattr(draw, "NUMPY_WEIGHTS", 0)
    for i, positions in enumerate(small):
        large = draw._weigh_torch(torch, weights, 7, i, num_samples=9)
        assert torch.equal(positions, large)
        assert positions.dtype is large.dtype
