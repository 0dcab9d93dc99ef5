"""Random pipelines, each compared with torch, which runs the same parts on the whole batch.

A `Case` is data, drawn from one integer: the parts and what they do, the schedule, the microbatches, where the stages
run, and what the training step does around them. The parts are written once, over the names that torch and GT share.

    case = draw(7)
    print(problem(case, folder))      # "" if the losses, gradients, parameters and buffers are torch's
    print(shrunk(case, folder))       # a simpler case with a problem
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.utils.checkpoint

import gt
from gt.pipeline import Action, Pipeline, Schedule
from gt.pipeline.schedules import SCHEDULES
from gt.testing import Cluster

WIDTH = 4
TOLERANCE = 1e-10


@dataclass(frozen=True)
class Case:
    seed: int
    #: a name of `SCHEDULES`, or "random" for one of `random_schedule`
    schedule: str
    chunks: int
    #: for each part what it does: a key of `KINDS`
    kinds: tuple[str, ...]
    microbatches: int
    rows: int
    workers: int
    #: for each stage its workers; None: all workers in equal shares
    placement: tuple[tuple[int, ...], ...] | None = None
    #: for each stage a key of `STAGE_SIGNALS`, instead of ``placement``
    signals: tuple[str, ...] | None = None
    #: microbatches of these lengths instead of a batch of ``rows`` rows
    lengths: tuple[int, ...] | None = None
    sums: bool = False
    steps: int = 1
    accumulate: int = 1
    clip: bool = False
    evaluate: bool = False
    compiled: bool = False

    @property
    def stages(self) -> int:
        return len(self.kinds) // self.chunks


# -- the parts: (x, *handed on) -> (x, *handed on) ---------------------------------------------------


def _linear(lib: Any, part: Any, x: Any, *others: Any) -> Any:
    return (x + part.linear(x).tanh(), *others)


def _norm(lib: Any, part: Any, x: Any, *others: Any) -> Any:
    return (part.norm(x) * part.linear.bias, *others)


def _hand_on(lib: Any, part: Any, x: Any, *others: Any) -> Any:
    return (part.linear(x), *others, x * 0.5)


def _mask(lib: Any, part: Any, x: Any, *others: Any) -> Any:
    return (part.linear(x), *others, x > 0)


def _take(lib: Any, part: Any, x: Any, *others: Any) -> Any:
    return (x + part.linear(others[-1].to(x.dtype)) if others else part.linear(x), *others[:-1])


def _twice(lib: Any, part: Any, x: Any, *others: Any) -> Any:
    y = part.linear(x)
    return (y, *others, y, part.linear.weight.sum(0))


def _nested(lib: Any, part: Any, x: Any, *others: Any) -> Any:
    return (part.linear(x), *others[:1], {"pair": [x, 2], "flag": None, "nothing": ()}, *others[1:])


def _checkpoint(lib: Any, part: Any, x: Any, *others: Any) -> Any:
    run = torch.utils.checkpoint.checkpoint if lib is torch else gt.checkpoint
    return (run(lambda x: x + part.linear(x).tanh(), x, use_reentrant=False), *others)


def _no_grad(lib: Any, part: Any, x: Any, *others: Any) -> Any:
    with lib.no_grad():
        shift = part.linear(x)
    return (x * 1.5 + shift, *others)


def _detached(lib: Any, part: Any, x: Any, *others: Any) -> Any:
    return (part.linear(x.detach()), *others)


def _write(lib: Any, part: Any, x: Any, *others: Any) -> Any:
    y = part.linear(x)
    y[..., 0] = 0.25
    return (y.mul_(part.linear.bias), *others)


def _write_input(lib: Any, part: Any, x: Any, *others: Any) -> Any:
    if x.requires_grad:  # the batch itself is not written
        x[..., 1].mul_(0.5)
        x.tanh_()
    return (part.linear(x), *others)


def _count(lib: Any, part: Any, x: Any, *others: Any) -> Any:
    part.seen += x.detach().reshape(-1, WIDTH).sum(0)
    return (part.linear(x), *others)


def _shared(lib: Any, part: Any, x: Any, *others: Any) -> Any:
    return (x + lib.nn.functional.linear(x, part.shared), *others)


KINDS: dict[str, Callable[..., Any]] = {
    "linear": _linear,
    "norm": _norm,
    "hand on": _hand_on,
    "mask": _mask,
    "take": _take,
    "twice": _twice,
    "nested": _nested,
    "checkpoint": _checkpoint,
    "no_grad": _no_grad,
    "detached": _detached,
    "frozen": _linear,
    "write": _write,
    "write input": _write_input,
    "count": _count,
    "shared": _shared,
    "function": lambda lib, part, x, *others: (x.sin() * 2, *others),
}


def first(others: Any) -> Any:
    """The tensor that `_take` uses of what was handed on."""
    return others["pair"][0] if isinstance(others, dict) else others


def make_parts(lib: Any, case: Case) -> list[Any]:
    """The parts as torch's modules or GT's. The last one returns a tensor only."""

    class Part(lib.nn.Module):  # type: ignore[name-defined]
        def __init__(self, kind: str, shared: Any, is_last: bool) -> None:
            super().__init__()
            self.kind, self.is_last = kind, is_last
            self.linear, self.norm = lib.nn.Linear(WIDTH, WIDTH).double(), lib.nn.LayerNorm(WIDTH).double()
            self.register_buffer("seen", lib.zeros(WIDTH, dtype=lib.float64))
            if kind == "shared":
                self.shared = shared
            if kind == "frozen":
                self.requires_grad_(False)

        def forward(self, x: Any, *others: Any) -> Any:
            if self.kind == "take" and others:
                others = (*others[:-1], first(others[-1]))
            result = KINDS[self.kind](lib, self, x, *others)
            return result[0] if self.is_last else result

    rng = np.random.default_rng(case.seed)
    shared = lib.nn.Parameter(lib.tensor(rng.standard_normal((WIDTH, WIDTH)) * 0.3))
    parts: list[Any] = []
    for number, kind in enumerate(case.kinds):
        is_last = number + 1 == len(case.kinds)
        if kind == "function" and not is_last:
            parts.append(lambda *xs: KINDS["function"](lib, None, *xs))
            continue
        parts.append(part := Part(kind, shared, is_last))
        for name, p in part.named_parameters():
            if name != "shared":
                with lib.no_grad():
                    p.copy_(lib.tensor(rng.standard_normal(tuple(p.shape)) * 0.5 + 0.1))
    return parts


def modules(parts: list[Any]) -> list[Any]:
    return [part for part in parts if hasattr(part, "parameters")]


def parameters(parts: list[Any]) -> list[Any]:
    return list({id(p): p for part in modules(parts) for p in part.parameters()}.values())


# -- drawing ---------------------------------------------------------------------------------------


def random_schedule(rng: random.Random, stages: int, chunks: int, microbatches: int) -> Schedule:
    """The stages run actions whose inputs exist, in any order; a backward is B, or I and W."""
    parts = [*range(stages)] * chunks
    rng.shuffle(parts)
    split = {(p, m): rng.random() < 0.5 for p in range(len(parts)) for m in range(microbatches)}
    waiting = [Action("F", p, m) for p, m in split]
    for (p, m), is_split in split.items():
        waiting += [Action(kind, p, m) for kind in ("IW" if is_split else "B")]
    done: set[Action] = set()
    rows: list[list[Action]] = [[] for _ in range(stages)]
    while waiting:
        ready = [
            a
            for a in waiting
            if all(n in done for n in a.needs(len(parts), split.get((a.part + 1, a.microbatch), False)))
        ]
        action = rng.choice(ready)
        waiting.remove(action)
        done.add(action)
        rows[parts[action.part]].append(action)
    return Schedule(rows, "random")


_WHOLE = "stage{s}: {{workers: {w}, replicate: true}}\n"
_ROWS = "stage{s}: {{shard: {{axis: 0, workers: {w}}}}}\n"
STAGE_SIGNALS = {
    "whole": _WHOLE,
    "rows": _ROWS,
    "features": "stage{s}: {{shard: {{axis: 1, workers: {w}}}}}\n",
    "sharded": _ROWS + "own{s}: {{match: {m}, shard: {{axis: 0, workers: {w}}}}}\n",
    "tensor parallel": _WHOLE + "own{s}: {{match: {m}, shard: {{axis: 1, workers: {w}}}}}\n",
}


def draw(seed: int) -> Case:
    rng = random.Random(seed)
    schedule = rng.choice([*SCHEDULES, "random"])
    chunks = rng.choice((1, 2, 3)) if schedule in ("interleaved_1f1b", "random") else SCHEDULES[schedule][1]
    stages, workers, microbatches = rng.randint(1, 4 if chunks == 1 else 3), rng.randint(1, 5), rng.randint(1, 8)
    kinds = tuple(rng.choice([*KINDS]) for _ in range(stages * chunks))
    # a copy is written, but torch would write what was handed on too
    for number in range(1, len(kinds)):
        if kinds[number - 1] == "twice" and kinds[number] == "write input":
            kinds = (*kinds[:number], "linear", *kinds[number + 1 :])
    # something must have a gradient
    kinds = (*kinds[:-1], "linear") if kinds[-1] in ("frozen", "function", "no_grad") else kinds
    where = rng.choice(("equal", "one each", "several", "signals"))
    sets = [tuple(sorted(rng.sample(range(workers), rng.randint(1, min(3, workers))))) for _ in range(stages)]
    own = tuple(rng.choice([*STAGE_SIGNALS]) for _ in range(stages))
    lengths = tuple(rng.randint(1, 4) for _ in range(microbatches)) if rng.random() < 0.25 else None
    return Case(
        seed,
        schedule,
        chunks,
        kinds,
        microbatches,
        rows=rng.randint(microbatches, 3 * microbatches + 1),
        workers=workers,
        placement={"one each": tuple((w[0],) for w in sets), "several": tuple(sets)}.get(where),
        signals=own if where == "signals" else None,
        lengths=lengths,
        sums=rng.random() < 0.3,
        steps=rng.randint(1, 4),
        accumulate=rng.choice((1, 1, 2)),
        clip=rng.random() < 0.3,
        evaluate=rng.random() < 0.5,
        compiled=rng.random() < 0.2 and lengths is None,
    )


# -- running ---------------------------------------------------------------------------------------


def batches(case: Case, step: int) -> tuple[Any, Any]:
    """The batch and the targets of a step, as arrays; lists of them if the case has lengths."""
    rng = np.random.default_rng((case.seed, step))
    if case.lengths is None:
        return rng.standard_normal((case.rows, WIDTH)), rng.standard_normal((case.rows, WIDTH))
    shapes = [(2, n, WIDTH) for n in case.lengths]
    return [rng.standard_normal(s) for s in shapes], [rng.standard_normal(s) for s in shapes]


def loss_of(case: Case) -> Callable[[Any, Any], Any]:
    if case.sums:
        return lambda out, target: (out - target).square().sum()
    return lambda out, target: (out - target).square().mean()


def whole_loss(lib: Any, case: Case, parts: list[Any], x: Any, y: Any) -> Any:
    """The loss without a pipeline."""
    if isinstance(x, list):
        losses = [whole_loss(lib, case, parts, a, b) for a, b in zip(x, y, strict=True)]
        return sum(losses) if case.sums else sum(losses) / len(losses)  # equal numbers of rows
    for part in parts:
        x = part(*x) if isinstance(x, tuple) else part(x)
    return loss_of(case)(x, y)


#: what a run records: name -> values
Values = dict[str, Any]


def train(lib: Any, case: Case, parts: list[Any], step: Callable[..., Any], evaluate: Callable[..., Any]) -> Values:
    """The training around ``step(x, y)``, which adds to the gradients, and ``evaluate(x, y)``."""
    wanted = parameters(parts)
    optimizer = lib.optim.AdamW([p for p in wanted if p.requires_grad], lr=0.01)
    values: Values = {}

    def update(x: Any, y: Any) -> Any:
        optimizer.zero_grad()
        for _ in range(case.accumulate):
            loss = step(x, y)
        if case.clip:
            lib.nn.utils.clip_grad_norm_(wanted, 0.1)
        optimizer.step()
        return loss

    run = gt.compile(update) if case.compiled and lib is gt else update
    for number in range(case.steps):
        x, y = (
            [lib.tensor(a) for a in side] if isinstance(side, list) else lib.tensor(side)
            for side in batches(case, number)
        )
        values[f"loss {number}"] = run(x, y).item()
        if case.evaluate:
            values[f"evaluation {number}"] = evaluate(x, y).item()
    for number, p in enumerate(wanted):
        values[f"gradient {number}"] = None if p.grad is None else p.grad.numpy().copy()
        values[f"parameter {number}"] = p.detach().numpy().copy()
    for number, part in enumerate(modules(parts)):
        values[f"seen {number}"] = part.seen.numpy().copy()
    return values


def in_torch(case: Case) -> Values:
    parts = make_parts(torch, case)

    def step(x: Any, y: Any) -> Any:
        loss = whole_loss(torch, case, parts, x, y)
        loss.backward()
        return loss

    def evaluate(x: Any, y: Any) -> Any:
        with torch.no_grad():
            return whole_loss(torch, case, parts, x, y)

    return train(torch, case, parts, step, evaluate)


def in_stages(case: Case, folder: Any) -> Values:
    with Cluster(case.workers, seed=case.seed, backend="numpy").client():
        try:
            gt.load_config(_configuration(case, folder))
            parts = make_parts(gt, case)
            schedule: Any = case.schedule
            if schedule == "random":
                schedule = random_schedule(random.Random(case.seed), case.stages, case.chunks, case.microbatches)
            names = None if case.signals is None else [f"stage{s}" for s in range(case.stages)]
            options = {"signals": names, "workers": case.placement, "mean_loss": not case.sums}
            chunks = None if case.schedule == "random" else case.chunks
            pipeline = Pipeline(parts, schedule, case.microbatches, chunks=chunks, **options)
            loss_fn = loss_of(case)
            return train(
                gt,
                case,
                parts,
                lambda x, y: pipeline.step(x, y, loss_fn),
                lambda x, y: pipeline.evaluate(x, y, loss_fn),
            )
        finally:
            gt.load_config(None)


def _configuration(case: Case, folder: Any) -> Any:
    """The file of the signals; None if there are none."""
    if case.signals is None:
        return None
    rng = random.Random(case.seed)
    text = ""
    for s, kind in enumerate(case.signals):
        workers = sorted(rng.sample(range(case.workers), rng.randint(1, min(3, case.workers))))
        text += STAGE_SIGNALS[kind].format(s=s, w=workers, m=f'"{s}.linear.weight"')
    path = folder / f"signals_{case.seed}.yaml"
    path.write_text(text)
    return path


def problem(case: Case, folder: Any) -> str:
    """How the pipeline differs from torch; "" if it does not."""
    expected = in_torch(case)
    try:
        values = in_stages(case, folder)
    except Exception as error:
        return f"{type(error).__name__}: {error} {getattr(error, '__notes__', '')}"
    for name, theirs in expected.items():
        ours = values[name]
        if (ours is None) != (theirs is None):
            return f"{name}: {ours} instead of {theirs}"
        if theirs is not None and not np.allclose(
            ours, theirs, rtol=0, atol=TOLERANCE * max(1.0, np.abs(theirs).max())
        ):
            return f"{name} differs by {np.abs(np.subtract(ours, theirs)).max():.1e}"
    return ""


# -- shrinking -------------------------------------------------------------------------------------


def simpler(case: Case) -> Iterator[Case]:
    """Cases that are simpler by one thing."""
    plain = Case(case.seed, case.schedule, case.chunks, case.kinds, case.microbatches, case.rows, case.workers)
    for name in ("compiled", "evaluate", "clip", "accumulate", "steps", "sums", "lengths", "signals", "placement"):
        if getattr(case, name) != getattr(plain, name):
            yield replace(case, **{name: getattr(plain, name)})
    if case.schedule != "1f1b" and case.chunks == 1:
        yield replace(case, schedule="1f1b")
    for number, kind in enumerate(case.kinds):
        if kind != "linear":
            yield replace(case, kinds=(*case.kinds[:number], "linear", *case.kinds[number + 1 :]))
    for rows in {1, 2, case.microbatches}:
        if case.lengths is None and rows < case.rows:
            yield replace(case, rows=rows, microbatches=min(rows, case.microbatches))
    if case.workers > 1 and case.placement is None and case.signals is None:
        yield replace(case, workers=case.workers - 1)


def shrunk(case: Case, folder: Any) -> Case:
    """A simpler case that has a problem too."""
    while (smaller := next((c for c in simpler(case) if problem(c, folder)), None)) is not None:
        case = smaller
    return case
