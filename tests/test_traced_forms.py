"""The forms in which torch's calls are traced for a GPU give the values of the calls themselves; here on a CPU."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from gt.ops.nn.attention import _attend_plain
from gt.worker.hot.traced_forms import TracedForms

aten = torch.ops.aten
LAST = torch.channels_last


@pytest.fixture(autouse=True)
def no_gradients():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def step(x, first, second, groups=1):
    """Two convolutions, forward and backward, as a program calls them."""
    how = [1, 1], [1, 1], [1, 1], False, [0, 0], groups
    h = aten.convolution(x, first, None, *how).relu()
    y = aten.convolution(h, second, None, *how)
    gh, g_second, _ = aten.convolution_backward(torch.ones_like(y), h, second, None, *how, [True, True, False])
    gx, g_first, _ = aten.convolution_backward(gh * (h > 0), x, first, None, *how, [True, True, False])
    return y, gx, g_first, g_second


def operands(dtype=torch.float32, groups=1):
    shapes = (2, 8, 9, 9), (16, 8 // groups, 3, 3), (4 * groups, 16 // groups, 3, 3)
    return [torch.randn(*shape, dtype=dtype) for shape in shapes]


def with_forms(call, *args, **kwargs):
    with TracedForms("cpu"):
        return call(*args, **kwargs)


def copies(graph) -> list[str]:
    """The operands that are copied into the order with the channels last."""
    clones = [node for node in graph.graph.nodes if node.kwargs.get("memory_format") is LAST]
    return [node.args[0].name for node in clones]


def test_convolutions_have_the_channels_last_in_both_passes() -> None:
    xs = operands()
    results = with_forms(step, *xs)
    for ours, theirs in zip(results, step(*xs), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
        assert ours.is_contiguous(memory_format=LAST)
    graph = make_fx(lambda *xs: with_forms(step, *xs))(*xs)
    assert len(copies(graph)) == len(set(copies(graph))) == 3  # the backward pass uses those of the forward pass


def test_an_operand_that_was_written_is_copied_again() -> None:
    x, weight, _ = operands()
    how = None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1

    def twice(x, weight):
        before = aten.convolution(x, weight, *how)
        weight.add_(1)
        return before, aten.convolution(x, weight, *how)

    expected = twice(x, weight.clone())
    for ours, theirs in zip(with_forms(twice, x, weight.clone()), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("dtype", "groups"), [(torch.float64, 1), (torch.float32, 2)])
def test_other_convolutions_stay_as_they_are(dtype, groups) -> None:
    graph = make_fx(lambda *xs: with_forms(step, *xs, groups=groups))(*operands(dtype, groups))
    assert not copies(graph)


def test_convolutions_over_one_dim_stay_as_they_are() -> None:
    call = lambda x, w: aten.convolution(x, w, None, [1], [1], [1], False, [0], 1)
    assert not copies(make_fx(lambda *xs: with_forms(call, *xs))(torch.randn(2, 8, 9), torch.randn(16, 8, 3)))


def test_another_device_stays_as_it_is() -> None:
    def call(*xs):
        with TracedForms("cuda"):
            return step(*xs)

    assert not copies(make_fx(call)(*operands()))


def test_results_in_the_usual_order() -> None:
    forms = TracedForms("cpu")
    last, usual = torch.randn(2, 8, 9, 9).contiguous(memory_format=LAST), torch.randn(2, 8, 9, 9)
    assert forms.in_usual_order(last).stride() == usual.stride()
    assert torch.equal(forms.in_usual_order(last), last)
    assert forms.in_usual_order(usual) is usual
    both = torch.randn(2, 1, 9, 9)  # with one channel both orders are the same
    assert forms.in_usual_order(both) is both
    turned = torch.randn(8, 2, 9, 9).transpose(0, 1)
    assert forms.in_usual_order(turned) is turned
    assert TracedForms("cuda").in_usual_order(last) is last


EFFICIENT = aten._scaled_dot_product_efficient_attention


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_attention_of_one_query(masked, dtype) -> None:
    """The CPU has no kernel for this call, so its form has computed the values."""
    q, k, v = (torch.randn(2, 3, n, 16, dtype=dtype) for n in (1, 7, 7))
    mask = None
    if masked:
        mask = torch.randn(2, 1, 1, 7, dtype=dtype)
        mask[0, :, :, 2:5] = -torch.inf
        mask[1] = -torch.inf  # these queries see no key
        mask = mask.expand(2, 3, 1, 7)
    out, lse, *_ = with_forms(EFFICIENT, q, k, v, mask, True, 0.0, False, scale=0.3)
    plain, plain_lse = _attend_plain(torch, q, k, v, *([mask] if masked else []), is_causal=False, scale=0.3)
    assert out.dtype is dtype
    torch.testing.assert_close(out, plain.to(dtype))
    torch.testing.assert_close(lse, plain_lse)
    assert not masked or not out[1].any()


def test_attention_of_two_queries_stays_as_it_is() -> None:
    q, k, v = (torch.randn(2, 3, n, 16) for n in (2, 7, 7))
    with pytest.raises(NotImplementedError, match="efficient_attention"):
        with_forms(EFFICIENT, q, k, v, None, True, 0.0, False, scale=0.3)
