"""Random training loops, each run by torch and by GT and compared value by value.

A `Program` is data: the layers of a net, the parts of a step, and *events*: lines that run before some of the steps and
change the net, the optimizer, the gradients, or what the program keeps. It is drawn from one integer. In a
program that is kept, torch refuses nothing, and a slight change of the parameters changes the results slightly.

    program = generate(7)
    print(difference(program, Mode("two workers", Setting("", workers=2, sharding="auto"))))
    print(source(shrunk(program, problem)))     # a complete script, with ``gt`` as torch or as GT
"""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.utils.checkpoint

import gt
from tests.support.gradient_programs import Setting, array, client, execute
from tests.support.training_lines import CALLS, EVENTS, LAYERS, OPTIMIZERS, PREAMBLE, STEPS

#: features of each layer, rows of a batch
FEATURES, ROWS = 4, 6
#: a result above this is not compared: the loop diverges
LARGEST_VALUE = 1e3


@dataclass(frozen=True)
class Program:
    #: (name, the expression that creates it); every layer keeps the number of features
    layers: tuple[tuple[str, str], ...]
    optimizer: str
    #: the lines of a step, a function of x, y and the step's number k; a second loop that alternates with it has others
    steps: tuple[tuple[str, ...], ...]
    #: (before which step, line)
    events: tuple[tuple[int, str], ...]
    #: how many steps
    length: int
    dtype: str = "float64"
    #: what `gt.compile` is applied to: "step" or "net"
    compiled: str = "step"

    @property
    def tolerance(self) -> float:
        return 2e-7 if self.dtype == "float64" else 0.1

    def setup(self) -> list[str]:
        """The lines before the loop."""
        layers = ", ".join(f"({name!r}, {code})" for name, code in self.layers)
        functions = [
            f"def step_{n}(x, y, k):\n" + "".join(f"    {line}\n" for line in (*lines, "return loss.detach()"))
            for n, lines in enumerate(self.steps)
        ]
        return [
            f"net = Net([{layers}])",
            f"fill(net, gt.{self.dtype})",
            f"optimizer = {self.optimizer}",
            "hooks, reads, kept = [], [], []",
            *functions,
            *([f"step_{n} = compiled(step_{n})" for n in range(len(self.steps))] if self.compiled == "step" else []),
            *(["call = compiled(net)"] if self.compiled == "net" else ["call = net"]),
        ]

    def loop(self) -> list[tuple[str, ...]]:
        """For each step its lines."""
        rounds = []
        for k in range(self.length):
            lines = [line for at, line in self.events if at == k]
            data = f"x, y = batch({k}, gt.{self.dtype})"
            rounds.append((*lines, data, f"loss = step_{k % len(self.steps)}(x, y, {k % 2})"))
        return rounds


def source(program: Program, library: str = "gt", compiled: str = "gt.compile") -> str:
    """The program as a script."""
    imports = ["import copy, gc", "import numpy as np", f"import {library}" + (" as gt" if library != "gt" else "")]
    imports += [f"from {library}.utils.checkpoint import checkpoint", "F = gt.nn.functional", f"compiled = {compiled}"]
    lines = [line for lines in program.loop() for line in lines]
    last = ["print(loss.item())", "print([p.detach().sum().item() for p in net.parameters()])"]
    return "\n".join([*imports, PREAMBLE, *program.setup(), *lines, *last])


# -- running one ---------------------------------------------------------------------------


def world(library: Any, checkpoint: Any, compiled: Callable[[Any], Any], nudge: float = 0.0) -> dict[str, Any]:
    import copy
    import gc

    names = {"gt": library, "np": np, "F": library.nn.functional, "checkpoint": checkpoint, "copy": copy, "gc": gc}
    names |= {"compiled": compiled, "nudge": nudge}
    exec(PREAMBLE, names)
    return names


def run(program: Program, names: dict[str, Any]) -> tuple[list[dict[str, Any]], Exception | None]:
    """What a program computes, step by step, and the error that ended it."""
    values: list[dict[str, Any]] = []
    lines = [program.setup(), *program.loop()]
    for group in lines:
        for line in group:
            if (error := execute(line, names)) is not None:
                error.add_note(line)
                return values, error
        values.append(observed(names))
    values.append({"kept": [array(x) for x in names["kept"] if isinstance(x, torch.Tensor | gt.Tensor)]})
    return values, None


def observed(names: dict[str, Any]) -> dict[str, Any]:
    """Losses, what was read, parameters, buffers, gradients."""
    net = names["net"]
    values = {"reads": [array(x) for x in names["reads"]], "loss": array(names.get("loss"))}
    values |= {name: array(p) for name, p in (*net.named_parameters(), *net.named_buffers())}
    values |= {f"{name}.grad": None if p.grad is None else array(p.grad) for name, p in net.named_parameters()}
    return values


def oracle(program: Program, nudge: float = 0.0) -> tuple[list[dict[str, Any]], Exception | None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run(program, world(torch, torch.utils.checkpoint.checkpoint, lambda f: f, nudge))


# -- drawing one ---------------------------------------------------------------------------


def generate(seed: int, autocast: bool = False) -> Program:
    """The program of a seed."""
    attempt = 0
    while True:
        program = _draw(random.Random(f"{seed}.{attempt}.{autocast}"), autocast)
        if steady(program):
            return program
        attempt += 1


def _draw(rng: random.Random, autocast: bool) -> Program:
    layers = [(f"l{k}", rng.choice(LAYERS)) for k in range(rng.randint(2, 6))]
    layers.insert(rng.randint(0, len(layers)), ("first", "gt.nn.Linear(4, 4)"))
    length = rng.choice((8, 12, 18))
    names = [name for name, code in layers if code.startswith("gt.nn.Linear")]
    events = [
        (rng.randrange(1, length), rng.choice(EVENTS).replace("LAYER", rng.choice(names)))
        for _ in range(rng.choice((0, 2, 4, 8)))
    ]
    every = rng.choice((0, 1, 3))
    events += [
        (k, rng.choice(("reads.append(loss.item())", "kept.append(loss)"))) for k in range(1, length, every or 99)
    ]
    steps = [_draw_step(rng, autocast) for _ in range(rng.choice((1, 1, 2)))]
    return Program(
        tuple(layers), rng.choice(OPTIMIZERS), tuple(steps), tuple(sorted(events)), length,
        "float32" if autocast else "float64", rng.choice(("step", "step", "net")),
    )  # fmt: skip


def _draw_step(rng: random.Random, autocast: bool) -> tuple[str, ...]:
    lines = list(rng.choice(STEPS))
    if autocast:
        prediction = rng.choice(CALLS)
        cached = rng.choice(("", ", cache_enabled=False"))
        enabled = rng.choice(("True", "True", "k == 0"))
        context = f"with gt.autocast('cpu', dtype=gt.bfloat16, enabled={enabled}{cached}): h = {prediction}"
        return tuple(line.replace("h = call(x)", context) for line in lines)
    return tuple(lines)


def steady(program: Program) -> bool:
    """Does torch refuse nothing, and give nearly the same results for nearly the same parameters?"""
    a, error = oracle(program)
    if error is not None or not _is_small(a):
        return False
    nudges = (1e-2, -1e-2) if program.dtype == "float32" else (1e-10,)
    return not any(_unlike(a, oracle(program, nudge)[0], program.tolerance / 2) for nudge in nudges)


def _is_small(values: Any) -> bool:
    if isinstance(values, dict | list):
        return all(map(_is_small, values.values() if isinstance(values, dict) else values))
    return values is None or bool(np.isfinite(values).all() and (np.abs(values) < LARGEST_VALUE).all())


# -- comparing -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Mode:
    """How GT runs a program."""

    name: str
    setting: Setting
    #: is `gt.compile` applied to the step or the net?
    compiled: bool = False


PLAIN = Mode("plain", Setting("torch"))
WITHOUT_TEMPLATES = Mode("without templates", Setting("torch", templates=False))
COMPILED = Mode("compiled", Setting("numpy", backend="numpy"), compiled=True)
SHARDED = Mode("two workers, sharded by themselves", Setting("two", workers=2, sharding="auto"))
SHARDED_AND_COMPILED = replace(SHARDED, setting=replace(SHARDED.setting, backend="numpy"), compiled=True)
MODES = (PLAIN, WITHOUT_TEMPLATES, COMPILED, SHARDED, SHARDED_AND_COMPILED)


def outcome(program: Program, mode: Mode, folder: str) -> tuple[list[dict[str, Any]], Exception | None]:
    with client(mode.setting, program.length, folder), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compiled = gt.compile if mode.compiled else lambda f: f
        return run(program, world(gt, gt.utils.checkpoint.checkpoint, compiled))


def difference(program: Program, mode: Mode, folder: str = "/tmp") -> str:
    """The difference between GT and torch; "" if there is none."""
    theirs, refused = oracle(program)
    if refused is not None:
        return ""
    ours, error = outcome(program, mode, folder)
    if error is not None:
        return f"only GT refuses: {type(error).__name__}: {error}; {error.__notes__}"
    return _unlike(theirs, ours, program.tolerance)


def bits_differ(program: Program, one: Mode, other: Mode, folder: str = "/tmp") -> str:
    """Where two modes give different bits; "" if nowhere."""
    (a, error), (b, other_error) = outcome(program, one, folder), outcome(program, other, folder)
    if type(error) is not type(other_error):
        return f"other refusals: {error!r} and {other_error!r}"
    return _unlike(a, b, 0.0)


def _unlike(a: Any, b: Any, tolerance: float, where: str = "") -> str:
    """The first difference between the values of two runs."""
    if isinstance(a, list):
        pairs = enumerate(zip(a, b, strict=True)) if len(a) == len(b) else [(-1, (len(a), len(b)))]
        return next((p for k, (x, y) in pairs if (p := _unlike(x, y, tolerance, f"{where}[{k}]"))), "")
    if isinstance(a, dict):
        return next((p for name in a if (p := _unlike(a[name], b.get(name), tolerance, f"{where}.{name}"))), "")
    if a is None or b is None:
        return "" if a is b else f"{where}: one has {a}, the other {b}"
    a, b = np.asarray(a), np.asarray(b)
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return f"{where}: {a.dtype}{a.shape} and {b.dtype}{b.shape}"
    if not tolerance:
        return "" if a.tobytes() == b.tobytes() else f"{where}: other bits\n{a}\n{b}"
    if a.size and not np.allclose(a, b, rtol=0, atol=tolerance * (1 + np.abs(a).max())):
        return f"{where}: values differ\n{a}\n{b}"
    return ""


# -- shrinking -----------------------------------------------------------------------------


def shrunk(program: Program, problem: Callable[[Program], str]) -> Program:
    """A smaller program that has a problem too."""

    def fails(smaller: Program) -> bool:
        with contextlib.suppress(Exception):
            return oracle(smaller)[1] is None and bool(problem(smaller))
        return False

    while True:
        failing = next((smaller for smaller in _smaller(program) if fails(smaller)), None)
        if failing is None:
            return program
        program = failing


def _smaller(program: Program) -> Iterator[Program]:
    if program.length > 1:
        yield replace(program, length=program.length // 2)
        yield replace(program, length=program.length - 1)
    for n in range(len(program.steps)):
        if len(program.steps) > 1:
            yield replace(program, steps=program.steps[:n] + program.steps[n + 1 :])
    for part in ("events", "layers"):
        items = getattr(program, part)
        for k in range(len(items)):
            yield replace(program, **{part: items[:k] + items[k + 1 :]})
    for n, lines in enumerate(program.steps):
        for k in range(len(lines)):
            steps = (*program.steps[:n], lines[:k] + lines[k + 1 :], *program.steps[n + 1 :])
            yield replace(program, steps=steps)
