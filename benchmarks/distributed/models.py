"""The model that is trained: a plain decoder, in sizes for a CPU and for GPUs.

Parameters and FLOPs come from formulas; a model whose own count differs is an error, not a measurement.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

#: bytes of a parameter in training: itself, its gradient and Adam's two moments, in fp32
STATE_BYTES = 16


@dataclass(frozen=True)
class Shape:
    layers: int
    width: int
    heads: int
    vocabulary: int
    length: int
    #: samples per rank and step, unless --batch-size is set
    batch: int

    @property
    def inner(self) -> int:
        return 4 * self.width

    def parameters(self) -> int:
        d, f = self.width, self.inner
        block = 4 * d * d + 4 * d + 2 * d * f + f + d + 2 * 2 * d
        return self.vocabulary * d + self.length * d + self.layers * block + 2 * d + self.vocabulary * d

    def forward_flops(self) -> int:
        """FLOPs of a sample of ``length`` tokens: a product with its addition counts two, masked attention in full."""
        d, f, t = self.width, self.inner, self.length
        return self.layers * (8 * t * d * d + 4 * t * d * f + 4 * t * t * d) + 2 * t * d * self.vocabulary

    def training_flops(self) -> int:
        """The forward pass, and twice that for the backward pass."""
        return 3 * self.forward_flops()

    def training_bytes(self, batch: int) -> int:
        """About what a step needs in 16 bits: weights, gradients and Adam's moments, and what backward uses again.

        A layer keeps about 34 bytes for each element of its input, the loss 10 for each score (16 bits, 32, gradient).
        """
        sample = self.length * (34 * self.layers * self.width + 10 * self.vocabulary)
        return STATE_BYTES * self.parameters() + batch * sample


SHAPES = {
    "tiny": Shape(layers=2, width=64, heads=2, vocabulary=256, length=32, batch=8),
    "small": Shape(layers=4, width=256, heads=4, vocabulary=4096, length=128, batch=8),
    "gpt2": Shape(layers=12, width=768, heads=12, vocabulary=50304, length=1024, batch=8),
    "gpt2-medium": Shape(layers=24, width=1024, heads=16, vocabulary=50304, length=1024, batch=8),
    "gpt2-xl": Shape(layers=48, width=1600, heads=25, vocabulary=50304, length=1024, batch=4),
}


class Block(nn.Module):
    """Attention and a two-layer net, each after a norm and added to its input."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.width
        self.heads = shape.heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, shape.inner), nn.Linear(shape.inner, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocabulary, shape.width)
        self.places = nn.Embedding(shape.length, shape.width)
        self.blocks = nn.ModuleList([Block(shape) for _ in range(shape.layers)])
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, shape.vocabulary, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def build(shape: Shape, device: torch.device, seed: int) -> Decoder:
    """The model, the same on every rank, with the number of parameters of the formula."""
    torch.manual_seed(seed)
    with device:
        model = Decoder(shape)
    counted = sum(p.numel() for p in model.parameters())
    if counted != shape.parameters():
        raise AssertionError(f"{shape}: {counted} parameters counted, {shape.parameters()} by the formula")
    return model
