"""torch's optimizers on the device ``gtx``: by default, too, a step is one instruction, with torch's bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import gt.torch_device
from gt.testing import Cluster
from gt.torch_device.handles import unwrap
from gt.wire.fragments import sort_words

DEVICE = gt.torch_device.NAME


@pytest.fixture(autouse=True)
def _client() -> Iterator[None]:
    with Cluster().client():
        yield


OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "AdamW": lambda ps: torch.optim.AdamW(ps, lr=1e-2),
    "Adam": lambda ps: torch.optim.Adam(ps, lr=1e-2, weight_decay=0.1, amsgrad=True, maximize=True),
    "SGD": lambda ps: torch.optim.SGD(ps, lr=1e-2, weight_decay=0.1, maximize=True),
    "momentum": lambda ps: torch.optim.SGD(ps, lr=1e-2, momentum=0.9, dampening=0.5),
    "nesterov": lambda ps: torch.optim.SGD(ps, lr=1e-2, momentum=0.9, nesterov=True),
    "fused SGD": lambda ps: torch.optim.SGD(ps, lr=1e-2, momentum=0.9, fused=ps[0].device.type == DEVICE),
}


def steps_of(make: Callable[..., Any], device: str, count: int) -> tuple[list[torch.Tensor], Any]:
    """Parameters after some steps, and their optimizer. The second has no gradient in every other step."""
    generator = torch.Generator().manual_seed(0)
    params = [torch.randn(3, k + 2, generator=generator).to(device).requires_grad_() for k in range(4)]
    optimizer = make(params)
    for k in range(count):
        for p in params:
            p.grad = torch.randn(p.shape, generator=generator).to(device)
        if k % 2:
            params[1].grad = None
        optimizer.step()
    return params, optimizer


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_default_optimizers_have_torchs_bits(name: str) -> None:
    (ours, optimizer), (theirs, other) = (steps_of(OPTIMIZERS[name], device, 5) for device in (DEVICE, "cpu"))
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a.detach().cpu(), b)
        for key, value in other.state[b].items():
            assert torch.equal(optimizer.state[a][key].cpu(), value), key


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_default_step_is_one_instruction(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    params, optimizer = steps_of(OPTIMIZERS[name], DEVICE, 1)
    session = unwrap(params[0])._cell.session
    session.outbox.flush()
    monkeypatch.setattr(session.outbox, "cut", lambda: None)
    optimizer.step()
    words, by_code = session.outbox.words, session.signatures.by_code
    codes = sort_words(words, by_code, 0).fixed[::2]
    assert [by_code[words[p]].op.name for p in codes] == ["adam_step" if "Adam" in name else "sgd_step"]


def test_steps_that_torch_computes_itself() -> None:
    """Gradients through a step, a rate in a tensor, a parameter that is a view: torch's own ops."""
    for device in (DEVICE, "cpu"):
        x = torch.ones(4, device=device, requires_grad=True)
        w = x.clone()
        w.retain_grad()
        optimizer = torch.optim.SGD([w], lr=0.5, differentiable=True)
        w.grad = (x * 2).clone()
        optimizer.step()
        w.sum().backward()
        assert x.grad is not None
        assert x.grad.tolist() == [0] * 4
        view = torch.ones(4, device=device)[1:3].requires_grad_()
        view.grad = torch.ones(2, device=device)
        for lr in (torch.tensor(0.5), 0.5):
            torch.optim.AdamW([view], lr=lr, weight_decay=0.0).step()
        torch.testing.assert_close(view.detach().cpu(), torch.zeros(2))


def test_a_state_of_another_dtype() -> None:
    results = []
    for device in (DEVICE, "cpu"):
        p = torch.ones(3, device=device, dtype=torch.bfloat16, requires_grad=True)
        p.grad = torch.ones_like(p)
        optimizer = torch.optim.SGD([p], lr=0.5, momentum=0.5)
        optimizer.state[p]["momentum_buffer"] = torch.ones(3, device=device)
        optimizer.step()
        results.append(p.detach().cpu())
    assert torch.equal(*results)


def test_parameters_on_the_cpu_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "_fused_adamw_", None)
    for shape in ((), (3,)):
        p = torch.ones(shape, requires_grad=True)
        p.grad = torch.ones(shape)
        torch.optim.AdamW([p], lr=0.5, weight_decay=0.0).step()
        torch.testing.assert_close(p.detach(), torch.full(shape, 0.5))


def test_a_default_step_is_a_write_for_autograd() -> None:
    w = torch.ones(3, device=DEVICE, requires_grad=True)
    y = (w * w).sum()
    w.grad = torch.ones(3, device=DEVICE)
    torch.optim.AdamW([w]).step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def trained(device: str, clear: str, steps: int) -> tuple[torch.nn.Module, Callable[[], None]]:
    """A model after some steps, and the function that does one more."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh(), torch.nn.Linear(4, 4)).to(device)
    optimizer, x = torch.optim.AdamW(model.parameters(), lr=0.01), torch.ones(2, 4).to(device)

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        if clear == "model":
            model.zero_grad()
        else:
            optimizer.zero_grad(set_to_none=clear == "optimizer")

    for _ in range(steps):
        step()
    return model, step


@pytest.mark.parametrize("clear", ["optimizer", "model", "optimizer, to zeros"])
def test_gradients_that_are_cleared_after_a_step_belong_to_it(clear: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the compiled code of the step would have to write them into memory."""
    ours, step = trained(DEVICE, clear, 8)
    outbox = unwrap(next(ours.parameters()))._cell.session.outbox
    sent: list[Any] = []
    real = outbox.templates.sent
    monkeypatch.setattr(outbox.templates, "sent", lambda words: sent.append(words) or real(words))
    step()
    ((_, number, *_),) = sent  # the words that run a fragment
    freed = sum(type(word) is int and word < 0 for word in outbox.templates.announced[number].words)
    assert not outbox.freed_between
    assert freed >= len(list(ours.parameters())) * (clear != "optimizer, to zeros")
    theirs, _ = trained("cpu", clear, 9)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.allclose(a.detach().cpu(), b)
        assert (a.grad is None) == (b.grad is None)
