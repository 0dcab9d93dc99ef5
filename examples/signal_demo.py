"""Signals: a file beside the program says where it runs. ``python examples/signal_demo.py``

The program below is a model in two stages, `embed` and `classify`. Without a configuration these names have no effect.
With examples/signal_demo.yaml, the data of the first stage is sharded over two workers and the second stage runs on one
worker; GT_CONFIG names another file. The numbers stay the same.
"""

from __future__ import annotations

import os
from pathlib import Path

import gt
from gt import nn

BESIDE = Path(__file__).with_suffix(".yaml")


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 32))
        self.classify = nn.Linear(32, 4)

    def forward(self, x):
        with gt.signal.context("embed"):
            x = self.embed(x)
        # moves x early, before the next stage uses it
        x = gt.signal.tensor(x, "classify")
        with gt.signal.context("classify"):
            return self.classify(x)


def main() -> None:
    gt.gpu_workers(2)
    print("without a word about places:")
    gt.load_config(None)
    plain = train()
    path = os.environ.get("GT_CONFIG", BESIDE)
    print(f"\nwith {Path(path).name}:")
    gt.load_config(path)
    signalled = train()
    print(f"\nthe losses differ by {max(abs(a - b) for a, b in zip(plain, signalled, strict=True)):.0e} at most")


def train(steps: int = 20) -> list[float]:
    gt.manual_seed(0)
    model = Model()
    optimizer = gt.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(1, steps + 1):
        with gt.signal.context("embed"):
            x = gt.randn(32, 16)
        y = (x[:, :2] > 0).long() @ gt.tensor([1, 2])
        logits = model(x)
        loss = nn.functional.cross_entropy(logits, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step == 1:
            for name, tensor in (("x", x), ("logits", logits), ("embed.0.weight", model.embed[0].weight)):
                print(f"  {name:14} {tensor.layout}")
        if step % 10 == 0:
            print(f"  step {step:3}  loss {losses[-1]:.4f}")
    return losses


if __name__ == "__main__":
    main()
