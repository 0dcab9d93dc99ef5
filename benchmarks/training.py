"""Training steps on GT against torch eager: ``python benchmarks/training.py [--quick] [--json FILE] [--only NAME…]``

The same model code runs on both, with the same threads on the same device, in turns. The figure is the median over the
rounds of torch's step time divided by GT's: more than 1 is faster than torch. Peak memory is the worker's against
torch's for the same step. Only the last loss of a round is read, except in ``mlp-read-30`` (every 30 steps) and
``mlp-read`` (every step).
"""

from __future__ import annotations

import argparse
import json
import math
import pathlib
import statistics
import sys
import time
from typing import Any

if __name__ == "__main__":
    # the root of the repository instead of this folder, so that modules have the same name wherever this starts
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

import torch

import gt
from benchmarks.core import environment
from benchmarks.core.rows import Row

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
#: name -> layers, width, heads, vocabulary, batch, length, autocast
GPTS = {
    "gpt": (2, 128, 4, 256, 16, 128, False),
    "gpt-bf16": (2, 128, 4, 256, 16, 128, True),
    "mini-gpt": (8, 1024, 16, 50257, 8, 1024, True),
}
#: name -> steps in a round, and from one read of the loss to the next
STEPS = {
    "mlp": (100, 100),
    "mlp-read-30": (120, 30),
    "mlp-read": (100, 1),
    "gpt": (5, 5),
    "gpt-bf16": (5, 5),
    "mini-gpt": (5, 5),
}


def mlp(lib: Any) -> Any:
    nn = lib.nn
    return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))


def gpt(lib: Any, layers: int, width: int, heads: int, vocabulary: int, length: int) -> Any:
    """A plain decoder: learned positions, layers of attention and MLP, an untied head."""
    nn, functional = lib.nn, lib.nn.functional

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Any) -> Any:
            batch, steps, _ = x.shape
            q, k, v = self.qkv(self.norm1(x)).split(width, dim=2)
            q, k, v = (z.view(batch, steps, heads, width // heads).transpose(1, 2) for z in (q, k, v))
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(batch, steps, width))
            return x + self.down(functional.gelu(self.up(self.norm2(x))))

    class Model(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
            self.blocks = nn.ModuleList([Block() for _ in range(layers)])
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

        def forward(self, ids: Any) -> Any:
            x = self.tokens(ids) + self.places.weight[: ids.shape[1]]
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    return Model()


class Trainer:
    """One library's model, optimizer and batch, and its step."""

    def __init__(self, lib: Any, name: str) -> None:
        lib.manual_seed(0)
        self.lib = lib
        self.autocast = False
        if name not in GPTS:
            self.model, self.x, self.y = mlp(lib), lib.randn(64, 784), lib.randint(0, 10, (64,))
        else:
            layers, width, heads, vocabulary, batch, length, self.autocast = GPTS[name]
            self.model = gpt(lib, layers, width, heads, vocabulary, length)
            ids = lib.randint(0, vocabulary, (batch, length + 1))
            self.x, self.y = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
        if lib is torch:
            self.model, self.x, self.y = self.model.to(DEVICE), self.x.to(DEVICE), self.y.to(DEVICE)
        self.optimizer = lib.optim.AdamW(self.model.parameters(), lr=1e-3)

    def step(self) -> Any:
        functional = self.lib.nn.functional
        with self._precision():
            out = self.model(self.x)
            loss = functional.cross_entropy(out.reshape(-1, out.shape[-1]), self.y.reshape(-1))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss

    def _precision(self) -> Any:
        if self.lib is torch:
            return torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=self.autocast)
        return gt.autocast(dtype=gt.bfloat16, enabled=self.autocast)

    def run(self, steps: int, every: int) -> float:
        """Seconds per step, with a read after ``every`` steps and at the end."""
        started = time.perf_counter()
        for i in range(1, steps + 1):
            loss = self.step()
            if i % every == 0 or i == steps:
                value = loss.item()
        seconds = (time.perf_counter() - started) / steps
        assert math.isfinite(value), f"the loss is {value}"
        return seconds


def measure(name: str, goal: float, rounds: int) -> Row:
    steps, every = STEPS[name]
    ours, theirs = Trainer(gt, name), Trainer(torch, name)
    # several reads, so that a repeated step is learned before the first round
    ours.run(8 * min(every, 3), min(every, 3)), theirs.run(3, 3)
    ours.run(steps, every)
    pairs = [(ours.run(steps, every), theirs.run(steps, every)) for _ in range(rounds)]
    details = {
        "gt_ms": statistics.median(o for o, _ in pairs) * 1e3,
        "torch_ms": statistics.median(t for _, t in pairs) * 1e3,
        "parameters": sum(p.numel() for p in theirs.model.parameters()),
    }
    if CUDA:
        details |= peak_memory(ours, theirs)
    return Row(name, [t / o for o, t in pairs], "x torch eager", ">=", goal, details)


def peak_memory(ours: Trainer, theirs: Trainer) -> dict[str, float]:
    """The peak of one more step, in MiB: the worker's allocator, and torch's in this process."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    theirs.run(1, 1)
    torch_peak = torch.cuda.max_memory_allocated()
    gt.debug.memory()  # the peak counts from here
    ours.run(1, 1)
    device = next(iter(gt.debug.memory().values()))["device"]
    return {"gt_peak_mib": device["allocated_peak"] / 2**20, "torch_peak_mib": torch_peak / 2**20}


#: name -> the goal, speed relative to torch eager, on a CPU and on a GPU
GOALS: dict[str, tuple[float, float]] = {
    "mlp": (0.5, 1.0),
    "mlp-read-30": (1.0, 1.0),
    "mlp-read": (1 / 1.3, 1.0),
    "gpt": (0.95, 1.0),
    "gpt-bf16": (0.95, 1.0),
    "mini-gpt": (0.0, 1.0),
}


def main() -> int:
    parser = argparse.ArgumentParser(environment.program(__file__), description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three rounds instead of nine")
    parser.add_argument("--json", metavar="FILE", help="write the figures here as well")
    names = [n for n in GOALS if CUDA or n != "mini-gpt"]
    parser.add_argument("--only", nargs="+", choices=list(GOALS), default=names)
    options = parser.parse_args()
    rows = []
    for name in options.only:
        row = measure(name, GOALS[name][CUDA], 3 if options.quick else 9)
        rows.append(row)
        print(row.line(), flush=True)
    record = {
        "device": torch.cuda.get_device_name() if CUDA else "cpu",
        "torch": torch.__version__,
        "rows": [row.record() for row in rows],
    }
    if options.json:
        with open(options.json, "w") as file:
            json.dump(record, file, indent=1)
    gt.disconnect()
    return 0


if __name__ == "__main__":
    sys.exit(main())
