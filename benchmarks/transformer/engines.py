"""The model under torch: alone, DDP or FSDP2. `engine_gt.GtEngine` is the same on GT."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.core.ranks import World
from benchmarks.core.trainer import Engine, Trainer
from benchmarks.transformer.engine_gt import GtEngine
from benchmarks.transformer.model import build_torch
from benchmarks.transformer.options import Config


def next_tokens(model: Any, batch: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    source, decoder_input, target = batch
    return model(source, decoder_input), target


def torch_engine(config: Config, world: World) -> Trainer:
    model = build_torch(config.sizes, world.device, config.seed)
    return Trainer(
        world,
        model,
        next_tokens,
        engine=config.engine,
        dtype=config.precision,
        units=[*model.encoder.layers, *model.decoder.layers],
        compile=config.compile,
    )


ENGINES: dict[str, Callable[[Config, World], Engine]] = {"ddp": torch_engine, "fsdp": torch_engine, "gt": GtEngine}
