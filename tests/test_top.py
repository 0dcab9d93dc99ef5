"""What torch has at its top with another signature than in nn.functional, and names that are aliases."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.worlds import same, same_after, session

__all__ = ["session"]

#: one value a channel of c, which is [2, 3, 4]
STATISTICS = "gt.tensor([0.5, 1.0, 2.0]), gt.tensor([1.0, 2.0, 0.5])"

SAME = [
    f"gt.batch_norm(c, w, w, {STATISTICS}, False, 0.1, 1e-5, True)",
    f"gt.batch_norm(c, w, w, {STATISTICS}, True, 0.1, 1e-5, True)",
    "gt.batch_norm(c, None, None, None, None, True, 0.1, 1e-5, True)",
    "gt.instance_norm(c, w, w, None, None, True, 0.1, 1e-5, True)",
    f"gt.instance_norm(c, None, None, {STATISTICS}, False, 0.1, 1e-5, True)",
    "gt.embedding(x, j)",
    "gt.embedding(x, j, padding_idx=1)",
    "gt.embedding(x, j, -1, True, False)",
    "gt.dropout(x, 0.5, False)",
    "gt.dropout(x, 0.0, True)",
    "gt.dropout(x, 1.0, True)",
    "gt.feature_dropout(c, 0.5, False)",
    "gt.alpha_dropout(x, 0.5, False)",
    "gt.feature_alpha_dropout(c, 0.5, train=False)",
    *(f"gt.cosine_embedding_loss(x, y, gt.tensor([1, -1, 1]), 0.2, {r})" for r in (0, 1, 2)),
    *(f"gt.hinge_embedding_loss(w, gt.tensor([1, -1, 1]), 0.5, {r})" for r in (0, 1, 2)),
    *(f"gt.margin_ranking_loss(w, w * 2, gt.tensor([1, -1, 1]), 0.5, {r})" for r in (0, 1, 2)),
    *(f"gt.triplet_margin_loss(x, y, x + 1, 2.0, reduction={r})" for r in (0, 1, 2)),
    "gt.triplet_margin_loss(x, y, x + 1, 1.0, 1.0, 1e-6, True)",
    *(f"gt.kl_div(x, y, {r})" for r in (0, 1, 2)),
    "gt.kl_div(x, y, 1, log_target=True)",
    "gt.kl_div(x, y)",
    "gt.cosine_embedding_loss(x, y, gt.tensor([1, -1, 1]))",
    "gt.hinge_embedding_loss(w, gt.tensor([1, -1, 1]))",
    "gt.margin_ranking_loss(w, w * 2, gt.tensor([1, -1, 1]))",
    *(f"gt.binary_cross_entropy_with_logits(x, y, None, v.abs(), {r})" for r in (0, 1, 2)),
    "gt.binary_cross_entropy_with_logits(x, y, y)",
    "gt.poisson_nll_loss(x, y, True, True, 1e-8, 1)",
    "gt.cdist(x, y)",
    "gt.cdist(x, x[:2], 1.0)",
    "gt.cdist(x, y, p=float('inf'))",
    "gt.cdist(x, y, compute_mode='donot_use_mm_for_euclid_dist')",
    "gt.max_pool1d(c, 2)",
    "gt.avg_pool1d(c, 2)",
    "gt.pairwise_distance(x, y)",
    "gt.channel_shuffle(c.reshape(1, 6, 2, 2), 3)",
    "gt.nn.functional.max_pool2d(i.reshape(1, 3, 4), 2)",
    "gt.nn.functional.avg_pool2d(i.reshape(1, 3, 4), 2, padding=1)",
    "gt.nn.functional.avg_pool2d(i.reshape(1, 3, 4), 2, padding=1, count_include_pad=False)",
    "gt.norm(x, 'nuc')",
    "gt.linalg.norm(gt.zeros(0, 3), float('inf'))",
]


@pytest.mark.parametrize("expression", SAME)
def test_same(session: Any, expression: str) -> None:
    same(expression)


@pytest.mark.parametrize(
    "statements",
    [
        "x.absolute_().multiply_(2).subtract_(1).divide_(3)",
        "x.negative_().fix_().greater_(0)",
        "v.clamp_(-1, 1).arcsin_()",
        "x.round_(decimals=1); i.cumsum_(1, dtype=gt.int64)",
        "z = gt.nn.functional.embedding(j, x, max_norm=3.0)",
    ],
)
def test_same_after(session: Any, statements: str) -> None:
    import torch

    import gt

    assert gt.nn.functional
    assert torch.nn.functional
    same_after(statements)
