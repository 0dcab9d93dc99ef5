"""The programs of a row: training steps, forward passes, decoding, and a chain of adds.

Weights and data are torch's, made from one seed, in every row; so `check` must give the same values everywhere. Without
a GPU the larger models are small.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import gt
from benchmarks.hot import models
from benchmarks.hot.rows import OVERHEAD, Row
from benchmarks.training import CUDA, DEVICE, GPTS, gpt, mlp

ADDS = 1000
#: steps of a check, and how far its values may be from torch eager's, relative to the first one (at least to 1)
CHECKED_STEPS = 3
TOLERANCE = {"bfloat16": 0.05, "float32": 0.01 if CUDA else 0.002}
Figures = dict[str, Any]
Values = tuple[list[float], float]


@dataclass(frozen=True)
class Task:
    """A model, a batch on torch's CPU, and how it is trained."""

    model: Callable[[Any], Any]
    batch: Callable[[], tuple[torch.Tensor, torch.Tensor]]
    rate: float = 1e-3
    autocast: bool = False
    #: options of SGD; None: AdamW
    sgd: dict[str, float] | None = None


def _size(full: Any, small: Any) -> Any:
    return full if CUDA else small


def _images(batch: int, size: int, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(batch, 3, size, size), torch.randint(0, classes, (batch,))


def _tokens(batch: int, length: int, vocabulary: int) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.randint(0, vocabulary, (batch, length + 1))
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


def _rows(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(batch, 784), torch.randint(0, 10, (batch,))


def _gpt(name: str) -> Task:
    layers, width, heads, vocabulary, batch, length, autocast = GPTS[name]
    return Task(
        lambda lib: gpt(lib, layers, width, heads, vocabulary, length),
        lambda: _tokens(batch, length, vocabulary),
        autocast=autocast,
    )


#: layers, width, vocabulary, length
BERT = _size((12, 768, 30522, 128), (2, 128, 500, 32))
#: layers, width, vocabulary, positions of the cache
DECODER = _size((12, 768, 50257, 512), (2, 128, 500, 64))
#: batch, side of an image, classes
IMAGES = _size((64, 224, 1000), (4, 64, 10))
MOMENTUM = {"momentum": 0.9}


def _resnet18(lib: Any) -> Any:
    return models.resnet18(lib, IMAGES[2])


def _bert(lib: Any) -> Any:
    return models.bert(lib, *BERT)


def _vit(lib: Any) -> Any:
    layers, width, patch = _size((12, 768, 16), (2, 128, 16))
    return models.vit(lib, layers, width, IMAGES[1], patch, IMAGES[2])


TASKS = {
    "mlp": Task(mlp, lambda: _rows(64)),
    "mlp-sgd": Task(mlp, lambda: _rows(64), rate=0.01, sgd={}),
    "gpt": _gpt("gpt"),
    "mini-gpt": _gpt("mini-gpt"),
    "convnet": Task(models.convnet, lambda: _images(_size(128, 16), 32, 10)),
    "resnet18": Task(_resnet18, lambda: _images(*IMAGES), 0.01, True, MOMENTUM),
    "resnet18-fp32": Task(_resnet18, lambda: _images(*IMAGES), 0.01, False, MOMENTUM),
    "bert": Task(_bert, lambda: _tokens(_size(32, 4), BERT[3], BERT[2]), 1e-4, True),
    "lstm": Task(lambda lib: models.lstm(lib, _size(512, 64), 256), lambda: _tokens(_size(64, 8), _size(64, 16), 256)),
    "vit": Task(_vit, lambda: _images(*IMAGES), 1e-4, True),
}


def make(work: str, row: Row, mode: str) -> Any:
    """The program of a row, with the torch.compile mode that it is to try."""
    lib = gt if row.library == "gt" else torch
    if work == "adds":
        return Adds(lib, row, mode)
    if work in ("resnet18-forward", "bert-forward"):
        return Forward(lib, row, mode, work.removesuffix("-forward"))
    if work in ("decode", "decode-16"):
        return Decoding(lib, row, mode, 16 if work == "decode-16" else 1)
    return Training(lib, row, mode, TASKS[work])


def placed(lib: Any, x: torch.Tensor) -> Any:
    """The tensor on the device that this library computes on."""
    return x.to(DEVICE) if lib is torch else gt.tensor(x)


def same_weights(lib: Any, build: Callable[[Any], Any]) -> tuple[Any, dict[str, torch.Tensor]]:
    """The model with torch's initial weights of seed 0, and these weights on the CPU."""
    torch.manual_seed(0)
    original = build(torch)
    weights = {name: value.clone() for name, value in original.state_dict().items()}
    if lib is torch:
        return original.to(DEVICE), weights
    model = build(gt)
    load(gt, model, weights)
    return model, weights


def load(lib: Any, model: Any, weights: dict[str, torch.Tensor]) -> None:
    """Write weights into a model one by one, so that no second copy of all of them is needed."""
    with lib.no_grad():
        for name, value in model.state_dict().items():
            value.copy_(weights[name] if lib is torch else gt.tensor(weights[name]))


class Training:
    """Training steps of one task."""

    def __init__(self, lib: Any, row: Row, mode: str, task: Task) -> None:
        self.lib, self.task, self.mode = lib, task, mode
        self.model, self.weights = same_weights(lib, task.model)
        x, y = task.batch()
        self.x, self.y = placed(lib, x), placed(lib, y)
        if row.best and x.ndim == 4:  # convolutions are faster so
            self.model = self.model.to(memory_format=torch.channels_last)
            self.x = self.x.to(memory_format=torch.channels_last)
        self.optimizer = self._optimizer({"fused": True} if row.best else {})
        self.forward: Any = self.model
        if mode and not row.best:
            self.forward = torch.compile(self.model, mode=mode)
        if row.best:
            self.loss = torch.compile(self.loss, mode=mode)  # type: ignore[method-assign]
        if row.decorated:
            self.step = gt.compile(self.step)  # type: ignore[method-assign]

    def _optimizer(self, options: dict[str, Any]) -> Any:
        parameters, optim = self.model.parameters(), self.lib.optim
        if self.task.sgd is None:
            return optim.AdamW(parameters, lr=self.task.rate, **options)
        return optim.SGD(parameters, lr=self.task.rate, **self.task.sgd, **options)

    def loss(self, x: Any, y: Any) -> Any:
        with self._precision():
            out = self.forward(x)
            return self.lib.nn.functional.cross_entropy(out.reshape(-1, out.shape[-1]), y.reshape(-1))

    def _precision(self) -> Any:
        if self.lib is torch:
            return torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=self.task.autocast)
        return gt.autocast(dtype=gt.bfloat16, enabled=self.task.autocast)

    def step(self, x: Any, y: Any) -> Any:
        loss = self.loss(x, y)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss

    def run(self, steps: int) -> Figures:
        """Seconds per step, with one read at the end."""
        started = time.perf_counter()
        for _ in range(steps):
            if self.mode == OVERHEAD:
                torch.compiler.cudagraph_mark_step_begin()
            loss = self.step(self.x, self.y)
        value = loss.item()
        seconds = (time.perf_counter() - started) / steps
        assert math.isfinite(value), f"the loss is {value}"
        return {"step_s": seconds, "loss": value}

    def check(self) -> Values:
        """The losses of the first steps, run again from the initial weights."""
        load(self.lib, self.model, self.weights)
        with self.lib.no_grad():
            for state in self.optimizer.state.values():
                for key, value in state.items():
                    if isinstance(value, self.lib.Tensor):
                        value.zero_()
                    elif value is not None:
                        state[key] = 0
        losses = [self.run(1)["loss"] for _ in range(CHECKED_STEPS)]
        return losses, TOLERANCE["bfloat16" if self.task.autocast else "float32"]


class Forward:
    """Forward passes without gradients, of one sample each, with a read of the answer."""

    def __init__(self, lib: Any, row: Row, mode: str, name: str) -> None:
        self.lib, self.mode, task = lib, mode, TASKS[name]
        model, _ = same_weights(lib, task.model)
        x = task.batch()[0][:1]
        self.model = model.eval()
        if CUDA:
            self.model = self.model.to(lib.bfloat16)
            x = x.to(torch.bfloat16) if x.is_floating_point() else x
        self.x = placed(lib, x)
        if row.best and x.ndim == 4:
            self.model = self.model.to(memory_format=torch.channels_last)
            self.x = self.x.to(memory_format=torch.channels_last)
        if mode:
            self.answer = torch.compile(self.answer, mode=mode)  # type: ignore[method-assign]
        if row.decorated:
            self.answer = gt.compile(self.answer)  # type: ignore[method-assign]

    def answer(self, x: Any) -> tuple[Any, Any]:
        scores, classes = self.model(x).max(dim=-1)
        return classes, scores

    def run(self, steps: int) -> Figures:
        each = []
        with self.lib.no_grad():
            for _ in range(steps):
                started = time.perf_counter()
                if self.mode == OVERHEAD:
                    torch.compiler.cudagraph_mark_step_begin()
                self.answer(self.x)[0].tolist()
                each.append(time.perf_counter() - started)
        return {"step_s": sum(each) / steps, "each_s": each}

    def check(self) -> Values:
        with self.lib.no_grad():
            scores = self.answer(self.x)[1].float().sum().item()
        return [scores], TOLERANCE["bfloat16" if CUDA else "float32"]


class Decoding:
    """Tokens one by one, each from the one before; with a read of each token, and without."""

    def __init__(self, lib: Any, row: Row, mode: str, batch: int) -> None:
        self.lib, self.mode, self.batch, self.length = lib, mode, batch, DECODER[3]
        model, _ = same_weights(lib, lambda lib: models.decoder(lib, *DECODER, batch))
        self.model: Any = model.eval()
        if CUDA:
            self.model = self.model.to(lib.bfloat16)
        self.first = placed(lib, torch.arange(batch).view(batch, 1))
        self.position = placed(lib, torch.zeros(1, dtype=torch.int64))
        self.next: Any = self.model
        if mode:
            self.next = torch.compile(self.model, mode=mode)
        if row.decorated:
            self.next = gt.compile(self.model.forward)

    def step(self, ids: Any) -> tuple[Any, Any]:
        if self.mode == OVERHEAD:
            torch.compiler.cudagraph_mark_step_begin()
        ids, scores = self.next(ids, self.position)
        self.position.add_(1)
        # the next run of a graph overwrites its results
        return (ids.clone(), scores) if self.mode == OVERHEAD else (ids, scores)

    def _decode(self, steps: int, read: bool) -> float:
        """Seconds per token."""
        ids, tokens = self.first, []
        started = time.perf_counter()
        with self.lib.no_grad():
            for number in range(steps):
                if number % self.length == 0:
                    self.position.zero_()
                ids, _ = self.step(ids)
                if read:
                    tokens.append(ids.tolist())
            ids.tolist()
        return (time.perf_counter() - started) / steps

    def run(self, steps: int) -> Figures:
        return {"step_s": self._decode(steps, read=False), "read_step_s": self._decode(steps, read=True)}

    def check(self) -> Values:
        """The scores at the first positions after given tokens."""
        values = []
        with self.lib.no_grad():
            self.position.zero_()
            for _ in range(CHECKED_STEPS):
                values.append(self.step(self.first)[1].float().sum().item() / self.batch)
        return values, TOLERANCE["bfloat16" if CUDA else "float32"]


class Adds:
    def __init__(self, lib: Any, row: Row, mode: str) -> None:
        self.x = placed(lib, torch.ones(64, 64))
        self.chain: Any = chain
        if mode:
            self.chain = torch.compile(chain, mode=mode)
        if row.decorated:
            self.chain = gt.compile(chain)

    def run(self, steps: int) -> Figures:
        started = time.perf_counter()
        for _ in range(steps):
            value = self.chain(self.x)[0, 0].item()
        seconds = (time.perf_counter() - started) / steps
        assert value == ADDS + 1, f"{ADDS} adds gave {value}"
        return {"step_s": seconds}

    def check(self) -> Values:
        return [self.chain(self.x)[0, 0].item()], 0.0


def chain(x: Any) -> Any:
    y = x
    for _ in range(ADDS):
        y = y + x
    return y
