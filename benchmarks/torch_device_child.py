"""A training step for `benchmarks/torch_device.py`; imports no device.

``python -m benchmarks.torch_device_child`` runs steps of GPT-2 124M on the GPU itself: as many as each line of its
input says.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from benchmarks.training import gpt

#: layers, width, heads, vocabulary, batch, length
GPT2 = (12, 768, 12, 50304, 8, 1024)


class Steps:
    """A model in one API, and its training step; with torch's, on a device."""

    def __init__(
        self,
        lib: Any,
        sizes: tuple[int, ...],
        wrap: Callable[[Any], Any] = lambda model: model,
        device: str = "gtx",
        bfloat16: bool = False,
    ) -> None:
        layers, width, heads, vocabulary, batch, length = sizes
        lib.manual_seed(0)
        self.lib, self.model = lib, gpt(lib, layers, width, heads, vocabulary, length)
        ids = lib.randint(0, vocabulary, (batch, length + 1))
        self.x, self.y = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()
        if lib is torch:
            self.model, self.x, self.y = self.model.to(device), self.x.to(device), self.y.to(device)
        self.autocast = torch.autocast(device, torch.bfloat16) if bfloat16 else nullcontext()
        options = {"fused": True} if lib is torch else {}
        self.optimizer = lib.optim.AdamW(self.model.parameters(), lr=1e-3, **options)
        self.call = wrap(self.model)

    def passes(self) -> Any:
        """Forward and backward."""
        with self.autocast:
            out = self.call(self.x)
            loss = self.lib.nn.functional.cross_entropy(out.reshape(-1, out.shape[-1]), self.y.reshape(-1))
        self.optimizer.zero_grad()
        loss.backward()
        return loss

    def step(self) -> Any:
        loss = self.passes()
        self.optimizer.step()
        return loss

    def wall(self, steps: int) -> None:
        for _ in range(steps):
            loss = self.step()
        loss.item()

    def client_ms(self, what: Callable[[], Any]) -> float:
        """The client's time for one call, which begins when the workers have nothing to do."""
        self.x.sum().item()
        started = time.thread_time()
        what()
        return (time.thread_time() - started) * 1e3


def main() -> None:
    steps = Steps(torch, GPT2, device="cuda", bfloat16=True)
    steps.wall(10)
    print("ready", flush=True)
    for line in sys.stdin:
        steps.wall(int(line))
        print("done", flush=True)


if __name__ == "__main__":
    main()
