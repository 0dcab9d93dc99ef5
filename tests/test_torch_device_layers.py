"""Layers and functions on the device ``gtx`` that torch calls as one op, against torch on the CPU: transformers in
evaluation, weight norms, draws of gamma distributions, filters for smaller images, tables with a largest norm, and
asserts."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import gt
import gt.torch_device
from gt.testing import Cluster

DEVICE = gt.torch_device.NAME


@pytest.fixture(autouse=True)
def _client() -> Iterator[None]:
    torch.manual_seed(0)
    with Cluster().client():
        yield


def same(run: Callable[[str], Any], tolerance: float = 1e-5) -> None:
    """The tensors that a function of the device returns are those of the CPU."""
    torch.testing.assert_close(run(DEVICE), run("cpu"), rtol=tolerance, atol=tolerance, check_device=False)


# -- transformers in evaluation, where torch takes its fast path ---------------------------------


PADDING = torch.tensor([[False, False, False, True, True], [False, False, False, False, False]])
CAUSAL = torch.ones(5, 5).triu(1).bool()
MASKS: dict[str, dict[str, torch.Tensor]] = {
    "no mask": {},
    "pairs": {"src_mask": CAUSAL},
    "padding": {"src_key_padding_mask": PADDING},
    "both": {"src_mask": CAUSAL, "src_key_padding_mask": PADDING},
}


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("options", [{}, {"norm_first": True, "activation": "gelu"}, {"batch_first": False}])
def test_a_transformer_in_evaluation(masks: str, options: dict[str, Any]) -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, **{"batch_first": True, **options}).eval()
    for model in (layer, nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()):
        x = torch.randn(2, 5, 16) if layer.self_attn.batch_first else torch.randn(5, 2, 16)

        def run(device: str, model: nn.Module = model, x: torch.Tensor = x) -> torch.Tensor:
            moved = {name: mask.to(device) for name, mask in MASKS[masks].items()}
            if isinstance(model, nn.TransformerEncoder) and "src_mask" in moved:
                moved["mask"] = moved.pop("src_mask")
            with torch.no_grad():
                return copy.deepcopy(model).to(device)(x.to(device), **moved)

        same(run)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_a_transformer_that_would_use_nested_tensors() -> None:
    """On the CPU torch leaves the padding out; what is at the padded positions is not defined."""
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 2).eval()
    x = torch.randn(2, 5, 16)

    def run(device: str) -> torch.Tensor:
        with torch.no_grad():
            y = copy.deepcopy(model).to(device)(x.to(device), src_key_padding_mask=PADDING.to(device))
        return y.cpu()[~PADDING]

    same(run)


@pytest.mark.parametrize("options", [{}, {"need_weights": False}, {"average_attn_weights": False}])
@pytest.mark.parametrize("mask", [{}, {"key_padding_mask": PADDING}, {"attn_mask": CAUSAL}])
@pytest.mark.parametrize("is_self", [True, False])
def test_attention_in_evaluation(options: dict[str, bool], mask: dict[str, torch.Tensor], is_self: bool) -> None:
    module, x, other = (
        nn.MultiheadAttention(16, 2, batch_first=True).eval(),
        torch.randn(2, 5, 16),
        torch.randn(2, 5, 16),
    )

    def run(device: str) -> Any:
        query = x.to(device)
        key = query if is_self else other.to(device)
        with torch.no_grad():
            moved = {name: m.to(device) for name, m in mask.items()}
            return copy.deepcopy(module).to(device)(query, key, key, **moved, **options)

    same(run)


def test_the_op_of_attention_itself() -> None:
    """With one tensor it is compared with torch's own, which takes no others; with three, with the module."""
    module = nn.MultiheadAttention(16, 2, batch_first=True)
    weights = [p.detach() for p in module.parameters()]
    xs = [torch.randn(2, 5, 16) for _ in range(3)]

    def run(device: str, mask: torch.Tensor | None = None) -> Any:
        x, *moved = [x.to(device) for x in (xs[0], *weights)]
        masks = {} if mask is None else {"mask": mask.to(device), "mask_type": 1}
        return torch._native_multi_head_attention(x, x, x, 16, 2, *moved, **masks)

    same(run)
    same(lambda device: run(device, PADDING))
    assert run(DEVICE, torch.ones(2, 5, dtype=torch.bool))[0].isfinite().all(), "no position is left"
    ours = torch._native_multi_head_attention(*[x.to(DEVICE) for x in xs], 16, 2, *[w.to(DEVICE) for w in weights])
    torch.testing.assert_close(ours[0].cpu(), module(*xs)[0].detach(), rtol=1e-5, atol=1e-5)


# -- weight norms ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dim", [0, 2, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_weight_norm_and_its_gradients(dim: int, dtype: torch.dtype) -> None:
    v, g = torch.randn(4, 3, 5, dtype=dtype), torch.rand(4, 1, 1, dtype=dtype) + 0.5
    g = g if dim == 0 else torch.rand(1, 1, 5, dtype=dtype) + 0.5
    outside = torch.randn(4, 3, 5, dtype=dtype)

    def run(device: str) -> list[torch.Tensor]:
        leaves = [x.to(device).detach().requires_grad_() for x in (v, g)]
        w = torch._weight_norm(*leaves, dim % 3)
        first = torch.autograd.grad((w * outside.to(device)).sum(), leaves, create_graph=True)
        second = torch.autograd.grad(sum(x.square().sum() for x in first), leaves)
        return [w.detach(), *(x.detach() for x in first), *second]

    same(run, 1e-4 if dtype is torch.float32 else 1e-10)


def test_a_layer_with_a_weight_norm() -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.Conv1d(3, 4, 3))
    x = torch.randn(2, 3, 8)

    def run(device: str) -> list[torch.Tensor]:
        model = copy.deepcopy(layer).to(device)
        y = model(x.to(device))
        y.square().mean().backward()
        return [y.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]

    same(run)


# -- draws -----------------------------------------------------------------------------------------


def test_draws_of_gamma_distributions() -> None:
    shape, count = torch.tensor([0.5, 2.0, 9.0], device=DEVICE).requires_grad_(), 4000
    gamma = torch.distributions.Gamma(shape, torch.ones(3, device=DEVICE))
    drawn = gamma.rsample((count,))
    torch.testing.assert_close(drawn.mean(0).cpu(), shape.detach().cpu(), rtol=0.1, atol=0.02)
    torch.testing.assert_close(drawn.var(0).cpu(), shape.detach().cpu(), rtol=0.25, atol=0.05)
    drawn.mean(0).sum().backward()
    # the mean is the shape, so its gradient is 1
    torch.testing.assert_close(shape.grad.cpu(), torch.ones(3), rtol=0.1, atol=0.1)  # type: ignore[union-attr]


def test_draws_of_beta_and_dirichlet_distributions() -> None:
    beta = torch.distributions.Beta(torch.tensor(2.0, device=DEVICE), torch.tensor(6.0, device=DEVICE))
    drawn = beta.sample((4000,))
    assert drawn.mean().item() == pytest.approx(0.25, abs=0.02)
    assert drawn.var().item() == pytest.approx(2 * 6 / (64 * 9), rel=0.15)
    concentration = torch.tensor([1.0, 2.0, 5.0], device=DEVICE)
    rows = torch.distributions.Dirichlet(concentration).sample((4000,))
    torch.testing.assert_close(rows.sum(1).cpu(), torch.ones(4000), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(rows.mean(0).cpu(), torch.tensor([0.125, 0.25, 0.625]), rtol=0.05, atol=0.02)
    assert torch.distributions.StudentT(torch.tensor(3.0, device=DEVICE)).sample((5,)).isfinite().all()


# -- images ----------------------------------------------------------------------------------------


def resize_cases(count: int) -> Iterator[dict[str, Any]]:
    """Images that torch's kernel for the CPU computes right: not one pixel wide, and no dim that keeps its size."""
    draw = random.Random(3)
    while count:
        old, new = [[draw.randint(2, 20) for _ in range(2)] for _ in range(2)]
        if old[0] != new[0] and old[1] != new[1]:
            count -= 1
            how = {"mode": draw.choice(["bilinear", "bicubic"]), "align_corners": draw.choice([True, False])}
            yield {"old": old, "size": new, **how, "dtype": draw.choice([torch.float32, torch.float64])}


def test_images_are_resized_with_antialiasing() -> None:
    for case in resize_cases(40):
        old, dtype = case.pop("old"), case.pop("dtype")
        x, outside = torch.randn(2, 3, *old, dtype=dtype), torch.randn(2, 3, *case["size"], dtype=dtype)

        def run(
            device: str, x: torch.Tensor = x, outside: torch.Tensor = outside, case: dict[str, Any] = case
        ) -> list[torch.Tensor]:
            leaf = x.to(device).detach().clone().requires_grad_()
            y = functional.interpolate(leaf, antialias=True, **case)
            y.backward(outside.to(device))
            assert leaf.grad is not None
            return [y.detach(), leaf.grad]

        expected = run("cpu")
        tolerance = 1e-4 if dtype is torch.float32 else 1e-10
        leaf = gt.tensor(x.numpy()).requires_grad_()
        y = gt.nn.functional.interpolate(leaf, antialias=True, **case)
        y.backward(gt.tensor(outside.numpy()))
        own = [torch.from_numpy(t.detach().numpy()) for t in (y, leaf.grad)]  # type: ignore[union-attr]
        for result in (run(DEVICE), own):
            for a, b in zip(result, expected, strict=True):
                torch.testing.assert_close(a.cpu(), b, rtol=tolerance, atol=tolerance, msg=str((old, dtype, case)))


def test_antialiasing_by_a_factor_and_in_half_precision() -> None:
    x = torch.randn(1, 3, 12, 9)
    same(lambda device: functional.interpolate(x.to(device), scale_factor=0.5, mode="bilinear", antialias=True))
    half = functional.interpolate(x.half().to(DEVICE), size=(5, 4), mode="bicubic", antialias=True)
    assert half.dtype is torch.float16
    expected = functional.interpolate(x, size=(5, 4), mode="bicubic", antialias=True)
    torch.testing.assert_close(half.cpu().float(), expected, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("how", [{"mode": "nearest"}, {"mode": "area"}])
def test_antialiasing_is_for_smooth_modes(how: dict[str, str]) -> None:
    with pytest.raises(gt.errors.ShapeError, match="antialias is for bilinear and bicubic"):
        gt.nn.functional.interpolate(gt.ones(1, 1, 4, 4), (2, 2), antialias=True, **how)
    with pytest.raises(gt.errors.ShapeError, match="antialias is for bilinear and bicubic"):
        gt.nn.functional.interpolate(gt.ones(1, 1, 4, 4, dtype=gt.uint8), (2, 2), antialias=True, mode="bilinear")


# -- tables, shifts, asserts -------------------------------------------------------------------------


def test_a_table_with_a_largest_norm() -> None:
    table, at = torch.randn(6, 4) * 9, torch.tensor([[0, 3], [3, 5]])

    def run(device: str) -> list[torch.Tensor]:
        weight = table.to(device).clone().requires_grad_()
        y = functional.embedding(at.to(device), weight, max_norm=1.5)
        y.square().sum().backward()
        assert weight.grad is not None
        return [y.detach(), weight.detach(), weight.grad]

    same(run)


def test_shifts_in_place() -> None:
    def run(device: str) -> list[torch.Tensor]:
        x, y = torch.tensor([1, 2, 96]).to(device), torch.tensor([1, 2, 3]).to(device)
        base = x
        x <<= 2
        x >>= y
        x >>= 1
        return [base, x]

    same(run)


def test_asserts_on_the_device() -> None:
    yes, no = torch.tensor(True).to(DEVICE), torch.tensor([0.0]).to(DEVICE)
    torch._assert_async(yes)
    torch._assert_async(yes, "fine")
    with pytest.raises(RuntimeError, match="Expected a value that is not zero"):
        torch._assert_async(no)
    with pytest.raises(RuntimeError, match="the loss is nan"):
        torch._assert_async(no, "the loss is nan")
    token = torch.ones(1, device=DEVICE)
    assert torch.ops.aten._functional_assert_async.msg(yes, "fine", token).item() == 1
    with pytest.raises(RuntimeError, match="not fine"):
        torch.ops.aten._functional_assert_async.msg(no, "not fine", token)
