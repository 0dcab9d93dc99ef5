"""``torch.compile(model, backend="gt")``: graphs run as fragments, with eager's values and gradients."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import gt.torch_device
from gt.client.stream.connect import session
from gt.testing import Cluster
from gt.torch_device import cpu_fallbacks
from gt.wire.words import RUN

DEVICE = "gtx"


@pytest.fixture(autouse=True)
def _client() -> Iterator[None]:
    with Cluster(backend="numpy").client():  # nothing is compiled on the worker, which would take minutes
        yield
    torch._dynamo.reset()


def compiled(model: Any, **options: Any) -> Any:
    return torch.compile(model, backend="gt", **options)


class Block(nn.Module):
    """Attention and an MLP, with views and a batch norm, which writes its statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.batch_norm = nn.LayerNorm(8), nn.BatchNorm1d(8)
        self.qkv, self.up, self.down = nn.Linear(8, 24), nn.Linear(8, 16), nn.Linear(16, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, steps, _ = x.shape
        q, k, v = (z.view(batch, steps, 2, 4).transpose(1, 2) for z in self.qkv(self.norm(x)).split(8, dim=2))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + y.transpose(1, 2).reshape(batch, steps, 8)
        x = self.batch_norm(x.transpose(1, 2)).transpose(1, 2)
        return x + self.down(nn.functional.gelu(self.up(x)))


def fragments_run() -> int:
    """How many of the last submissions run a fragment."""
    session().outbox.flush()
    return sum(RUN in words for words, _, _ in session().outbox.recent)


def test_a_training_loop_is_eagers() -> None:
    torch.manual_seed(0)
    model = Block()
    device_model = copy.deepcopy(model).to(DEVICE)
    call = compiled(device_model)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, device_model)]
    for step in range(6):
        x = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(step))
        losses = [model(x).square().mean(), call(x.to(DEVICE)).square().mean()]
        for loss, optimizer in zip(losses, optimizers, strict=True):
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        torch.testing.assert_close(losses[1].cpu(), losses[0])
    assert fragments_run() >= 4
    state = {name: value.cpu() for name, value in device_model.state_dict().items()}
    torch.testing.assert_close(state, dict(model.state_dict()))
    gradients = [[p.grad.cpu() for p in m.parameters()] for m in (model, device_model)]  # type: ignore[union-attr]
    torch.testing.assert_close(gradients[1], gradients[0])


def test_without_gradients_a_call_is_one_fragment() -> None:
    x = torch.arange(6.0).reshape(2, 3)
    call = compiled(lambda x, y: (x.t() * 2 + y, x, y.sum()))
    y = torch.ones(3, 2, device=DEVICE)
    for k in range(5):
        device_x = (x + k).to(DEVICE)
        with torch.no_grad():
            results = call(device_x, y)
        assert torch.equal(results[0].cpu(), (x + k).t() * 2 + 1)
        assert results[1] is device_x
        assert results[2].item() == 6
    assert fragments_run() >= 2


def test_what_is_saved_for_the_backward_pass() -> None:
    torch.manual_seed(0)
    model = Block()
    device_model = copy.deepcopy(model).to(DEVICE)
    call = compiled(device_model)
    x = torch.randn(2, 3, 8)
    expected = model(x).square().sum()
    expected.backward(retain_graph=True)
    expected.backward()
    for _ in range(4):
        device_model.zero_grad()
        model.batch_norm.load_state_dict(device_model.batch_norm.state_dict())
        result = call(x.to(DEVICE)).square().sum()
        result.backward(retain_graph=True)
        result.backward()
        gradients = [[p.grad.cpu() for p in m.parameters()] for m in (model, device_model)]  # type: ignore[union-attr]
        torch.testing.assert_close(gradients[1], gradients[0])
    packed: list[torch.Size] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t.shape) or t.clone(), lambda t: t + 0):
        device_model.zero_grad()
        result = call(x.to(DEVICE)).square().sum()
    assert torch.Size((2, 3, 8)) in packed
    result.backward()
    torch.testing.assert_close(device_model.qkv.weight.grad.cpu() * 2, model.qkv.weight.grad)  # type: ignore[union-attr]
    result = call(x.to(DEVICE)).square().sum()
    with torch.no_grad():
        device_model.qkv.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.backward()


def test_other_shapes() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    device_layer = copy.deepcopy(layer).to(DEVICE)
    call = compiled(device_layer)
    for rows in (2, 3, 5, 3, 5, 3, 5, 7):
        x = torch.randn(rows, 4)
        layer.zero_grad(), device_layer.zero_grad()
        expected, result = layer(x), call(x.to(DEVICE))
        expected.sum().backward(), result.sum().backward()
        torch.testing.assert_close(result.cpu(), expected)
        torch.testing.assert_close(device_layer.weight.grad.cpu(), layer.weight.grad)  # type: ignore[union-attr]


def test_random_numbers_are_drawn_in_each_call() -> None:
    x = torch.ones(200, device=DEVICE)
    call = compiled(lambda x: nn.functional.dropout(x, 0.5))
    masks = {tuple(call(x).tolist()) for _ in range(5)}
    assert len(masks) == 5


def test_the_backward_pass_drops_what_the_forward_pass_dropped() -> None:
    w = torch.ones(200, device=DEVICE, requires_grad=True)
    call = compiled(lambda w: nn.functional.dropout((w * 2).sin(), 0.5))
    for _ in range(4):
        w.grad = None
        result = call(w)
        result.sum().backward()
        assert w.grad is not None
        assert torch.equal((w.grad != 0).cpu(), (result != 0).cpu())


def test_an_op_that_is_missing_runs_by_itself(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("GT_TORCH_FALLBACK", "1")
    x = torch.tensor([0.5, 1.5])
    call = compiled(lambda x: torch.special.airy_ai(x) * 2)
    with pytest.warns(UserWarning, match="airy_ai"):
        result = call(x.to(DEVICE))
    torch.testing.assert_close(result.cpu(), torch.special.airy_ai(x) * 2)
    assert any("airy_ai" in name for name in cpu_fallbacks())
    assert "has no kernel for aten.special_airy_ai.default: this graph runs op by op" in capsys.readouterr().err


def test_the_backend_has_a_name() -> None:
    compiled(lambda x: x)
    assert "gt" in torch._dynamo.list_backends()
    assert gt.torch_device.NAME == DEVICE


def test_results_that_share_elements() -> None:
    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * 2
        return y, y[1:], y.t() if y.ndim == 2 else y.view(-1), x + 1

    for shape in ((3,), (2, 3)):
        call = compiled(function)
        for _ in range(4):
            y, *views, other = call(torch.ones(shape, device=DEVICE))
            y.zero_()
            assert [v.sum().item() for v in views] == [0, 0]
            assert other.sum().item() == 2 * torch.Size(shape).numel()


def test_a_number_that_changes() -> None:
    call = compiled(lambda x, k: (x * k).sum())
    for k in (2.5, 3.5, 4.5):
        assert call(torch.ones(2, device=DEVICE), k).item() == 2 * k
