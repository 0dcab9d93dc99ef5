"""Small models, their training, and a record of what the workers of a cluster did."""

from __future__ import annotations

import contextlib
import pathlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import gt
from gt import nn
from gt.client.stream.session import Session
from gt.testing import Cluster

STEPS = 10


class Mlp(nn.Module):
    """Inputs are created under ``data``; a configuration may split them further."""

    def __init__(self, width: int = 20, hidden: int = 32, classes: int = 5, dropout: float = 0.0) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(width, classes)

    def forward(self, x: gt.Tensor) -> gt.Tensor:
        return self.head(x + self.drop(self.down(self.up(x).relu())))


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.v = nn.Linear(width, width), nn.Linear(width, width)
        # without a bias, whose gradient is only rounding: an optimizer that divides by its size would amplify it
        self.k = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: gt.Tensor) -> gt.Tensor:
        with gt.signal.context("between"):
            y = self.norm1(x)
        y = self.attention(y)
        with gt.signal.context("between"):
            x = x + y
            y = self.norm2(x)
        y = self.down(nn.functional.gelu(self.up(y)))
        with gt.signal.context("between"):
            return x + y

    def attention(self, x: gt.Tensor) -> gt.Tensor:
        b, t, c = x.shape
        q, k, v = (part(x).view(b, t, self.heads, c // self.heads).transpose(1, 2) for part in (self.q, self.k, self.v))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, t, c))


class Gpt(nn.Module):
    def __init__(self, letters: int = 17, width: int = 32, length: int = 12, heads: int = 4) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(letters, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList([Block(width, heads) for _ in range(2)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, letters, bias=False)

    def forward(self, ids: gt.Tensor) -> gt.Tensor:
        x = self.letters(ids) + self.places(gt.arange(ids.shape[1]))
        for number, block in enumerate(self.blocks):
            with gt.signal.context(f"stage{number}"):
                x = block(x)
        return self.head(self.norm(x)).flatten(0, 1)


def numbers(batch: int = 16, width: int = 20, classes: int = 5) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    while True:
        yield rng.standard_normal((batch, width)).astype(np.float32), rng.integers(0, classes, batch)


def texts(batch: int = 4, length: int = 12, letters: int = 17) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    while True:
        yield rng.integers(0, letters, (batch, length)), rng.integers(0, letters, batch * length)


def train(
    model: nn.Module,
    batches: Iterator[tuple[np.ndarray, np.ndarray]],
    steps: int = STEPS,
    clip: float | None = None,
    bf16: bool = False,
    make: Callable[[Any], Any] = lambda parameters: gt.optim.AdamW(parameters, lr=3e-3),
    watched: Watched | None = None,
) -> list[float]:
    """The losses, step by step; the fifth step is observed."""
    optimizer = make(model.parameters())
    losses = []
    for step in range(steps):
        if watched is not None and step == 4:
            watched.begin()
        losses.append(_step(model, optimizer, *next(batches), clip, bf16))
        if watched is not None and step == 4:
            watched.end()
    return [loss.item() for loss in losses]


def _step(model: nn.Module, optimizer: Any, x: Any, y: Any, clip: float | None, bf16: bool) -> gt.Tensor:
    optimizer.zero_grad()
    with gt.signal.context("data"):
        x, y = gt.tensor(x), gt.tensor(y)
    with gt.autocast(dtype=gt.bfloat16, enabled=bf16):
        loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    if clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip)
    optimizer.step()
    return loss.detach()


class Weighed(dict[int, Any]):
    """A worker's tensors, and the bytes of their memory: shared memory counts once."""

    def __init__(self, values: dict[int, Any]) -> None:
        super().__init__()
        self.shares: Counter[int] = Counter()
        self.now = self.peak = 0
        for id, value in values.items():
            self[id] = value

    def __setitem__(self, id: int, value: Any) -> None:
        self._weigh(self.get(id), -1)
        super().__setitem__(id, value)
        self._weigh(value, 1)
        self.peak = max(self.peak, self.now)

    def pop(self, id: int, *default: Any) -> Any:
        self._weigh(self.get(id), -1)
        return super().pop(id, *default)

    def _weigh(self, value: Any, count: int) -> None:
        if not isinstance(value, torch.Tensor):
            return
        memory = value.untyped_storage()
        before, self.shares[memory.data_ptr()] = self.shares[memory.data_ptr()], self.shares[memory.data_ptr()] + count
        if not before or before + count == 0:
            self.now += count * memory.nbytes()


class Watched:
    """What a cluster's workers do for a client: the moves each takes part in, and the bytes it holds."""

    def __init__(self, cluster: Cluster, session: Session) -> None:
        self.cluster, self.session = cluster, session
        #: worker -> kind -> how often
        self.moves: dict[int, Counter[str]] = {}
        self.stores: dict[int, Weighed] = {}
        for worker in cluster.workers.values():
            self._watch(worker)

    def _watch(self, worker: Any) -> None:
        moves = self.moves[worker.id] = Counter()
        start, start_all = worker.mover.start, worker.mover.start_all
        handle, admitted = worker.handle, worker.spaces

        def counted(space: Any, entry: Any, *rest: Any) -> None:
            moves[entry.kind] += 1
            start(space, entry, *rest)

        def counted_all(space: Any, begun: list[Any]) -> None:
            moves.update(entry.kind for entry, *_ in begun)
            start_all(space, begun)

        def weighed(*message: Any) -> Any:
            for space in admitted.values():
                if not isinstance(space.store, Weighed):
                    self.stores[worker.id] = space.store = Weighed(space.store)
            return handle(*message)

        worker.mover.start, worker.mover.start_all, worker.handle = counted, counted_all, weighed

    def begin(self) -> None:
        """Start counting."""
        self._settle()
        for moves in self.moves.values():
            moves.clear()
        for store in self.stores.values():
            store.peak = store.now

    def end(self) -> None:
        """Stop counting. The bytes of each worker now, and its peak."""
        self._settle()
        self.counted = {id: dict(moves) for id, moves in self.moves.items()}
        self.bytes = [self.stores[id].now for id in self.moves]
        self.peaks = [self.stores[id].peak for id in self.moves]

    def _settle(self) -> None:
        self.session.outbox.flush()
        self.cluster.settle()

    @property
    def collectives(self) -> dict[str, int]:
        """Moves by kind; all workers took part in the same."""
        first, *others = self.counted.values()
        assert all(other == first for other in others), self.counted
        return first


AUTO = "auto"


@contextlib.contextmanager
def configured(path: pathlib.Path, text: str) -> Iterator[None]:
    """Under a configuration with this text."""
    if text == AUTO:
        gt.auto_shard()
    else:
        path.write_text(text)
        gt.load_config(path)
    try:
        yield
    finally:
        gt.load_config(None)
        gt.auto_shard(False)
