"""On a GPU: the cross entropy of long rows and products of odd sizes have kernels of their own; torch is the oracle."""

from __future__ import annotations

import pytest
import torch

import gt
from gt.ops.math import padded

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.filterwarnings("default"),
]
F = torch.nn.functional
GPU = "cuda:0"


@pytest.mark.parametrize("classes", [1024, 5000, 50257, 131072])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_cross_entropy(classes, dtype, reduction) -> None:
    from gt.ops.nn import cross_entropy_gpu

    torch.manual_seed(0)
    x = (3 * torch.randn(64, classes, device=GPU)).to(dtype)
    target = torch.randint(0, classes, (64,), device=GPU)
    target[3], target[7], target[9] = -100, classes - 1, 0
    x[5, : classes // 2], target[5] = -torch.inf, classes // 2 + 1
    exact = x.double().requires_grad_()
    loss = F.cross_entropy(exact, target, reduction=reduction)
    g = torch.rand(loss.shape, device=GPU)
    loss.backward(g.double())
    each = cross_entropy_gpu.losses(x, target, -100)
    torch.testing.assert_close(
        (each if reduction == "none" else each.sum()).double(), loss.detach(), rtol=1e-5, atol=1e-5
    )
    gradient = cross_entropy_gpu.gradient(g, x, target, -100)
    error = (gradient.double() - exact.grad).norm() / exact.grad.norm()
    assert error < {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 5e-3}[dtype]
    assert gradient.shape == x.shape
    whole = padded.pad(torch, gradient, 0, -classes % padded.MULTIPLE)
    assert not whole[:, classes:].any()
    assert whole.data_ptr() == gradient.data_ptr()


def test_a_row_without_a_finite_number_and_nan() -> None:
    from gt.ops.nn import cross_entropy_gpu

    x = torch.randn(3, 2000, device=GPU)
    x[0], x[1, 5] = -torch.inf, torch.nan
    target = torch.zeros(3, dtype=torch.int64, device=GPU)
    expected = F.cross_entropy(x, target, reduction="none")
    torch.testing.assert_close(cross_entropy_gpu.losses(x, target, -100), expected, equal_nan=True)


@pytest.mark.parametrize("sizes", [(2048, 5001, 1024), (2048, 1024, 5001), (2047, 5001, 1021)])
def test_products_of_odd_sizes(sizes) -> None:
    m, n, k = sizes
    torch.manual_seed(0)
    a, b = (torch.randn(s, device=GPU, dtype=torch.bfloat16) for s in ((m, k), (k, n)))
    assert padded.is_slow(a, m, n, k)
    expected = a.double() @ b.double()
    results = (
        padded.times(torch, a, b),
        padded.times_transposed(torch, a, b.t().contiguous()),
        padded.transposed_times(torch, a.t().contiguous(), b),
    )
    for result in results:
        assert result.shape == expected.shape
        assert (result.double() - expected).norm() < 4e-3 * expected.norm()


def losses(lib, compiled: bool, bias: bool) -> list[float]:
    """Train a language model without layers, whose vocabulary is odd."""
    nn, words = lib.nn, 4099
    lib.manual_seed(0)
    model = nn.Sequential(nn.Embedding(words, 512), nn.Linear(512, words, bias=bias))
    generator = torch.Generator().manual_seed(0)
    values = [0.05 * torch.randn(p.shape, generator=generator) for p in model.parameters()]
    ids, target = (torch.randint(0, words, (8, 512), generator=generator) for _ in range(2))
    place = (lambda x: x.to(GPU)) if lib is torch else (lambda x: gt.tensor(x.numpy()))
    model = model.to(GPU) if lib is torch else model
    with lib.no_grad():
        for p, value in zip(model.parameters(), values, strict=True):
            p.copy_(place(value))
    optimizer = lib.optim.AdamW(model.parameters(), lr=1e-3)
    precision = torch.autocast("cuda", dtype=torch.bfloat16) if lib is torch else gt.autocast(dtype=gt.bfloat16)

    def step(x, y):
        with precision:
            loss = nn.functional.cross_entropy(model(x).reshape(-1, words), y.reshape(-1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    step = gt.compile(step) if compiled else step
    x, y = place(ids), place(target)
    return [step(x, y).item() for _ in range(8)]


@pytest.mark.parametrize("bias", [False, True])
def test_a_model_with_an_odd_vocabulary(bias) -> None:
    expected = losses(torch, False, bias)
    try:
        plain, compiled = losses(gt, False, bias), losses(gt, True, bias)
        stats = gt.debug.get_worker_stats()["compilation_stats"]
    finally:
        gt.disconnect()
    assert plain == pytest.approx(expected, rel=2e-3)
    assert compiled == pytest.approx(expected, rel=2e-3)
    assert any(section["level"] == "compiled" for section in stats.values()), stats
