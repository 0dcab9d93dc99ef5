"""A GPT that learns to write, letter by letter: ``python examples/train_gpt.py``.

The text is by Lewis Carroll (examples/data/carroll.txt, in the public domain). The model and the text are small, so the
model mostly memorises the text.

With ``--workers 2`` it runs on two workers. A file sets the layouts
(``GT_CONFIG=examples/parallel/data_parallel.yaml``), or ``GT_AUTO_SHARD=1`` lets GT choose them. Such a file defines
the signals in this program.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

import gt
from gt import nn

TEXT = Path(__file__).parent / "data" / "carroll.txt"


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        with gt.signal.context("between"):
            y = self.norm1(x)
        y = self.attention(y)
        with gt.signal.context("between"):
            x = x + y
            y = self.norm2(x)
        y = self.mlp(y)
        with gt.signal.context("between"):
            return x + y

    def attention(self, x):
        batch, length, width = x.shape
        # head by head, so that the heads can be sharded
        heads = self.qkv(x).view(batch, length, self.heads, 3 * width // self.heads).transpose(1, 2)
        y = nn.functional.scaled_dot_product_attention(*heads.split(width // self.heads, dim=3), is_causal=True)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Gpt(nn.Module):
    def __init__(self, letters: int, width: int, heads: int, layers: int, length: int) -> None:
        super().__init__()
        self.length = length
        self.letters, self.places = nn.Embedding(letters, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, letters, bias=False)

    def forward(self, ids):
        x = self.letters(ids) + self.places(gt.arange(ids.shape[1]))
        for number, block in enumerate(self.blocks):
            with gt.signal.context(f"block{number}"):
                x = block(x)
        return self.head(self.norm(x))

    @gt.no_grad()
    def write(self, ids, count: int):
        """Append this many letters; nothing is read until all of them exist."""
        for _ in range(count):
            logits = self(ids[:, -self.length :])[:, -1]
            chosen = gt.multinomial(nn.functional.softmax(logits / 0.8, dim=-1), 1)
            ids = gt.cat([ids, chosen], 1)
        return ids


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("steps", 300), ("batch", 16), ("length", 64), ("width", 96), ("layers", 2), ("heads", 4)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--workers", type=int, help="start so many on this machine")
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16 where it does no harm")
    parser.add_argument("--save", type=Path, help="write the trained model as a safetensors file")
    options = parser.parse_args()
    if options.workers:
        gt.gpu_workers(options.workers)
    gt.manual_seed(0)
    text = TEXT.read_text()
    letters = sorted(set(text))
    data = np.array([letters.index(c) for c in text])
    model = Gpt(len(letters), options.width, options.heads, options.layers, options.length)
    print(f"{sum(p.numel() for p in model.parameters()):,} parameters, {len(data):,} letters, {len(letters)} different")
    train(model, data, options)
    if options.save:
        gt.save(model.state_dict(), options.save)
    written = model.eval().write(gt.tensor([[letters.index("T")]]), 300)
    print("".join(letters[i] for i in written[0].tolist()))


def train(model: Gpt, data: np.ndarray, options: argparse.Namespace) -> None:
    optimizer = gt.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.1)
    schedule = gt.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps, 3e-4)
    started = time.perf_counter()
    for step, batch in enumerate(gt.to_device(batches(data, options)), 1):
        x, y = (gt.signal.tensor(part, "data") for part in batch)
        with gt.autocast(dtype=gt.bfloat16, enabled=options.bf16):
            loss = nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % max(1, options.steps // 10) == 0:
            value = loss.item()
            rate = step * options.batch * options.length / (time.perf_counter() - started)
            print(f"step {step:5}  loss {value:.3f}  {rate:,.0f} tokens/s")


def batches(data: np.ndarray, options: argparse.Namespace):
    rng = np.random.default_rng(0)
    for _ in range(options.steps):
        starts = rng.integers(0, len(data) - options.length - 1, options.batch)
        rows = data[starts[:, None] + np.arange(options.length + 1)]
        yield rows[:, :-1], rows[:, 1:]


if __name__ == "__main__":
    main()
