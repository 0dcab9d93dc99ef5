"""Plans of the device ``gtx``: calls that were seen before skip GT's functions, and give the same values."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import gt
import gt.torch_device
from gt.testing import Cluster
from gt.torch_device import kernels, plans, views
from gt.torch_device.handles import is_written, known_number, unwrap

DEVICE = "gtx"


@pytest.fixture(autouse=True)
def _client() -> Iterator[None]:
    with Cluster().client():
        yield


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def known(x: torch.Tensor) -> list[plans.KernelPlan]:
    """The plans of the session of x that are in use."""
    found = unwrap(x)._cell.session.signatures.plans.values()
    return [plan for plan in found if isinstance(plan, plans.KernelPlan) and plan.pick is not None]


CALLS: dict[str, Callable[..., Any]] = {
    "linear": lambda x, y: F.linear(x, y, y[0]),
    "matmul": lambda x, y: x @ y,
    "matmul of views": lambda x, y: x.transpose(0, 1) @ y[:, 1:3],
    "softmax": lambda x, y: F.softmax(x, -1) + F.log_softmax(y, 0),
    "reductions": lambda x, y: (x.sum(-1), x.mean(), y.amax(0, keepdim=True), y.var()),
    "layer_norm": lambda x, y: F.layer_norm(x, (4,), y[0], y[1]),
    "several instructions": lambda x, y: F.smooth_l1_loss(x, y) + F.binary_cross_entropy_with_logits(x, y.sigmoid()),
    "several results": lambda x, y: torch.sort(x, dim=0) + torch.topk(y, 2),
    "lists": lambda x, y: (torch.cat([x, y], 1), torch.stack([y, x])),
    "indices": lambda x, y: x[torch.tensor([2, 0, 1, 1], device=x.device)] + y.gather(1, torch.zeros_like(y).long()),
    "numbers": lambda x, y: (x / 2, x / 2.0, y**2, torch.clamp(x, -0.5, 0.5), torch.where(x > 0, x, 1.5)),
    "views": lambda x, y: (x.view(2, 8), x[1:3, ::2], y.t().reshape(16), x.unsqueeze(1).expand(4, 3, 4), y[2]),
    "split": lambda x, y: (*x.split(3), *y.t().split([1, 3], 1), *x.unbind(1), *y[1:].chunk(2, 1)),
    "attention": lambda x, y: F.scaled_dot_product_attention(*(z.view(1, 2, 2, 4) for z in (x, y, x)), is_causal=True),
}


@pytest.mark.parametrize("name", CALLS)
def test_repeated_calls_give_torchs_values_and_gradients(name: str) -> None:
    for seed in range(4):
        results = []
        for device in ("cpu", DEVICE):
            x, y = (random(4, 4, seed=seed + k).to(device).requires_grad_() for k in (0, 100))
            values = CALLS[name](x, y)
            values = [v for v in (values if isinstance(values, tuple) else (values,)) if v.is_floating_point()]
            sum(((v * v).sum() for v in values), torch.zeros((), device=device)).backward()
            results.append([v.cpu() for v in (*values, x.grad, y.grad) if v is not None])
        torch.testing.assert_close(*results)
        assert len(results[0]) == len(results[1])
    assert known(x)


def test_a_plan_skips_the_function() -> None:
    x, y = random(3, 3).to(DEVICE), random(3, 3, seed=1).to(DEVICE)
    expected = x.cpu() @ y.cpu()
    for _ in range(3):
        x @ y
    (plan,) = known(x)
    attempts = plan.attempts
    assert torch.equal((x @ y).cpu(), expected)
    assert plan.attempts == attempts == 2


def test_one_tensor_in_two_places_has_no_plan_of_its_own() -> None:
    x, y = torch.eye(3, device=DEVICE) * 2, torch.eye(3, device=DEVICE) * 5
    for _ in range(3):
        assert (x @ x)[0, 0].item() == 4
    for _ in range(3):
        assert (x @ y)[0, 0].item() == 10
    assert (x @ x)[0, 0].item() == 4


def test_a_written_argument_is_read_again() -> None:
    base = torch.zeros(2, 2, device=DEVICE)
    row = base[0]
    for value in range(4):
        base += 1
        assert row.sum().item() == 2 * (value + 1)
        assert F.softmax(base[0], 0).tolist() == [0.5, 0.5]


def test_arguments_that_python_calls_equal() -> None:
    x = torch.tensor([1, 4], device=DEVICE)
    for _ in range(3):
        assert (x / 1).dtype is torch.float32
        assert (x**2).dtype is torch.int64
        assert (x**2.0).dtype is torch.float32
        assert torch.copysign(x, 0.0).tolist() == [1, 4]
        assert torch.copysign(x, -0.0).tolist() == [-1, -4]
        assert torch.clamp(x, 0.0).tolist() == [1, 4]


def test_lists_of_numbers_are_compared() -> None:
    x = random(3, 3)
    y = x.to(DEVICE)
    for _ in range(3):
        for shifts in ((1, 0), (0, 1), (1, 1)):
            assert torch.equal(torch.roll(y, shifts, (0, 1)).cpu(), torch.roll(x, shifts, (0, 1)))
        for mask in ((True, False, False), (True, True, True), (False, False, True)):
            pairs = zip(*(_layer_norm_gradients(z, mask) for z in (x, y)), strict=True)
            assert all(a is None if b is None else torch.allclose(a, b.cpu(), atol=1e-6) for a, b in pairs)


def _layer_norm_gradients(x: torch.Tensor, mask: tuple[bool, ...]) -> list[torch.Tensor | None]:
    _, mean, scale = torch.native_layer_norm(x, (3,), x[0], x[1], 1e-5)
    grads = torch.ops.aten.native_layer_norm_backward(x, x, [3], mean, scale, x[0], x[1], list(mask))
    return [g if needed else None for g, needed in zip(grads, mask, strict=True)]


VIEWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "view": lambda x: (x.view(2, 8),),
    "transpose": lambda x: (x.transpose(0, 1),),
    "of a view": lambda x: (x.t()[1:3].unsqueeze(0),),
    "slices": lambda x: (x[1:3], x[0:2], x[2], x[3]),
    "split": lambda x: x.t().split(3),
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_plan_of_a_view_skips_the_function(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x = random(4, 4)
    base = x.to(DEVICE)
    for _ in range(2):
        VIEWS[name](base)
    monkeypatch.setattr(views, "_learn", None)
    for _ in range(2):
        expected, results = VIEWS[name](x), VIEWS[name](base)
        assert [y.stride() for y in results] == [y.stride() for y in expected]
        torch.testing.assert_close([y.cpu() for y in results], list(expected))
        for y in (*results, *expected):
            y.add_(1)  # written through to the base
        assert torch.equal(base.cpu(), x)
    unwrap(base)._cell.session.signatures.forget_tables()
    with pytest.raises(TypeError, match="not callable"):
        VIEWS[name](base)


def test_a_view_is_planned_for_each_signal() -> None:
    x = torch.ones(4, 4, device=DEVICE)
    gt.register_config("other", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=[0])))
    for _ in range(3):
        x.t()
        with gt.signal.context("other"):
            x.t()
    codes = [plan.code for plan in unwrap(x)._cell.session.signatures.plans.values()]
    assert len(codes) == len({*codes}) == 2


def test_random_numbers_are_drawn_in_each_call() -> None:
    x = torch.ones(100, device=DEVICE)
    masks = [tuple((F.dropout(x, 0.5) != 0).tolist()) for _ in range(5)]
    assert len(set(masks)) == 5


def test_a_call_that_fails_raises_each_time() -> None:
    x, y = torch.ones(2, 3, device=DEVICE), torch.ones(2, 3, device=DEVICE)
    for _ in range(3):
        with pytest.raises(gt.GtError, match="inner sizes differ"):
            x @ y
    for _ in range(3):
        with pytest.raises(RuntimeError, match=r"is on cpu; move it"):
            x @ torch.ones(3, 2)


def test_plans_are_forgotten_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "MAX_PLANS", 3)
    x = torch.ones(2, 3, device=DEVICE)
    for k in range(10):
        assert (x / (k + 1.0)).sum().item() == pytest.approx(6 / (k + 1))
        assert len(unwrap(x)._cell.session.signatures.plans) <= 3


def test_plans_are_kept_apart_by_signals() -> None:
    x, y = torch.ones(4, 4, device=DEVICE), torch.ones(4, 4, device=DEVICE)
    gt.register_config("other", gt.SignalConfig(shard=gt.ShardConfig(axis=0, workers=[0])))
    for _ in range(3):
        x @ y
        with gt.signal.context("other"):
            x @ y
    assert len(known(x)) == 2
    unwrap(x)._cell.session.signatures.forget_tables()
    assert not known(x)
    assert (x @ y).sum().item() == 64


def test_an_error_inside_gt_is_not_taken_for_a_missing_value(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor without a value has no plan; an AttributeError of GT's own must not look like that."""
    x, y = random(3, 3).to(DEVICE), random(3, 3, seed=1).to(DEVICE)

    def broken(*_: Any) -> Any:
        raise AttributeError("a mistake in GT")

    for _ in range(3):
        x @ y, x + y
    monkeypatch.setattr(plans.KernelPlan, "emit", broken)
    monkeypatch.setattr(kernels, "binary", broken)
    for call in (lambda: x @ y, lambda: x + y):
        with pytest.raises(AttributeError, match="a mistake in GT"):
            call()


@pytest.mark.parametrize("view", [lambda x: x.view(8, 2), lambda x: x.t(), lambda x: x[1:3], lambda x: x.split(2)[1]])
def test_views_in_inference_mode(view: Callable[[torch.Tensor], torch.Tensor]) -> None:
    x = random(4, 4)
    ordinary = x.to(DEVICE)
    for _ in range(3):
        with torch.inference_mode():
            inside = x.to(DEVICE) + 1
            result, of_inside = view(ordinary), view(inside)
            assert torch.equal(result.cpu(), view(x))
            assert torch.equal(of_inside.cpu(), view(x + 1))
            assert (result.stride(), of_inside.stride()) == (view(x).stride(),) * 2
        assert not result.is_inference()
        assert of_inside.is_inference()
        with torch.no_grad():
            assert not view(ordinary).is_inference()


def test_counters_of_steps_cost_no_instructions() -> None:
    model, device_model = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).to(DEVICE)
    device_model.load_state_dict(model.state_dict())
    models = (model, device_model)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.1, fused=m is device_model) for m in models]

    def step() -> None:
        for m, optimizer in zip(models, optimizers, strict=True):
            for p in m.parameters():
                p.grad = torch.ones_like(p)
            optimizer.step()

    for _ in range(3):
        step()
    counters = [state["step"] for state in optimizers[1].state.values()]
    assert [known_number(x) for x in counters] == [3, 3]
    assert not any(is_written(x) for x in counters)
    view = counters[0].view(1)  # its value is needed now
    assert [x.item() for x in counters] == [3, 3]
    step()  # a counter with a view is written, so that the view sees it
    assert (view.item(), *[x.item() for x in counters]) == (4, 4, 4)
    state = io.BytesIO()
    torch.save(optimizers[1].state_dict(), state)
    state.seek(0)
    optimizers[1].load_state_dict(torch.load(state))
    step()
    loaded = [state["step"] for state in optimizers[1].state.values()]
    assert [x.item() for x in loaded] == [5, 5]
    for name, value in device_model.state_dict().items():
        torch.testing.assert_close(value.cpu(), model.state_dict()[name])


def test_a_number_is_added_to_all() -> None:
    xs = [random(2, 3), torch.tensor(1.5), torch.tensor(7), torch.tensor(2.0**24)]
    device_xs = [x.to(DEVICE) for x in xs]
    for number in (1, 0.5):
        for column in (xs[:2], device_xs[:2]):
            torch._foreach_add_(column, number)
    for column in (xs, device_xs):
        torch._foreach_add_(column, 3)
    torch.testing.assert_close([x.cpu() for x in device_xs], xs)
    mixed = [torch.zeros(2), torch.zeros(2, device=DEVICE)]
    torch._foreach_add_(mixed, 1)
    assert [x.tolist() for x in mixed] == [[1, 1], [1, 1]]


def test_a_section_of_a_template_may_end_inside_a_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long step is sent in sections, which end after any instruction, also one of several that a kernel emits."""
    x = random(4, 4).to(DEVICE)
    for _ in range(3):
        F.group_norm(x, 2)
    (plan,) = known(x)
    assert plan.form is not None
    assert plan.form.instructions == 5
    outbox, lengths = unwrap(x)._cell.session.outbox, []
    outbox.flush()
    monkeypatch.setattr(outbox, "full", lambda: lengths.append(len(outbox.words)))
    for limit in (plan.length // 2, plan.length, plan.length + 1):
        lengths.clear()
        monkeypatch.setattr(outbox, "limit", len(outbox.words) + limit)
        first = outbox.limit - limit
        result = F.group_norm(x, 2)
        assert bool(lengths) == (limit < plan.length)
        assert all(n < first + plan.length for n in lengths[:1])
    monkeypatch.undo()
    torch.testing.assert_close(result.cpu(), F.group_norm(x.cpu(), 2))
