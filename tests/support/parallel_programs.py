"""Models of other people, unchanged, trained under configurations of signals.

``python -m tests.support.parallel_programs PROGRAM WORLD WORKERS CHECKOUTS`` prints, for each configuration, the losses
and the bytes that workers moved. In the world "gtx" the model is on the device of torch; in the world "gt" the same
source is renamed to GT's own API. A configuration needs nothing in the program: it names parameters and modules.
"""

from __future__ import annotations

import importlib
import json
import pathlib
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np

import gt
from gt.testing import Cluster
from tests.programs_of_others.rename import RenamedModules, rename
from tests.support.recipes import AUTO, configured

LETTERS, LENGTH, BATCH, WIDTH, HEADS = 64, 16, 128, 64, 4
STEPS, WARM_STEPS = 6, 2


def recipes(workers: int, columns: list[str], rows: list[str], norms: list[str], halves: list[list[str]]) -> Any:
    """Configurations by name. ``halves``: the patterns of the first and the second half of the modules."""
    half = workers // 2
    stages = [[*range(half)], [*range(half, workers)]]
    first, second = ([f"{pattern}.*" for pattern in patterns] for patterns in halves)
    data = "data: {uploads: true, shard: {axis: 0}}\n"
    return {
        "data": data + 'parameters: {match: "*", replicate: true}',
        "tensor": f"""
mesh: {{tp: {workers}}}
data: {{uploads: true, replicate: true}}
columns: {{match: {json.dumps(columns)}, shard: {{0: tp}}}}
rows: {{match: {json.dumps(rows)}, shard: {{1: tp}}}}
others: {{match: "*", replicate: true}}
between: {{modules: {json.dumps(norms)}, output: replicate}}
""",
        "sharded": data + 'parameters: {match: "*", shard: {axis: 0}}',
        "stages": f"""
data: {{uploads: true, replicate: true, workers: {stages[0]}}}
first: {{match: {json.dumps(first)}, replicate: true, workers: {stages[0]}}}
second: {{match: {json.dumps(second)}, replicate: true, workers: {stages[1]}}}
stage0: {{modules: {json.dumps(halves[0])}, workers: {stages[0]}}}
stage1: {{modules: {json.dumps(halves[1])}, workers: {stages[1]}}}
""",
        "auto": AUTO,
    }


# -- the programs ------------------------------------------------------------------------------


def small(world: str, programs: pathlib.Path | None = None) -> Callable[[], Any]:
    """Embedding, two residual MLPs and a head: in both worlds without a rename."""
    nn = importlib.import_module("gt.nn" if world == "gt" else "torch.nn")

    class Block(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

        def forward(self, x: Any) -> Any:
            return x + self.down(nn.functional.silu(self.up(self.norm(x))))

    class Model(nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.letters, self.head = nn.Embedding(LETTERS, 16), nn.Linear(16, LETTERS)
            self.blocks = nn.ModuleList([Block(), Block()])

        def forward(self, x: Any, y: Any) -> Any:
            x = self.letters(x)
            for block in self.blocks:
                x = block(x)
            return nn.functional.cross_entropy(self.head(x).flatten(0, 1), y.flatten())

    return Model


def nanogpt(world: str, programs: pathlib.Path) -> Callable[[], Any]:
    """Karpathy's nanoGPT: its ``model.py``."""
    path = programs / "nanoGPT" / "model.py"
    source = path.read_text()
    module = types.ModuleType("nanogpt_model")
    sys.modules[module.__name__] = module
    exec(compile(rename(source) if world == "gt" else source, str(path), "exec"), module.__dict__)
    sizes = {"block_size": LENGTH, "vocab_size": LETTERS, "n_layer": 2, "n_head": HEADS, "n_embd": WIDTH}
    return lambda: module.GPT(module.GPTConfig(**sizes, dropout=0.0, bias=False))


def llama(world: str, programs: pathlib.Path) -> Callable[[], Any]:
    """Llama of Hugging Face's transformers."""
    if world == "gt":
        RenamedModules("/nowhere", ("transformers",), lambda path, source: source).install()
    sys.modules["torchvision"] = None  # type: ignore[assignment]  # it needs no images
    transformers = importlib.import_module("transformers")
    shape = {"hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_hidden_layers": 2}
    heads = {"num_attention_heads": HEADS, "num_key_value_heads": HEADS}
    config = transformers.LlamaConfig(vocab_size=LETTERS, max_position_embeddings=LENGTH, **shape, **heads)
    return lambda: transformers.LlamaForCausalLM(config).train()


#: name -> how it is made, the loss of a batch, and what its configurations name
PROGRAMS: dict[str, tuple[Any, Callable[[Any, Any, Any], Any], tuple[Any, ...]]] = {
    "small": (
        small,
        lambda model, x, y: model(x, y),
        (["*.up.*"], ["*.down.weight"], ["*.norm"], [["letters", "blocks.0"], ["blocks.1", "head"]]),
    ),
    "nanoGPT": (
        nanogpt,
        lambda model, x, y: model(x, y)[1],
        (
            ["*.c_attn.*", "*.c_fc.*"],
            ["*.c_proj.weight"],
            ["*.ln_?"],
            [["transformer.w?e", "transformer.h.0"], ["transformer.h.1", "transformer.ln_f", "lm_head"]],
        ),
    ),
    "Llama": (
        llama,
        lambda model, x, y: model(input_ids=x, labels=x).loss,
        (
            ["*.q_proj.*", "*.k_proj.*", "*.v_proj.*", "*.gate_proj.*", "*.up_proj.*"],
            ["*.o_proj.weight", "*.down_proj.weight"],
            ["*layernorm", "model.norm"],
            [["model.embed_tokens", "model.layers.0"], ["model.layers.1", "model.norm", "lm_head"]],
        ),
    ),
}


# -- training ----------------------------------------------------------------------------------


class Moved:
    """The bytes that the workers of a cluster moved, as their events count them: the larger side of each move."""

    def __init__(self, cluster: Cluster) -> None:
        self.nbytes = 0
        for worker in cluster.workers.values():
            self._watch(worker.mover)

    def _watch(self, mover: Any) -> None:
        start, start_all = mover.start, mover.start_all

        def counted(space: Any, move: Any, *rest: Any) -> None:
            self._add(move)
            start(space, move, *rest)

        def counted_all(space: Any, begun: list[Any]) -> None:
            for move, *_ in begun:
                self._add(move)
            start_all(space, begun)

        mover.start, mover.start_all = counted, counted_all

    def _add(self, move: Any) -> None:
        self.nbytes += max((t.nbytes for t in (move.before, move.after) if t is not None), default=0)


def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(0)
    while True:
        tokens = rng.integers(0, LETTERS, (BATCH, LENGTH + 1))
        yield np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, 1:])


def train(world: str, make: Callable[[], Any], loss_of: Any, workers: int, text: str) -> tuple[list[float], int]:
    """The losses, and the bytes moved in the steps after the first ones."""
    framework = importlib.import_module("gt" if world == "gt" else "torch")
    upload = gt.tensor if world == "gt" else lambda array: framework.from_numpy(array).to(world)
    cluster = Cluster(workers)
    file = pathlib.Path(tempfile.mkdtemp()) / "signals.yaml"
    with configured(file, text) if text else nullcontext(), cluster.client() as session:
        moved, before = Moved(cluster), 0
        framework.manual_seed(0)
        model = make() if world == "gt" else make().to(world)
        optimizer = framework.optim.AdamW(model.parameters(), lr=1e-3)
        losses = []
        for step, (x, y) in zip(range(STEPS), batches(), strict=False):
            if step == WARM_STEPS:
                session.outbox.flush()
                cluster.settle()
                before = moved.nbytes
            loss = loss_of(model, upload(x), upload(y))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        result = [loss.item() for loss in losses]
        session.outbox.flush()
        cluster.settle()
        return result, moved.nbytes - before


def train_all(program: str, world: str, workers: int, programs: pathlib.Path) -> dict[str, tuple[list[float], int]]:
    """What `train` returns for one worker and for each configuration."""
    maker, loss_of, names = PROGRAMS[program]
    make = maker(world, programs)
    configurations = {"one": "", **recipes(workers, *names)}
    return {name: train(world, make, loss_of, workers if text else 1, text) for name, text in configurations.items()}


def main(program: str, world: str, workers: str, programs: str) -> None:
    if world != "gt":
        importlib.import_module("gt.torch_device")
    print(json.dumps(train_all(program, world, int(workers), pathlib.Path(programs))))


if __name__ == "__main__":
    main(*sys.argv[1:])
