"""Attention on the device ``gtx``: its results are stored as torch stores them, and can be written through views."""

from __future__ import annotations

import io
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional

import gt
import gt.torch_device
from gt.testing import Cluster
from gt.torch_device import unwrap

DEVICE = gt.torch_device.NAME


@pytest.fixture(autouse=True)
def _client() -> Iterator[None]:
    with Cluster().client():
        yield


def heads(device: str, exchanged: bool) -> list[torch.Tensor]:
    """Query, key and value: parts of one tensor with two dims exchanged, as in a GPT, or contiguous tensors."""
    whole = torch.randn(2, 5, 96, generator=torch.Generator().manual_seed(0)).to(device)
    parts = whole.split(32, 2)
    if exchanged:
        return [x.view(2, 5, 4, 8).transpose(1, 2).requires_grad_() for x in parts]
    return [x.reshape(2, 4, 5, 8).requires_grad_() for x in parts]


def results(device: str, exchanged: bool) -> list[Any]:
    q, k, v = heads(device, exchanged)
    y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    rows = y.transpose(1, 2).reshape(2, 5, 32)
    rows.square().sum().backward()
    written = y.detach().clone() if not exchanged else y.detach()
    written.transpose(1, 2)[:, 1, 3:9] = 7
    written[0, 1].mul_(2)
    if exchanged:
        written.transpose(1, 2).view(2, 5, 32)[:, 2, 3:9] = 5
    stored = torch.tensor(y.detach().untyped_storage().tolist())
    return [rows, q.grad, k.grad, v.grad, written, stored, pickle.loads(pickle.dumps(written)), y.stride()]


@pytest.mark.parametrize("exchanged", [True, False])
def test_results_are_stored_as_torch_stores_them(exchanged: bool) -> None:
    """Also from a plan: the third call of a kernel does not run its function."""
    want = results("cpu", exchanged)
    for _ in range(3):
        *got, strides = results(DEVICE, exchanged)
        for a, b in zip(got, want[:-1], strict=True):
            torch.testing.assert_close(a.detach().cpu(), b.detach())
        assert strides == want[-1]


def test_heads_are_put_together_without_copies() -> None:
    outbox = unwrap(torch.ones(1, device=DEVICE))._cell.session.outbox
    for _ in range(3):
        outbox.flush()
        outbox.recent.clear()
        whole = torch.ones(2, 5, 96, device=DEVICE, requires_grad=True)
        q, k, v = (x.view(2, 5, 4, 8).transpose(1, 2) for x in whole.split(32, 2))
        y = functional.scaled_dot_product_attention(q, k, v)
        y.transpose(1, 2).contiguous().view(2, 5, 32).sum().backward()
        tape = io.StringIO()
        gt.debug.print_tape(file=tape)
        assert " = attention(" in tape.getvalue()
        assert not any(f" = {name}(" in tape.getvalue() for name in ("clone", "reshape", "copy"))


def test_a_shape_that_needs_a_copy_gets_one() -> None:
    y = functional.scaled_dot_product_attention(*heads(DEVICE, True))
    assert not y.is_contiguous()
    with pytest.raises(RuntimeError, match="has no view of that shape"):
        y.view(8, 40)
    flat = y.reshape(8, 40)
    assert torch.equal(flat[3].cpu(), y.cpu()[0, 3].reshape(40))
    assert y.contiguous().is_contiguous()
    assert torch.equal(y.contiguous().cpu(), y.cpu())
