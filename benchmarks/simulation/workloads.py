"""Training steps, data parallel by auto-sharding: ordinary GT programs, for real and simulated workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gt
from benchmarks.autoshard import cases
from benchmarks.training import gpt


@dataclass(frozen=True)
class Workload:
    name: str
    #: (batch) -> what a step needs
    setup: Callable[[int], Any]
    step: Callable[[Any], Any]
    #: samples per worker
    batch: int


def mlp(widths: tuple[int, ...]) -> Callable[[int], Any]:
    def setup(batch: int) -> Any:
        gt.manual_seed(0)
        model = cases.mlp(widths)
        optimizer = gt.optim.AdamW(model.parameters(), lr=1e-3)
        return model, optimizer, gt.randn(batch, widths[0]), gt.randn(batch, widths[-1])

    return setup


def mlp_step(state: Any) -> Any:
    model, optimizer, x, y = state
    loss = gt.nn.functional.mse_loss(model(x), y)
    return _update(loss, optimizer)


def _gpt(layers: int, width: int, heads: int, vocabulary: int, length: int) -> Callable[[int], Any]:
    def setup(batch: int) -> Any:
        gt.manual_seed(0)
        model = gpt(gt, layers, width, heads, vocabulary, length)
        optimizer = gt.optim.AdamW(model.parameters(), lr=1e-3)
        ids, targets = (gt.randint(0, vocabulary, (batch, length)) for _ in range(2))
        return model, optimizer, ids, targets

    return setup


def _gpt_step(autocast: bool) -> Callable[[Any], Any]:
    def step(state: Any) -> Any:
        model, optimizer, ids, targets = state
        with gt.autocast(dtype=gt.bfloat16, enabled=autocast):
            out = model(ids)
            loss = gt.nn.functional.cross_entropy(out.reshape(-1, out.shape[-1]), targets.reshape(-1))
        return _update(loss, optimizer)

    return step


def _update(loss: Any, optimizer: Any) -> Any:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss


WORKLOADS = {
    "mlp": Workload("MLP, 4096-8192-8192-4096, AdamW, float32", mlp((4096, 8192, 8192, 4096)), mlp_step, 4096),
    "gpt": Workload(
        "GPT of 12 layers, width 768, 1024 tokens, AdamW, bfloat16",
        _gpt(12, 768, 12, 50257, 1024),
        _gpt_step(True),
        16,
    ),
    "mini-gpt": Workload(
        "Mini-GPT of 8 layers, width 1024, 1024 tokens, AdamW, bfloat16",
        _gpt(8, 1024, 16, 50257, 1024),
        _gpt_step(True),
        8,
    ),
    "small-mlp": Workload("MLP, 256-1024-1024-16, AdamW, float32", mlp((256, 1024, 1024, 16)), mlp_step, 1024),
    "small-gpt": Workload(
        "GPT of 2 layers, width 128, 128 tokens, AdamW, float32", _gpt(2, 128, 4, 256, 128), _gpt_step(False), 32
    ),
}
