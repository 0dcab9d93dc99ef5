"""`gt.nn.attention.flex_attention` against torch's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import flex_attention as torch_flex

import gt
from gt.nn.attention import flex_attention as flex
from tests.support.worlds import session

__all__ = ["session"]

BIAS = np.linspace(-1, 1, 7, dtype=np.float32)


def causal(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return q >= kv


def second_half(b: Any, h: Any, q: Any, kv: Any) -> Any:
    return kv >= 3


def distance(score: Any, b: Any, h: Any, q: Any, kv: Any) -> Any:
    return score + (kv - q) * 0.1 * (h + 1)


def score_mods(framework: Any) -> dict[str, Any]:
    bias = framework.tensor(BIAS)
    return {"none": None, "distance": distance, "bias": lambda score, b, h, q, kv: score + bias[kv]}


def operands(framework: Any, key_heads: int = 2) -> list[Any]:
    rng = np.random.default_rng(0)
    shapes = (2, 2, 5, 4), (2, key_heads, 7, 4), (2, key_heads, 7, 4)
    return [framework.tensor(rng.normal(size=s).astype(np.float32), requires_grad=True) for s in shapes]


def dense(query: Any, key: Any, value: Any, score_mod: Any, mask: Any) -> Any:
    """The same in torch's own functions: its flex_attention has no gradients on a CPU."""
    sizes = 2, 2, 5, 7
    positions = [torch.arange(n).reshape([-1 if d == dim else 1 for d in range(4)]) for dim, n in enumerate(sizes)]
    scores = query @ key.transpose(2, 3) / 2
    scores = scores if score_mod is None else score_mod(scores, *positions)
    weights = (scores if mask is None else scores.masked_fill(~mask(*positions), -torch.inf)).softmax(-1)
    return weights.nan_to_num(0.0) @ value


@pytest.mark.parametrize("mask", ["none", "causal", "and", "or"])
@pytest.mark.parametrize("score_mod", ["none", "distance", "bias"])
def test_values_and_gradients(session: Any, score_mod: str, mask: str) -> None:
    def mask_of(module: Any) -> Any:
        functions = {"causal": causal, "and": module.and_masks(causal, second_half), "or": module.or_masks(second_half)}
        return functions.get(mask)

    block_mask = None if mask == "none" else flex.create_block_mask(mask_of(flex), 2, None, 5, 7, device="cpu")
    theirs, ours = operands(torch), operands(gt)
    mods = score_mods(torch)[score_mod], score_mods(gt)[score_mod]
    expected, actual = (
        dense(*theirs, mods[0], mask_of(torch_flex)),
        flex.flex_attention(*ours, mods[1], block_mask),
    )
    same(expected, actual)
    (expected * torch.tensor(BIAS[:4])).sum().backward()
    (actual * gt.tensor(BIAS[:4])).sum().backward()
    if mask != "and":  # the gradient of softmax is nan in torch where a query attends to nothing
        for a, b in zip(theirs, ours, strict=True):
            same(a.grad, b.grad)
    assert not any(x.grad.isnan().any() for x in ours)


def same(expected: Any, actual: Any) -> None:
    np.testing.assert_allclose(actual.detach().numpy(), expected.detach().numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
def test_groups_of_heads_and_what_is_returned_beside(session: Any) -> None:
    theirs = [x.detach() for x in operands(torch, 1)]
    aux = torch_flex.AuxRequest(lse=True)
    expected = torch_flex.flex_attention(*theirs, scale=0.3, enable_gqa=True, return_aux=aux)
    actual = flex.flex_attention(*operands(gt, 1), scale=0.3, enable_gqa=True, return_aux=flex.AuxRequest(lse=True))
    same(expected[0], actual[0])
    same(expected[1].lse, actual[1].lse)
    assert actual[1].max_scores is None
    lse = flex.flex_attention(*operands(gt), return_lse=True)[1]
    assert lse.shape == (2, 2, 5)
    with pytest.raises(gt.ConfigError, match="2 heads of queries and 1 of keys need enable_gqa=True"):
        flex.flex_attention(*operands(gt, 1))


def test_masks(session: Any) -> None:
    expected = torch_flex.create_mask(causal, 1, 2, 3, 4, device="cpu")
    assert flex.create_mask(causal, 1, 2, 3, 4).tolist() == expected.tolist()
    block = flex.create_block_mask(causal, None, None, 3, 4)
    assert block.shape == (1, 1, 3, 4)
    assert block.seq_lengths == (3, 4)
    assert block.mask_mod is causal
    assert flex.create_mask(flex.noop_mask, None, None, 2, 2).all()
