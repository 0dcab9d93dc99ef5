"""Mini-GPT in parts for a pipeline, with tensor parallel layers. Signals name where each piece runs; see the README."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import gt
from gt import nn


class Size(NamedTuple):
    """The sizes of a model."""

    layers: int
    hidden: int
    heads: int
    intermediate: int
    vocabulary: int
    seq_len: int


PRESETS = {
    "tiny": Size(layers=8, hidden=32, heads=4, intermediate=64, vocabulary=61, seq_len=16),
    "seed": Size(layers=8, hidden=1024, heads=16, intermediate=4096, vocabulary=50257, seq_len=128),
}


def weight(rows: int, columns: int) -> nn.Parameter:
    return nn.Parameter(gt.randn(rows, columns) * 0.02)


class Layer(nn.Module):
    """One transformer layer of a stage. Its weights are created under the signals that split them."""

    def __init__(self, size: Size, stage: str) -> None:
        super().__init__()
        self.heads, self.stage = size.heads, stage
        with gt.signal.context(stage):
            self.norm1, self.norm2 = nn.LayerNorm(size.hidden), nn.LayerNorm(size.hidden)
        with gt.signal.context(f"{stage}_colpar"):
            # a third for each of q, k and v, so that a split of the columns splits the heads of each
            self.q_weight, self.k_weight, self.v_weight = (weight(size.hidden, size.hidden) for _ in range(3))
            self.up_weight = weight(size.hidden, size.intermediate)
        with gt.signal.context(f"{stage}_rowpar"):
            self.out_weight = weight(size.hidden, size.hidden)
            self.down_weight = weight(size.intermediate, size.hidden)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))

    def attention(self, x):
        batch, length, hidden = x.shape
        with gt.signal.context(f"{self.stage}_colpar"):
            # head by head, so that the heads stay split
            q, k, v = (
                (x @ w).view(batch, length, self.heads, hidden // self.heads).transpose(1, 2)
                for w in (self.q_weight, self.k_weight, self.v_weight)
            )
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            y = y.transpose(1, 2).reshape(batch, length, hidden)
        with gt.signal.context(f"{self.stage}_rowpar"):
            return y @ self.out_weight

    def mlp(self, x):
        with gt.signal.context(f"{self.stage}_colpar"):
            x = nn.functional.gelu(x @ self.up_weight)
        with gt.signal.context(f"{self.stage}_rowpar"):
            return x @ self.down_weight


class Part(nn.Module):
    """The layers of one part, which runs on a stage; the first part also has the embeddings, the last one the head."""

    def __init__(self, size: Size, number: int, parts: int, stage: int, checkpoint: bool) -> None:
        super().__init__()
        self.name, self.checkpoint = f"pp_stage{stage}", checkpoint
        first, last = (size.layers * n // parts for n in (number, number + 1))
        with gt.signal.context(self.name):
            self.tokens = nn.Embedding(size.vocabulary, size.hidden) if number == 0 else None
            self.positions = nn.Embedding(size.seq_len, size.hidden) if number == 0 else None
        self.layers = nn.ModuleList([Layer(size, self.name) for _ in range(first, last)])
        with gt.signal.context(self.name):
            is_last = number == parts - 1
            self.norm = nn.LayerNorm(size.hidden) if is_last else None
            self.head = nn.Linear(size.hidden, size.vocabulary, bias=False) if is_last else None

    def forward(self, x):
        with gt.signal.context(self.name):
            if self.tokens is not None:
                x = self.tokens(x) + self.positions(gt.arange(x.shape[1]))
            for layer in self.layers:
                x = gt.checkpoint(layer, x, use_reentrant=False) if self.checkpoint else layer(x)
            return x if self.head is None else self.head(self.norm(x))


class MiniGpt(nn.Module):
    """The parts, one after the other. ``stage_of`` has the stage of each part: a stage may have several."""

    def __init__(self, size: Size, stage_of: Sequence[int], checkpoint: bool = False) -> None:
        super().__init__()
        self.size, count = size, len(stage_of)
        self.parts = nn.ModuleList([Part(size, n, count, stage, checkpoint) for n, stage in enumerate(stage_of)])

    def forward(self, ids):
        for part in self.parts:
            ids = part(ids)
        return ids

    def count(self) -> int:
        return sum(p.numel() for p in self.parameters())


def loss_fn(logits, targets):
    """The mean over all letters."""
    return nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
