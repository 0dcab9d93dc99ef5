"""The device ``gtx`` of torch: tensors, views, writes, gradients, modules, and what is missing."""

from __future__ import annotations

import copy
import io
import pathlib
import subprocess
import sys
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import gt
import gt.torch_device
from gt.client.stream import sites
from gt.testing import Cluster
from gt.torch_device import cpu_fallbacks
from gt.torch_device.fallback import MissingKernel
from gt.torch_device.handles import unwrap
from tests.support.sizes import ROOT

DEVICE = "gtx"


@pytest.fixture(autouse=True)
def _client() -> Iterator[None]:
    with Cluster().client():
        yield


def numbers(*shape: int) -> torch.Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)


# -- tensors ---------------------------------------------------------------------------------


def test_values_go_to_the_device_and_back() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64):
        x = torch.tensor([[1, 0], [0, 3]]).to(dtype)
        y = x.to(DEVICE)
        assert y.device.type == DEVICE
        assert y.dtype is dtype
        assert torch.equal(y.cpu(), x)
    assert torch.ones(2, device=DEVICE).sum().item() == 2
    assert torch.full((2,), 3, device=DEVICE).tolist() == [3, 3]
    assert torch.tensor([1.5], device=DEVICE).item() == 1.5
    assert torch.arange(3, device=DEVICE).tolist() == [0, 1, 2]
    assert torch.zeros_like(torch.ones(2, device=DEVICE), device="cpu").device.type == "cpu"


def test_modules_without_sizes() -> None:
    """The parameters of lazy modules get their shapes at the first call, on the device too."""
    model = torch.nn.Sequential(torch.nn.LazyConv2d(3, 2), torch.nn.LazyBatchNorm2d(), torch.nn.Flatten())
    model.append(torch.nn.LazyLinear(2))
    model.to(DEVICE)
    y = model(numbers(2, 1, 4, 4).to(DEVICE))
    y.sum().backward()
    assert [type(p) for p in model.parameters()] == [torch.nn.Parameter] * 6
    assert all(p.grad is not None and p.device.type == DEVICE for p in model.parameters())
    assert torch.allclose(y.cpu(), copy.deepcopy(model).cpu()(numbers(2, 1, 4, 4)), atol=1e-5)


def test_positions_on_the_cpu() -> None:
    x, at, mask = numbers(4, 3), torch.tensor([2, 0]), torch.tensor([True, False, True, True])
    for position in (at, mask, (slice(None), at), (at, at), (Ellipsis, at), (at, slice(0, 2)), (None, mask)):
        want, got = x.clone(), x.to(DEVICE).requires_grad_()
        assert torch.equal(got[position].cpu(), want[position])
        got[position].sum().backward()
        assert got.grad is not None
        assert got.grad.sum() == want[position].numel()
        written = x.to(DEVICE)
        want[position] = 5
        written[position] = 5
        assert torch.equal(written.cpu(), want)
    want, written = x.clone(), x.to(DEVICE)
    for y in (want, written):
        y[at] += 1
        y.index_put_((at,), torch.ones(3, device=y.device), accumulate=True)
    assert torch.equal(written.cpu(), want)
    with pytest.raises(RuntimeError, match=r"same device|on cpu"):
        x[at.to(DEVICE)]


def test_a_complex_number_beside_a_tensor_that_is_written() -> None:
    pairs = torch.complex(numbers(2, 3), numbers(2, 3))
    for write in (torch.Tensor.mul_, torch.Tensor.add_, torch.Tensor.sub_, torch.Tensor.div_):
        assert torch.allclose(write(pairs.to(DEVICE), 2 + 1j).cpu(), write(pairs.clone(), 2 + 1j))
    with pytest.raises(RuntimeError, match=r"can't be cast|complex"):
        numbers(2).to(DEVICE).mul_(1j)


def test_writes_into_conjugates() -> None:
    """A conjugate, and its imaginary part, share memory with the tensor."""
    pairs = torch.complex(numbers(2, 3), numbers(2, 3) + 1)
    writes: list[Callable[[torch.Tensor], Any]] = [
        lambda c: c.imag.add_(1),
        lambda c: c.imag.mul_(2),
        lambda c: c.imag.copy_(torch.ones(2, 3)),
        lambda c: c.imag.fill_(3),
        lambda c: c.imag.zero_(),
        lambda c: c.real.add_(1),
        lambda c: c.imag[0].sub_(5),
        lambda c: c.mul_(1j),
        lambda c: c.fill_(1 + 2j),
        lambda c: c.imag.__setitem__(0, 7),
        lambda c: c.T.conj().imag.add_(c.imag.T),
        lambda c: torch.exp(c.real, out=c.imag),
    ]
    for k, writing in enumerate(writes):
        results = []
        for place in ("cpu", DEVICE):
            x = pairs.clone().to(place)
            c = x.conj()
            writing(c)
            results.append((x.cpu(), c.resolve_conj().cpu(), c.imag.resolve_neg().cpu()))
        for got, want in zip(results[1], results[0], strict=True):
            assert torch.allclose(got, want), (k, got, want)


@pytest.mark.parametrize("n", [1, 4, 5])
def test_frequencies(n: int) -> None:
    """torch's own function writes the negative half into memory behind an empty view."""
    for function in (torch.fft.fftfreq, torch.fft.rfftfreq):
        want = function(n, 0.5)
        assert torch.equal(function(n, 0.5, device=DEVICE).cpu(), want)
        assert torch.equal(function(n, 0.5, out=torch.empty(0, device=DEVICE)).cpu(), want)
        assert function(n, device=DEVICE, dtype=torch.float64).dtype is torch.float64


def test_a_dtype_that_gt_does_not_have_is_refused() -> None:
    with pytest.raises(gt.DTypeError, match=r"GT has no torch\.complex32"):
        torch.empty(2, dtype=torch.complex32, device=DEVICE)
    with pytest.raises(gt.DTypeError, match=r"GT has no torch\.uint32"):
        torch.zeros(2, dtype=torch.uint32).to(DEVICE)
    with pytest.raises(gt.DTypeError, match=r"GT has no torch\.uint32"):
        torch.empty(2, dtype=torch.uint32, device=DEVICE)


def test_tensors_on_two_devices_are_refused() -> None:
    with pytest.raises(RuntimeError, match=r"same device: torch\.float32\[2\] is on cpu; move it with"):
        torch.ones(2, device=DEVICE) + torch.ones(2)
    with pytest.raises(RuntimeError, match="not defined for bool"):
        torch.ones(2, device=DEVICE).bool() - torch.ones(2, device=DEVICE).bool()  # not "unsupported operand types"
    assert (torch.ones(2, device=DEVICE) + torch.tensor(1.0)).tolist() == [2, 2]  # no dims: as on other devices


def test_printing() -> None:
    assert repr(numbers(2).to(DEVICE)) == "tensor([0., 1.], device='gtx:0')"


def test_views_have_the_strides_of_torch() -> None:
    x, y = numbers(2, 3, 4), numbers(2, 3, 4).to(DEVICE)
    for view in (
        lambda t: t.transpose(0, 2), lambda t: t[:, 1], lambda t: t[..., ::2], lambda t: t.permute(2, 0, 1)[1:],
        lambda t: t.view(6, 4).t(), lambda t: t[:, None].expand(2, 5, 3, 4), lambda t: t.diagonal(0, 1, 2),
        lambda t: t.unfold(2, 2, 1), lambda t: t.unbind(1)[2], lambda t: t.split(2, 2)[1], lambda t: t[0].squeeze(),
        lambda t: t.as_strided((2, 2), (1, 3)), lambda t: t.as_strided((3,), (0,), 5),
    ):  # fmt: skip
        assert view(y).stride() == view(x).stride()
        assert view(y).is_contiguous() == view(x).is_contiguous()
        assert torch.equal(view(y).cpu(), view(x))
    with pytest.raises(RuntimeError, match="view"):
        y.transpose(0, 2).view(24)
    with pytest.raises(MissingKernel, match="reaches beyond the elements"):
        y.as_strided((2, 2), (30, 1))


def test_writes_pass_between_views() -> None:
    x, y = numbers(3, 4), numbers(3, 4).to(DEVICE)
    for t in (x, y):
        column, row, flat = t[:, 1], t[1], t.view(-1)
        column += 10
        row.mul_(2)
        flat[0] = -1
        t[2, 2:] = 7
        t.t()[3].zero_()
    assert torch.equal(y.cpu(), x)
    d = y.detach()
    d[0, 0] = 5
    assert y[0, 0].item() == 5
    y.data.add_(1)
    assert d[0, 0].item() == 6


def test_empty_tensors_get_their_value_at_the_first_write() -> None:
    x = torch.empty(3, device=DEVICE)
    row = x[0]
    row.fill_(4)
    assert x.tolist() == [4, 0, 0]
    source = torch.ones(2, device=DEVICE)
    target = torch.empty(2, device=DEVICE).copy_(source)
    source.add_(1)
    assert target.tolist() == [1, 1]  # a copy, not the source itself


def test_values_are_freed_with_their_tensors() -> None:
    x = torch.ones(2, device=DEVICE)
    view, detached = x[0], x.detach()
    base, part = (weakref.ref(unwrap(t)._cell) for t in (x, view))
    del x
    assert base() is not None  # the view and the detached tensor need it
    del view
    assert part() is None
    assert base() is not None
    del detached
    assert base() is None


def test_shapes_change_in_place() -> None:
    x = numbers(2, 3).to(DEVICE)
    assert x.t_().shape == (3, 2)
    assert x.unsqueeze_(0).squeeze_(0).tolist() == numbers(2, 3).t().tolist()
    assert x.resize_(2, 2).tolist() == [[0, 3], [1, 4]]
    assert x.resize_(5).tolist() == [0, 3, 1, 4, 0]
    assert x.set_(torch.ones(2, device=DEVICE)).tolist() == [1, 1]


def test_in_place_and_out_are_checked_as_in_torch() -> None:
    x = torch.ones(2, 2, dtype=torch.int64, device=DEVICE)
    with pytest.raises(RuntimeError, match=r"can't be cast|does not fit"):
        x.add_(0.5)
    with pytest.raises(RuntimeError, match="can't be cast"):
        torch.cumsum(torch.ones(2, device=DEVICE), 0, out=torch.empty(2, dtype=torch.int64, device=DEVICE))
    with pytest.raises(RuntimeError, match="does not fit"):
        torch.ones(2, device=DEVICE).hypot_(torch.ones(3, 2, device=DEVICE))
    out = torch.empty(3, device=DEVICE)
    with pytest.warns(UserWarning, match="was resized"):
        torch.cumsum(torch.ones(2, 2, device=DEVICE), 0, out=out)
    assert out.tolist() == [[1, 1], [2, 2]]


# -- gradients -------------------------------------------------------------------------------


def test_gradients_are_torchs_and_hooks_run() -> None:
    results = []
    for device in ("cpu", DEVICE):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).to(device)
        seen = []
        model[0].weight.register_hook(lambda g, seen=seen: seen.append(g.abs().sum().item()))
        x = numbers(2, 3).to(device).requires_grad_()
        loss = model(x).square().mean()
        (first,) = torch.autograd.grad(loss, x, create_graph=True)
        (loss + first.square().sum()).backward()
        results.append([*seen, loss.item(), *x.grad.flatten().tolist(), *model[2].bias.grad.tolist()])
    torch.testing.assert_close(*map(torch.tensor, results))


def test_writing_what_a_gradient_needs_is_an_error() -> None:
    x = torch.ones(2, device=DEVICE, requires_grad=True)
    y = x.exp()
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def test_gradients_through_writes_into_views() -> None:
    results = []
    for device in ("cpu", DEVICE):
        x = numbers(2, 3).to(device).requires_grad_()
        y = x * 2
        y[:, 1] *= 3
        y.t()[2] = 5
        y.sum().backward()
        results.append(x.grad.cpu())
    assert torch.equal(*results)


def test_backward_runs_in_the_thread_that_calls_it() -> None:
    threads = []

    class Identity(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, g):
            threads.append(threading.get_ident())
            return g

    def run() -> None:
        x = torch.ones(2, device=DEVICE, requires_grad=True)
        Identity.apply(x).sum().backward()
        threads.append(threading.get_ident())

    run()
    other = threading.Thread(target=run)
    other.start()
    other.join()
    assert threads[0] == threads[1] == threading.get_ident()
    assert threads[2] == threads[3] != threads[0]


# -- modules ---------------------------------------------------------------------------------


def test_a_parameter_is_one_tensor() -> None:
    weight = torch.nn.Parameter(torch.ones(2, device=DEVICE))
    assert weight.is_leaf
    assert weight.requires_grad
    with torch.no_grad():
        weight.detach().add_(1)
    assert weight.tolist() == [2, 2]


def test_moving_a_model_keeps_its_parameters_and_ties() -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5, bias=False)
            self.head.weight = self.embed.weight

    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model.to(DEVICE)
    assert model.head.weight is model.embed.weight
    assert model.head.weight.device.type == DEVICE
    model.head(model.embed(torch.tensor([1], device=DEVICE))).sum().backward()
    before = model.head.weight.detach().clone()
    optimizer.step()
    assert not torch.equal(model.embed.weight, before)
    assert model.to("cpu").head.weight is model.embed.weight
    assert model._apply(lambda t: t[:2].clone()).embed.weight.shape == (2, 3)  # no conversion
    assert torch.nn.Linear(2, 2)._apply(lambda t: t.reshape(-1, 2)[0]).weight.shape == (2,)  # fails on no elements


def test_copies_of_models_and_checkpoints() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).to(DEVICE)
    other = copy.deepcopy(model)
    with torch.no_grad():
        model[0].weight.zero_()
        model[1].running_mean.add_(1)
    assert other[0].weight.abs().sum().item() > 0
    assert other[1].running_mean.tolist() == [0, 0]
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    state = torch.load(file)
    assert {t.device.type for t in state.values()} == {DEVICE}
    other.load_state_dict(state)
    assert other[1].running_mean.tolist() == [1, 1]
    file.seek(0)
    assert torch.load(file, map_location="cpu")["0.weight"].device.type == "cpu"


PARTS = (
    lambda t: t, lambda t: t.detach(), lambda t: t[1:, 2], lambda t: t[::2, None, 1:].transpose(0, 1),
    lambda t: t.diagonal(1), lambda t: t.diagonal(-1)[1:], lambda t: t.view(2, 6)[1, 4:],
    lambda t: t.unfold(1, 2, 1)[:, 1], lambda t: t.expand(2, 3, 4)[1, 2, 3],
)  # fmt: skip


def test_addresses_tell_which_tensors_share_elements() -> None:
    for part in PARTS:
        real, pairs = numbers(3, 4), torch.complex(numbers(3, 4), numbers(3, 4))
        for x in (real, pairs):
            y = x.to(DEVICE)
            views = [(part(x), part(y))]
            if x is pairs:
                views += [(a.imag, b.imag) for a, b in views] + [tuple(map(torch.view_as_real, views[0]))]
            for theirs, ours in views:
                assert ours.data_ptr() - y.data_ptr() == theirs.data_ptr() - x.data_ptr()
                assert ours.untyped_storage().data_ptr() == y.untyped_storage().data_ptr() == y.data_ptr()
    a, b = torch.ones(2, device=DEVICE), torch.ones(2, device=DEVICE)
    assert b.data_ptr() not in range(a.data_ptr(), a.data_ptr() + a.nbytes)
    assert torch.empty(2, device=DEVICE).untyped_storage().data_ptr() == torch.empty(2, device="meta").data_ptr() == 0


def test_random_numbers_have_a_state() -> None:
    torch.manual_seed(5)
    first = torch.randn(4, device=DEVICE)
    state = torch.get_device_module(DEVICE).get_rng_state()
    second = torch.rand(4, device=DEVICE)
    torch.get_device_module(DEVICE).set_rng_state(state)
    assert torch.equal(torch.rand(4, device=DEVICE), second)
    torch.manual_seed(5)
    assert torch.equal(torch.randn(4, device=DEVICE), first)
    assert not torch.equal(torch.randn(4, device=DEVICE), first)


def test_checkpointed_dropout_drops_the_same_again() -> None:
    from torch.utils.checkpoint import checkpoint

    x = torch.ones(64, device=DEVICE, requires_grad=True)
    y = checkpoint(lambda t: torch.nn.functional.dropout(t, 0.5), x, use_reentrant=False)
    y.sum().backward()
    assert torch.equal(y, x.grad)


def test_autocast_casts_what_the_entries_say_and_lets_the_rest_pass() -> None:
    layer, x = torch.nn.Linear(3, 3).to(DEVICE), torch.ones(2, 3, device=DEVICE)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        y = layer(x)
        assert y.dtype is torch.bfloat16
        assert torch.nn.functional.layer_norm(y, (3,)).dtype is torch.float32
        assert torch.cat([y, x]).dtype is torch.float32
        assert torch.flip(y, (0,)).dtype is torch.bfloat16  # has no policy
        y.float().sum().backward()
    assert layer.weight.grad.dtype is torch.float32


def _lower_linear(x: Any, weight: Any, bias: Any) -> Any:
    return torch.nn.functional.linear(x, weight, bias)


def _lower_addmm(x: Any, weight: Any, bias: Any) -> Any:
    return torch.addmm(bias, x.flatten(0, -2), weight.mT)


@pytest.mark.parametrize("product", [_lower_linear, _lower_addmm])
@pytest.mark.parametrize("needed", [(True, True, True), (False, True, True), (True, False, False)])
def test_products_under_autocast_have_torchs_gradients(product: Any, needed: tuple[bool, ...]) -> None:
    """One node of autograd casts and multiplies; the gradients of its gradients are torch's too."""
    values = [torch.randn(2, 5, 4), torch.randn(3, 4), torch.randn(3)]
    found: dict[str, list[torch.Tensor]] = {}
    for device in ("cpu", DEVICE):
        leaves = [v.to(device).requires_grad_(n) for v, n in zip(values, needed, strict=True)]
        wanted = [x for x in leaves if x.requires_grad]
        for _ in range(3):  # the third call is sent from a plan
            with torch.autocast(device, torch.bfloat16):
                y = product(*leaves)
            first = torch.autograd.grad((y.float() ** 2).sum(), wanted, create_graph=True)
            second = torch.autograd.grad(sum((g * g).sum() for g in first), wanted)
            with torch.autocast(device, torch.bfloat16):
                y = product(*leaves)
            plain = torch.autograd.grad((y.float() ** 2).sum(), wanted)
        found[device] = [y, *first, *second, *plain]
    for got, want in zip(found[DEVICE], found["cpu"], strict=True):
        assert got.dtype is want.dtype
        close = {"rtol": 5e-2, "atol": 5e-2 * want.abs().max().item()}
        torch.testing.assert_close(got.detach().cpu().float(), want.detach().float(), **close)


def test_a_product_under_autocast_is_one_node_and_sends_torchs_casts() -> None:
    layer, x = torch.nn.Linear(3, 2).to(DEVICE), torch.ones(4, 3, device=DEVICE, requires_grad=True)
    outbox = unwrap(x)._cell.session.outbox
    for _ in range(3):
        outbox.flush()
        outbox.recent.clear()
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            y = layer(x)
        assert {edge[0].name() for edge in y.grad_fn.next_functions if edge[0]} == {"torch::autograd::AccumulateGrad"}
        y.backward(torch.ones_like(y))
    file = io.StringIO()
    gt.debug.print_tape(file=file)
    used = [line.split(" = ")[1].split("(")[0] for line in file.getvalue().splitlines() if " = " in line]
    assert used.count("to") == 6  # three operands, three gradients
    with torch.no_grad(), torch.autocast(DEVICE, dtype=torch.bfloat16):
        assert layer(x).grad_fn is None
    halves = torch.func.grad(lambda w: torch.nn.functional.linear(x.detach(), w).float().sum())
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        assert torch.equal(halves(layer.weight.detach()).cpu(), torch.full((2, 3), 4.0))


def test_autocast_casts_no_more_than_torch() -> None:
    """Neither does `cross_entropy`, which reads logits in half precision and returns a loss in float32."""
    x, target = torch.ones(4, 3, dtype=torch.bfloat16, device=DEVICE, requires_grad=True), [0, 2, 1, 1]
    outbox = unwrap(x)._cell.session.outbox
    outbox.flush()
    outbox.recent.clear()
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        loss = torch.nn.functional.cross_entropy(x, torch.tensor(target, device=DEVICE))
        assert x.sum().dtype is torch.softmax(x, -1).dtype is torch.float32
        assert x.sum(dtype=torch.bfloat16).dtype is torch.softmax(x, -1, torch.bfloat16).dtype is torch.bfloat16
        assert x.detach().double().sum().dtype is torch.float64
    loss.backward()
    assert (loss.dtype, x.grad.dtype) == (torch.float32, torch.bfloat16)
    file = io.StringIO()
    gt.debug.print_tape(file=file)
    used = [line.split(" = ")[1].split(" of ")[0] for line in file.getvalue().splitlines() if " = to(" in line]
    # for softmax; the user's own
    assert used == ["to(bfloat16[4,3], dtype=float32)", "to(bfloat16[4,3], dtype=float64)"]


@pytest.mark.filterwarnings("ignore:.*pin_memory.*")
def test_pinned_memory_is_ordinary_memory() -> None:
    data = torch.utils.data.TensorDataset(numbers(4, 2))
    (batch,) = next(iter(torch.utils.data.DataLoader(data, batch_size=2, pin_memory=True)))
    assert batch.to(DEVICE, non_blocking=True).sum().item() == 6
    assert torch.ones(2).pin_memory().tolist() == [1, 1]
    assert not torch.ones(2).is_pinned()


def test_models_without_memory_and_functions_of_functions() -> None:
    with torch.device("meta"):
        model = torch.nn.Linear(3, 2)
    model.to_empty(device=DEVICE)
    torch.nn.init.ones_(model.weight)
    assert model.weight.sum().item() == 6
    x = numbers(2, 3).to(DEVICE)
    assert torch.equal(torch.func.grad(lambda t: (t**2).sum())(x), 2 * x)
    model.weight.grad = torch.full((2, 3), 2.0, device=DEVICE)
    norm = torch.nn.utils.clip_grad_norm_([model.weight], 1.0)
    assert norm.item() == pytest.approx(24**0.5)
    assert model.weight.grad.norm().item() == pytest.approx(1.0, abs=1e-5)


# -- what is missing -------------------------------------------------------------------------


def test_a_missing_op_names_itself() -> None:
    x = torch.ones(2, device=DEVICE)
    for call, name in (
        (torch.special.airy_ai, "special_airy_ai.default"),  # structured: torch would call the overload with out=
        (torch.linalg.ldl_factor, "linalg_ldl_factor_ex.default"),
        (lambda t: torch.special.zeta(t, t), "special_zeta.default"),
    ):
        with pytest.raises(NotImplementedError, match=rf"aten\.{name}: the device 'gtx' has no kernel for it"):
            call(x)


def test_the_fallback_is_counted_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GT_TORCH_FALLBACK", "1")
    x = torch.tensor([0.5, 1.0], device=DEVICE)
    name = "aten.special_bessel_j0.default"
    before = cpu_fallbacks().get(name, 0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        results = [torch.special.bessel_j0(x) for _ in range(2)]
    assert cpu_fallbacks()[name] == before + 2
    assert [str(w.message).split(":")[0] for w in caught] == [f"{name} runs on the client's CPU"] * (before == 0)
    torch.testing.assert_close(results[0].cpu(), torch.special.bessel_j0(x.cpu()))
    out = torch.empty(2, device=DEVICE)
    with pytest.warns(UserWarning, match="special_bessel_j0.out runs on"):
        torch.special.bessel_j0(x, out=out)
    assert torch.equal(out, results[0])


def test_errors_name_the_users_line_not_torchs() -> None:
    layer = torch.nn.Embedding(3, 2).to(DEVICE)
    y = layer(torch.tensor([7], device=DEVICE))
    with pytest.raises(gt.RemoteError, match=pathlib.Path(__file__).name) as caught:
        y.cpu()
    assert "y = layer(torch.tensor" in str(caught.value)


def test_lines_of_torch_are_skipped() -> None:
    assert any("torch" in folder for folder in sites._skipped)


def test_nothing_else_in_gt_imports_the_device() -> None:
    for path in (ROOT / "gt").rglob("*.py"):
        if "torch_device" not in path.parts and path.name != "run.py":
            assert "torch_device" not in path.read_text(), path


# -- training --------------------------------------------------------------------------------


def train(device: str, steps: int, **options: bool) -> float:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, **options)
    x = torch.linspace(-1, 1, 64).reshape(8, 8).to(device)
    for _ in range(steps):
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


@pytest.mark.parametrize(
    "options", [{}, {"foreach": False}, {"fused": True}, {"fused": True, "amsgrad": True}], ids=str
)
def test_optimizers_are_torchs(options: dict[str, bool]) -> None:
    assert train(DEVICE, 12, **options) == pytest.approx(train("cpu", 12, **options), rel=1e-5)


@pytest.mark.parametrize("fused", [False, True])
def test_a_gradient_that_is_not_finite_skips_a_step(fused: bool) -> None:
    weight = torch.nn.Parameter(torch.ones(2, device=DEVICE))
    optimizer = torch.optim.AdamW([weight], lr=0.5, fused=fused, weight_decay=0.0)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=4.0, growth_interval=2)
    scales = []
    for factor in (1.0, float("inf"), 1.0, 1.0):
        optimizer.zero_grad()
        scaler.scale((weight * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    assert scales == [4, 2, 2, 4]
    torch.testing.assert_close(weight.detach().cpu(), torch.full((2,), 1 - 3 * 0.5))


def test_a_plain_loop_becomes_a_template() -> None:
    train(DEVICE, 60)
    statistics = gt.debug.get_worker_stats()
    assert statistics["hot_instructions"] >= 0.95 * statistics["total_instructions"]


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("options", [{}, {"padding_idx": 1}, {"include_last_offset": True}, {"weights": True}], ids=str)
def test_bags_are_torchs(mode: str, options: dict[str, object]) -> None:
    options = {**options}
    weighted = options.pop("weights", False)
    if weighted and mode != "sum":
        pytest.skip("torch has weights for sums only")
    results = []
    for device in ("cpu", DEVICE):
        table = numbers(5, 3).sub(7).square().to(device).requires_grad_()
        at = torch.tensor([4, 1, 1, 0, 2, 4], device=device)
        weights = numbers(6).to(device).requires_grad_() if weighted else None
        offsets = torch.tensor([0, 2, 2, 6], device=device)  # one bag is empty, with or without the last
        y = torch.nn.functional.embedding_bag(at, table, offsets, mode=mode, per_sample_weights=weights, **options)
        (y * torch.arange(1, y.numel() + 1, device=device).reshape(y.shape)).sum().backward()
        results.append([t.detach().cpu() for t in (y, table.grad, *([weights.grad] if weighted else []))])
    torch.testing.assert_close(*results)


@pytest.mark.parametrize("transposed", [False, True], ids=["rows", "columns"])
def test_products_of_groups_are_torchs(transposed: bool) -> None:
    results = []
    for device in ("cpu", DEVICE):
        a, b = numbers(8, 4).to(device).requires_grad_(), numbers(3, 4, 4).div(10).to(device).requires_grad_()
        ends = torch.tensor([2, 2, 8], dtype=torch.int32, device=device)
        y = torch._grouped_mm(b, a.t(), offs=ends) if transposed else torch._grouped_mm(a, b, offs=ends)
        y.square().sum().backward()
        results.append([t.detach().cpu() for t in (y, a.grad, b.grad)])
    torch.testing.assert_close(*results)
    x, y = numbers(4, 2).to(DEVICE), numbers(2, 2, 3).to(DEVICE)
    ends = torch.tensor([1, 3], dtype=torch.int32, device=DEVICE)
    assert torch._grouped_mm(x, y, offs=ends)[3].tolist() == [0, 0, 0]  # in no group
    ends.add_(1)
    assert torch._grouped_mm(x, y, offs=ends)[3].tolist() != [0, 0, 0]  # the ends are read again
    assert torch.histc(ends, bins=3, min=2, max=4).tolist() == [1, 0, 1]
    assert torch.histc(ends, bins=3, min=2, max=4).dtype is torch.int32


SCRIPT = """
import sys, torch
assert torch.cuda.is_available() and sys.argv[1:] == ["--lr=1"]
model = torch.nn.Linear(2, 1).to("cuda")
x = torch.ones(3, 2).pin_memory().cuda()
with torch.autocast("cuda", dtype=torch.bfloat16):
    y = model(x)
with torch.device("cuda"):
    made = torch.nn.Linear(2, 1)
batches = torch.utils.data.DataLoader(torch.arange(4.0), batch_size=2, pin_memory=True, num_workers=1)
print(made.weight.device.type, [batch.to("cuda").sum().item() for batch in batches])
print(y.device.type, y.dtype, torch.zeros(2, device=torch.device("cuda:0")).device.type)
"""


def test_the_command_runs_a_script_whose_device_is_cuda(tmp_path: pathlib.Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "-m", "gt.run", str(tmp_path / "script.py"), "--lr=1"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert process.stdout == "cuda [1.0, 5.0]\ncuda torch.bfloat16 cuda\n", process.stderr
    usage = subprocess.run(command[:3], cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)
    assert usage.returncode == 2
    assert "usage: python -m gt.run " in usage.stderr
    missing = subprocess.run([*command[:3], "nowhere.py"], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert missing.returncode == 2
    assert "there is no file 'nowhere.py'" in missing.stderr
