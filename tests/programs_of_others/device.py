"""``python -m tests.programs_of_others.device [--rounds 3] [name …]``: train models on the torch device and on the CPU,
and print the table of docs/torch.md.

Times are processor time, so that other programs on the machine matter less. GT's client, dispatcher and worker run in
one thread here, and the time is that of all three; between processes they work at the same time. Each round times torch
and GT one after the other; the least time counts.
"""

from __future__ import annotations

import argparse
import copy
import time
import warnings
from typing import Any

import torch

import gt.torch_device
from gt.testing import Cluster
from tests.programs_of_others.device_models import MODELS, Model, Training
from tests.programs_of_others.worlds import declare_torchvision_operators

DEVICE = gt.torch_device.NAME
STEPS = 20
#: Kept, so that torch does not forget the operators.
_operators: list[Any] = []


def prepare_imports() -> None:
    """Let packages import torchvision, also beside a torch without CUDA."""
    if not _operators:
        _operators.append(declare_torchvision_operators())


class Trainer:
    """A copy of a model on a device, and how it is trained."""

    def __init__(self, model: Model, training: Training, device: str) -> None:
        module, batch, self._loss = training
        self.module = copy.deepcopy(module).train().to(device)
        self._batch = [x.to(device) for x in batch]
        self._optimizer = model.optimizer(self.module.parameters())

    def step(self) -> torch.Tensor:
        loss = self._loss(self.module, *self._batch)
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()
        return loss.detach()


def difference(model: Model, steps: int = STEPS) -> float:
    """The largest relative difference between the losses on the device and on the CPU."""
    training = model.training()
    losses = []
    for device in ("cpu", DEVICE):
        trainer = Trainer(model, training, device)
        values = [trainer.step() for _ in range(steps)]
        losses.append([x.item() for x in values])
    return max(abs(a - b) / abs(a) for a, b in zip(*losses, strict=True))


def step_times(model: Model, rounds: int, steps: int = STEPS) -> dict[str, float]:
    """Device -> milliseconds of processor time per step, the least of rounds that alternate between the devices."""
    training = model.training()
    trainers = {device: Trainer(model, training, device) for device in ("cpu", DEVICE)}
    for trainer in trainers.values():
        [trainer.step() for _ in range(steps)][-1].item()
    times: dict[str, list[float]] = {device: [] for device in trainers}
    for _ in range(rounds):
        for device, trainer in trainers.items():
            started = time.process_time()
            [trainer.step() for _ in range(steps)][-1].item()
            times[device].append((time.process_time() - started) / steps * 1e3)
    return {device: min(values) for device, values in times.items()}


def row(model: Model, rounds: int, steps: int = STEPS) -> str:
    cells = [model.name, model.package, f"{difference(model, steps):.0e}"]
    if rounds:
        times = step_times(model, rounds, steps)
        ours, theirs = times[DEVICE], times["cpu"]
        cells += [f"{ours:.1f} ms", f"{theirs:.1f} ms", f"{ours / theirs:.1f}×"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="timed rounds; 0: none")
    parser.add_argument("names", nargs="*", help="parts of names of models; all if none is given")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    prepare_imports()
    torch.set_num_threads(1)
    print("| model | package | difference of losses | step: GT | torch | GT / torch |")
    print("| --- | --- | --- | --- | --- | --- |")
    for model in MODELS:
        if model.is_installed and (not arguments.names or any(name in model.name for name in arguments.names)):
            with Cluster().client():
                print(row(model, arguments.rounds), flush=True)


if __name__ == "__main__":
    main()
