"""The decoder under an engine, and its batches: random tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.core.loader import Loader
from benchmarks.core.ranks import World
from benchmarks.core.trainer import Trainer
from benchmarks.distributed.models import Decoder, Shape, build
from benchmarks.distributed.plans import Plan


def next_tokens(model: Decoder, batch: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The scores of the next token, and the tokens that came next."""
    (ids,) = batch
    return model(ids[:, :-1]), ids[:, 1:]


def trainer(
    world: World, plan: Plan, engine: str, *, group: Any = None, look: Callable[[str], None] | None = None
) -> Trainer:
    model = build(plan.shape, world.device, plan.seed)
    return Trainer(
        world, model, next_tokens, engine=engine, dtype=plan.dtype, units=list(model.blocks), group=group, look=look
    )


def tokens(shape: Shape, batch: int, seed: Sequence[int]) -> np.ndarray:
    """Random tokens of one batch; they depend only on the seed."""
    return np.random.default_rng(list(seed)).integers(0, shape.vocabulary, (batch, shape.length + 1), dtype=np.int64)


def batches(world: World, plan: Plan, staged: Trainer, batch: int | None = None) -> Loader:
    """This rank's batches, ``plan.batch`` samples each unless another number is given."""
    size = batch or plan.batch
    return Loader(lambda number: staged.stage((tokens(plan.shape, size, (plan.seed, world.rank, number)),)))
