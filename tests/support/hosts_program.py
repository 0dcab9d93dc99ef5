"""A model that is trained under configurations of signals, on the hosts of a network or in one process.

``python -m tests.support.hosts_program SERVER WORKERS NAME…`` prints, for each configuration, its losses and the
seconds of a step, as one line of JSON.
"""

from __future__ import annotations

import json
import pathlib
import sys
import tempfile
import time
from typing import Any

import gt
from gt.testing import Cluster
from tests.support.parallel_programs import PROGRAMS, batches, recipes, small
from tests.support.recipes import configured

STEPS = 4
#: data-parallel, tensor-parallel, fully sharded, and in stages
CONFIGURATIONS = ("data", "tensor", "sharded", "stages")


def train(text: str) -> tuple[list[float], float]:
    """The losses, and the seconds of a step after the first one."""
    with configured(pathlib.Path(tempfile.mkdtemp()) / "signals.yaml", text):
        gt.manual_seed(0)
        model = small("gt")()
        optimizer = gt.optim.AdamW(model.parameters(), lr=1e-2)
        losses: list[float] = []
        began = 0.0
        for _, (x, y) in zip(range(STEPS), batches(), strict=False):
            loss = model(gt.tensor(x), gt.tensor(y))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            began = began or time.perf_counter()
        return losses, (time.perf_counter() - began) / (STEPS - 1)


def configuration(name: str, workers: int) -> str:
    text: Any = recipes(workers, *PROGRAMS["small"][2])[name]
    return str(text)


def losses_in_one_process(name: str, workers: int) -> list[float]:
    with Cluster(workers).client():
        return train(configuration(name, workers))[0]


def main(server: str, workers: str, *names: str) -> None:
    gt.connect(server)
    print(json.dumps({name: train(configuration(name, int(workers))) for name in names}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
