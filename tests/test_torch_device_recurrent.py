"""Recurrent layers on torch's device: one instruction a layer and pass, with torch's values and gradients.

The worker is a process: in this one, torch would not record the worker's own graph inside of a kernel of the device.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

import gt
import gt.torch_device
from gt.client.stream.connect import session

DEVICE = "gtx"
KINDS: tuple[Callable[..., Any], ...] = (torch.nn.LSTM, torch.nn.GRU, torch.nn.RNN)
by_name = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


@pytest.fixture(scope="module", autouse=True)
def _worker() -> Iterator[None]:
    gt.gpu_workers(1)
    yield
    gt.disconnect()


def values_and_gradients(layer: Any, x: Any, device: str, state: Any = None) -> list[torch.Tensor]:
    """What a layer and its backward pass return, on a device."""
    model = copy.deepcopy(layer).to(device)
    x = x.detach().to(device).requires_grad_()
    state = None if state is None else tuple(s.detach().to(device).requires_grad_() for s in state)
    y, end = model(x, state if state is None or isinstance(layer, torch.nn.LSTM) else state[0])
    ends = end if isinstance(end, tuple) else (end,)
    (y.square().sum() + sum((i + 2) * s.sin().sum() for i, s in enumerate(ends))).backward()
    grads = [t.grad for t in (x, *(state or ())[: len(ends)], *model.parameters())]
    return [t.detach().cpu() for t in (y, *ends, *grads)]


def both(layer: Any, x: Any, state: Any = None) -> None:
    torch.testing.assert_close(
        values_and_gradients(layer, x, DEVICE, state), values_and_gradients(layer, x, "cpu", state)
    )


@by_name
@pytest.mark.parametrize(
    ("layers", "bidirectional", "bias", "batch_first"), [*itertools.product((1, 2), *[(False, True)] * 3)]
)
def test_values_and_gradients(kind: Any, layers: int, bidirectional: bool, bias: bool, batch_first: bool) -> None:
    torch.manual_seed(0)
    layer = kind(3, 4, layers, bias=bias, bidirectional=bidirectional, batch_first=batch_first)
    count, batch = layers * (1 + bidirectional), 5 if batch_first else 2
    both(layer, torch.randn(5, 2, 3))
    both(layer, torch.randn(5, 2, 3), [torch.randn(count, batch, 4) for _ in range(2)])


@pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
def test_projections_relu_and_one_sequence() -> None:
    torch.manual_seed(0)
    both(torch.nn.LSTM(3, 4, 2, proj_size=2, bidirectional=True), torch.randn(5, 2, 3))
    both(torch.nn.LSTM(3, 4, proj_size=2, bias=False), torch.randn(5, 2, 3))
    both(torch.nn.RNN(3, 4, nonlinearity="relu"), torch.randn(5, 2, 3))
    both(torch.nn.GRU(3, 4), torch.randn(5, 3))
    both(torch.nn.GRU(3, 4).double(), torch.randn(5, 2, 3).double())


def packed(x: torch.Tensor, device: str) -> PackedSequence:
    return pack_padded_sequence(x.to(device), torch.tensor([2, 5, 3]), enforce_sorted=False)


@by_name
@pytest.mark.parametrize("layers", [1, 2])
def test_packed_sequences(kind: Any, layers: int) -> None:
    torch.manual_seed(0)
    layer, x, results = kind(3, 4, layers, bidirectional=True), torch.randn(5, 3, 3), []
    for device in (DEVICE, "cpu"):
        model = copy.deepcopy(layer).to(device)
        y, end = model(packed(x, device))
        padded = pad_packed_sequence(y)[0]
        (padded.square().sum() + sum(s.sum() for s in (end if isinstance(end, tuple) else (end,)))).backward()
        results.append([t.detach().cpu() for t in (padded, *(p.grad for p in model.parameters()))])
    torch.testing.assert_close(*results)


@by_name
def test_a_layer_is_one_instruction_each_way(kind: Any) -> None:
    layer, x = kind(3, 4).to(DEVICE), torch.randn(50, 2, 3).to(DEVICE)
    counts = []
    for _ in range(2):
        before = session().worker_stats()[0].total_instructions
        layer(x)[0].sum().backward()
        x.sum().item()
        counts.append(session().worker_stats()[0].total_instructions - before)
    assert max(counts) < 30, "step by step there are more than 50"


def test_without_gradients() -> None:
    torch.manual_seed(0)
    layer, x = torch.nn.LSTM(3, 4, 2, dropout=0.5).eval(), torch.randn(5, 2, 3)
    expected = layer(x)[0]
    on_device = copy.deepcopy(layer).to(DEVICE)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            torch.testing.assert_close(on_device(x.to(DEVICE))[0].cpu(), expected.detach())


def test_dropout_between_layers() -> None:
    torch.manual_seed(0)
    layer, x = torch.nn.GRU(3, 4, 2, dropout=0.5).to(DEVICE), torch.ones(5, 2, 3, device=DEVICE)
    first, second = layer(x)[0].cpu(), layer(x)[0].cpu()
    assert not torch.equal(first, second)
    layer.eval()
    assert torch.equal(layer(x)[0].cpu(), layer(x)[0].cpu())


@by_name
def test_gradients_of_gradients(kind: Any) -> None:
    torch.manual_seed(0)
    layer, x, results = kind(3, 4, bidirectional=True), torch.randn(5, 2, 3), []
    for device in (DEVICE, "cpu"):
        model, own = copy.deepcopy(layer).to(device), x.detach().to(device).requires_grad_()
        (grad,) = torch.autograd.grad(model(own)[0].square().sum(), own, create_graph=True)
        grad.square().sum().backward()
        results.append([t.cpu() for t in (grad.detach(), own.grad, *(p.grad for p in model.parameters()))])
    torch.testing.assert_close(*results)


def test_autocast_and_transforms_run_step_by_step() -> None:
    torch.manual_seed(0)
    layer, x = torch.nn.LSTM(3, 4), torch.randn(5, 2, 3)
    on_device = copy.deepcopy(layer).to(DEVICE)
    with torch.autocast(DEVICE, torch.bfloat16):
        low = on_device(x.to(DEVICE))[0]
    torch.testing.assert_close(low.float().cpu(), layer(x)[0], atol=0.02, rtol=0.02)
    weights = {name: p.detach() for name, p in on_device.named_parameters()}
    loss = lambda own: torch.func.functional_call(on_device, own, (x.to(DEVICE),))[0].square().sum()
    grads = torch.func.grad(loss)(weights)
    layer(x)[0].square().sum().backward()
    for name, p in layer.named_parameters():
        torch.testing.assert_close(grads[name].cpu(), p.grad)


def test_what_torch_refuses() -> None:
    layer = torch.nn.LSTM(3, 4).to(DEVICE)
    with pytest.raises(RuntimeError, match=r"input\.size"):
        layer(torch.ones(5, 2, 4, device=DEVICE))
    with pytest.raises(ValueError, match="does not match weight dtype"):
        layer(torch.ones(5, 2, 3, device=DEVICE).double())
    with pytest.raises(RuntimeError, match="larger than 0"):
        layer(torch.ones(0, 2, 3, device=DEVICE))


@by_name
def test_data_that_is_written_between_the_passes(kind: Any) -> None:
    """torch computes with what is there then."""
    results = []
    for device in (DEVICE, "cpu"):
        torch.manual_seed(0)
        layer, x = kind(3, 4).to(device), torch.ones(5, 2, 3).to(device).requires_grad_()
        y = layer(x)[0]
        layer.weight_hh_l0.data.mul_(2)
        y.sum().backward()
        results.append(x.grad.cpu())
    torch.testing.assert_close(*results)


@pytest.mark.long
@by_name
def test_gradcheck(kind: Any) -> None:
    layer = kind(2, 2).double().to(DEVICE)
    x = torch.randn(2, 1, 2, dtype=torch.float64).to(DEVICE).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: layer(x)[0], (x,))


@pytest.mark.long
def test_torch_compile_goes_around_them() -> None:
    torch.manual_seed(0)
    layer, x = torch.nn.LSTM(3, 4, num_layers=2), torch.randn(5, 2, 3)
    compiled = torch.compile(copy.deepcopy(layer).to(DEVICE), backend="gt")
    for _ in range(3):
        torch.testing.assert_close(compiled(x.to(DEVICE))[0].cpu(), layer(x)[0])
