"""Complex numbers on several workers, in repeated steps and in compiled functions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import gt
import gt.fft
from gt.testing import Cluster

VALUES = np.random.default_rng(1).standard_normal((6, 8, 2)).astype(np.float32)
SIGNALS = """
rows:    {shard: {axis: 0, workers: [0, 1]}}
columns: {shard: {axis: 1, workers: [0, 1]}}
"""


@pytest.fixture
def signals(tmp_path: Any) -> Iterator[None]:
    (tmp_path / "signals.yaml").write_text(SIGNALS)
    gt.load_config(str(tmp_path / "signals.yaml"))
    yield
    gt.load_config(None)


def _program(m: Any, x: Any) -> list[Any]:
    z = m.view_as_complex(x)
    spectrum = m.fft.fft(z)
    total = (spectrum * spectrum.conj()).sum(0)  # split by rows, this is a partial sum on each worker
    return [spectrum, total, m.fft.ifft(total), m.fft.rfft(z.real), (z @ z.mH).abs(), m.cat([z, z]).prod(1)]


@pytest.mark.parametrize("backend", ["torch", "numpy"])
@pytest.mark.parametrize("signal", ["rows", "columns"])
def test_values_are_torchs_on_two_workers(signals: None, signal: str, backend: str) -> None:
    want = _program(torch, torch.tensor(VALUES))
    with Cluster(workers=2, backend=backend).client():
        with gt.signal.context(signal):
            x = gt.tensor(VALUES)
        got = _program(gt, x)
        for ours, theirs in zip(got, want, strict=True):
            torch.testing.assert_close(torch.tensor(ours.numpy()), theirs.resolve_conj(), rtol=1e-4, atol=1e-4)


def test_transforms_stay_split_along_other_dims(signals: None) -> None:
    with Cluster(workers=2).client():
        with gt.signal.context("rows"):
            x = gt.tensor(VALUES)
        z = gt.view_as_complex(x)
        for y in (z, z.real, z * 2j, gt.fft.fft(z), gt.fft.rfft(z.real), gt.fft.irfft(z), gt.fft.fftn(z, dim=(1,))):
            assert str(y.layout).startswith("S(0)")
        assert str(gt.fft.fft(z, dim=0).layout).startswith(("S(1)", "R"))


def test_gradients_on_two_workers(signals: None) -> None:
    leaf = torch.tensor(VALUES, requires_grad=True)
    torch.fft.fft2(torch.view_as_complex(leaf)).abs().sum().backward()
    with Cluster(workers=2).client():
        with gt.signal.context("rows"):
            x = gt.tensor(VALUES)
        x.requires_grad_()
        gt.fft.fft2(gt.view_as_complex(x)).abs().sum().backward()
        assert leaf.grad is not None
        torch.testing.assert_close(torch.tensor(x.grad.numpy()), leaf.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_repeated_and_compiled_steps_give_the_same_bits(backend: str) -> None:
    def step(x: Any, k: Any) -> Any:
        return gt.fft.irfft(gt.fft.rfft(x) * (0.5 + 0.25j) + k * 1j, 8)

    with Cluster(backend=backend).client():
        x, k = gt.tensor(VALUES[:, :, 0].copy()), gt.tensor(VALUES[0, 0, 0])
        first = step(x, k).numpy().tobytes()
        for _ in range(4):
            gt.step()
            assert step(x, k).numpy().tobytes() == first
        compiled = gt.compile(step)
        for _ in range(4):
            assert compiled(x, k).numpy().tobytes() == first
