"""The encoder-decoder model, once for torch and for GT, and its parameters and FLOPs by formula.

One embedding serves source and target. The head has its own matrix without a bias. Positions are sines, without
parameters. Norms come first, so that 48 layers train without a schedule. There is no dropout: two engines that start
from the same weights have the same losses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

#: the first token of the decoder's input; the tokens themselves are 1 … vocabulary - 1
BEGIN = 0


@dataclass(frozen=True)
class Sizes:
    d_model: int = 128
    nhead: int = 4
    num_encoder_layers: int = 3
    num_decoder_layers: int = 3
    dim_feedforward: int = 512
    vocab_size: int = 8192
    seq_len: int = 256


#: the four sizes of the README, by name
NAMED = {
    "3.5M": Sizes(),
    "60M": Sizes(512, 8, 6, 6, 2048),
    "220M": Sizes(768, 12, 12, 12, 3072),
    "2.9B": Sizes(2048, 32, 24, 24, 8192, seq_len=512),
}


def parameters(s: Sizes) -> int:
    """By formula: attention 4d² + 4d, feed-forward 2df + f + d, norm 2d; embedding and head V·d each."""
    d, f = s.d_model, s.dim_feedforward
    attention, feed_forward, norm = 4 * d * d + 4 * d, 2 * d * f + f + d, 2 * d
    encoder = attention + feed_forward + 2 * norm
    decoder = 2 * attention + feed_forward + 3 * norm
    body = s.num_encoder_layers * encoder + s.num_decoder_layers * decoder + 2 * norm
    return body + 2 * s.vocab_size * d


def forward_flops(s: Sizes) -> int:
    """FLOPs of one sample, by formula: a multiplication with addition counts two, masked attention counts in full."""
    d, f, S, T = s.d_model, s.dim_feedforward, s.seq_len, s.seq_len
    encoder = 8 * S * d * d + 4 * S * d * f + 4 * S * S * d
    decoder = 12 * T * d * d + 4 * S * d * d + 4 * T * d * f + 4 * T * T * d + 4 * T * S * d
    return s.num_encoder_layers * encoder + s.num_decoder_layers * decoder + 2 * T * d * s.vocab_size


def training_flops(s: Sizes) -> int:
    """Of one sample: the backward pass takes twice the forward pass."""
    return 3 * forward_flops(s)


def build(lib: Any, s: Sizes) -> Any:
    """The model of ``lib``, which is torch or gt."""
    nn = lib.nn
    of_layer = {"dim_feedforward": s.dim_feedforward, "dropout": 0.0, "batch_first": True, "norm_first": True}

    class EncoderDecoder(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            encoder, decoder = (
                layer(s.d_model, s.nhead, **of_layer)
                for layer in (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
            )
            self.embedding = nn.Embedding(s.vocab_size, s.d_model)
            norm = nn.LayerNorm(s.d_model)
            self.encoder = nn.TransformerEncoder(encoder, s.num_encoder_layers, norm, enable_nested_tensor=False)
            self.decoder = nn.TransformerDecoder(decoder, s.num_decoder_layers, nn.LayerNorm(s.d_model))
            self.head = nn.Linear(s.d_model, s.vocab_size, bias=False)
            self.register_buffer("positions", lib.tensor(_sines(s)), persistent=False)
            self.register_buffer("later", _later(lib, s.seq_len), persistent=False)

        def forward(self, source: Any, target: Any) -> Any:
            memory = self.encoder(self._embedded(source))
            states = self.decoder(self._embedded(target), memory, tgt_mask=self.later, tgt_is_causal=True)
            return self.head(states)

        def _embedded(self, tokens: Any) -> Any:
            return self.embedding(tokens) * math.sqrt(s.d_model) + self.positions

    return EncoderDecoder()


def _later(lib: Any, length: int) -> Any:
    """The causal mask: torch needs it beside the hint that it is causal, and then does not use it."""
    return lib.triu(lib.full((length, length), float("-inf")), 1)


def _sines(s: Sizes) -> np.ndarray:
    places = np.arange(s.seq_len)[:, None]
    rates = np.exp(np.arange(0, s.d_model, 2) * (-math.log(10_000.0) / s.d_model))
    both = np.stack([np.sin(places * rates), np.cos(places * rates)], axis=2)
    return both.reshape(s.seq_len, -1)[:, : s.d_model].astype(np.float32)


def build_torch(s: Sizes, device: torch.device, seed: int) -> Any:
    """The weights depend only on the seed and the kind of device: every rank and engine starts from the same."""
    torch.manual_seed(seed)
    with device:
        model = build(torch, s).to(device)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.xavier_uniform_(parameter)
    check_parameters(model, s)
    return model


def check_parameters(model: torch.nn.Module, s: Sizes) -> int:
    """The number of parameters, which must equal the formula."""
    counted, expected = sum(p.numel() for p in model.parameters()), parameters(s)
    if counted != expected:
        raise AssertionError(f"{s}: {counted:,} parameters counted, {expected:,} by formula")
    return counted
