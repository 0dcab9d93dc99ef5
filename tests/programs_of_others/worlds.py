"""One run of a program in one world, torch or GT, in a process of its own (started by `compare.py`).

In the mode "losses" both worlds start from the same weights and draw the same random numbers; the value of every
tensor that the program calls `backward` on is recorded. The weights are those of torch's run, copied when an optimizer
or a call of a module first sees a parameter. In the mode "time" nothing is replaced, and the steps are timed.
"""

from __future__ import annotations

import importlib
import json
import os
import pathlib
import random
import sys
import time
import types
from typing import Any

import numpy as np

from tests.programs_of_others.draws import Draws, share_shuffling
from tests.programs_of_others.rename import RenamedModules, rename
from tests.programs_of_others.table import PROGRAMS, Program


class Enough(BaseException):
    """Ends a program after the steps that are needed; no program catches it."""


class Steps:
    """Counts the steps of a program: calls of `backward`, or of a whole module if it does not train."""

    def __init__(self, program: Program, mode: str, framework: Any) -> None:
        self._program, self._timed, self._framework = program, mode == "time", framework
        self._count = 0
        #: when the first timed step ended; None before
        self._start: float | None = None
        self.losses: list[float] = []
        #: None if the program had too few steps to be timed
        self.step_ms: float | None = None

    def record(self, loss: Any) -> None:
        """Take note of one step. It ends the program after its last one."""
        self._count += 1
        if not self._timed:
            if loss is not None:
                self.losses.append(float(loss.detach().sum()))
            if self._count == self._program.steps:
                raise Enough
            return
        first, last = self._program.timed
        if self._count == first:
            self._wait()
            self._start = time.perf_counter()
        elif self._count == last and self._start is not None:
            self._wait()
            self.step_ms = (time.perf_counter() - self._start) / (last - first) * 1e3
            raise Enough

    def _wait(self) -> None:
        if self._framework.__name__ == "gt":
            self._framework.cuda.synchronize()


class Weights:
    """Initial weights: written in torch's world, read in GT's, in the order in which parameters are first seen."""

    def __init__(self, framework: Any, file: pathlib.Path) -> None:
        self._framework, self._file, self._seen = framework, file, {}
        self._writes = framework.__name__ == "torch"
        self._values: list[Any] = [] if self._writes else list(np.load(file).values())

    def see(self, parameters: Any) -> None:
        for p in parameters:
            if id(p) not in self._seen:
                self._seen[id(p)] = p  # kept, so that no other parameter gets its id
                self._exchange(p)

    def _exchange(self, p: Any) -> None:
        if self._writes:
            self._values.append(p.detach().clone().numpy())
            return
        value = self._values[len(self._seen) - 1]
        assert tuple(p.shape) == value.shape, f"the worlds see other parameters: {tuple(p.shape)}, {value.shape}"
        with self._framework.no_grad():
            p.copy_(self._framework.tensor(value))

    def save(self) -> None:
        if self._writes:
            np.savez(self._file, *self._values)


def watch(framework: Any, program: Program, steps: Steps, weights: Weights | None) -> None:
    """Count the program's steps and, for losses, exchange weights."""
    module, optimizer, tensor = framework.nn.Module, framework.optim.Optimizer, framework.Tensor
    call, create, backward = module.__call__, optimizer.__init__, tensor.backward
    depth = [0]

    def watched_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        outermost = not depth[0]
        if outermost and weights is not None:
            weights.see(self.parameters())
        depth[0] += 1
        try:
            return call(self, *args, **kwargs)
        finally:
            depth[0] -= 1
            if outermost and not program.trains:
                steps.record(None)

    def watched_create(self: Any, *args: Any, **kwargs: Any) -> None:
        create(self, *args, **kwargs)
        if weights is not None:
            weights.see(p for group in self.param_groups for p in group["params"])

    def watched_backward(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = backward(self, *args, **kwargs)
        steps.record(self)
        return result

    if weights is not None or not program.trains:
        module.__call__ = watched_call
        optimizer.__init__ = watched_create
    if program.trains:
        tensor.backward = watched_backward


def run(world: str, mode: str, program: Program, folder: pathlib.Path) -> None:
    """Run the program in its folder, and write what was recorded to ``<world>_<mode>.json``."""
    script = program.copy(folder, world) / program.script
    sys.path[:0] = [str(script.parent), str(program.copy(folder, world))]
    os.chdir(script.parent)
    random.seed(0)
    np.random.seed(0)
    edit = program.edited if world == "gt" else lambda path, source: source
    if world == "gt":
        RenamedModules(str(program.copy(folder, world)), program.renamed, edit).install()
    framework = importlib.import_module(world)
    library = declare_torchvision_operators()  # noqa: F841, it lives as long as this
    framework.manual_seed(0)
    steps, weights = Steps(program, mode, framework), None
    if mode == "losses":
        weights = Weights(framework, folder / "weights.npz")
        Draws(framework).install()
        share_shuffling(importlib.import_module("torch.utils.data").RandomSampler)
    watch(framework, program, steps, weights)
    try:
        for name, arguments in (*program.before, (script.name, program.arguments)):
            execute(script.parent / name, arguments, world, edit)
    except Enough:
        pass
    if weights is not None:
        weights.save()
    record = {"losses": steps.losses, "step_ms": steps.step_ms}
    (folder / f"{world}_{mode}.json").write_text(json.dumps(record))


def declare_torchvision_operators() -> Any:
    """Let torchvision be imported beside a torch without CUDA: its wheels have operators for a torch with CUDA only.

    Its import registers rules for two of them, which must exist; the programs use its Python code alone.
    """
    torch = importlib.import_module("torch")
    if torch.version.cuda is not None:
        return None
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


def execute(script: pathlib.Path, arguments: str, world: str, edit: Any) -> None:
    """Run a script as Python does, after the rename in GT's world."""
    source = edit(str(script), script.read_text())
    sys.argv = [str(script), *arguments.split()]
    main = types.ModuleType("__main__")
    main.__file__ = str(script)
    sys.modules["__main__"] = main
    exec(compile(rename(source) if world == "gt" else source, str(script), "exec"), main.__dict__)


if __name__ == "__main__":
    world, mode, name, folder = sys.argv[1:]
    run(world, mode, next(program for program in PROGRAMS if program.name == name), pathlib.Path(folder))
