"""A client that trains again and again, and prints each loss; ``chaos.py`` disturbs it.

``python -m benchmarks.chaos_child PORT KIND STEPS WAIT [SNAPSHOT_STEPS [EPISODES]]``: WAIT is the number of seconds
that recovery waits for a new worker; "off": no recovery. A snapshot is taken every SNAPSHOT_STEPS steps; 0: none. Each
line is JSON: an episode that begins or ends, a step with its loss, an error, or why the client waits.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections.abc import Callable

import gt
from gt import nn
from gt.pipeline import Pipeline

Step = Callable[[], gt.Tensor]


def data() -> tuple[gt.Tensor, gt.Tensor]:
    gt.manual_seed(0)
    return gt.randn(32, 16), gt.randint(0, 4, (32,))


def plain() -> Step:
    """On one worker. ``chaos.py`` sets GT_TEMPLATES=0, so that every instruction is sent on its own."""
    x, y = data()
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = gt.optim.Adam(model.parameters(), lr=0.01)

    def step() -> gt.Tensor:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    return step


def templated() -> Step:
    """The same; repeated steps are templates."""
    return plain()


def compiled() -> Step:
    return gt.compile(plain())


def data_parallel() -> Step:
    gt.auto_shard()
    return plain()


def sharded() -> Step:
    gt.register_config("tp", gt.SignalConfig(shard=gt.ShardConfig(axis=1, workers=first_two())))
    with gt.signal.context("tp"):
        return plain()


def pipelined() -> Step:
    x, y = data()
    parts = [nn.Sequential(nn.Linear(16, 32), nn.Tanh()), nn.Linear(32, 4)]
    pipeline = Pipeline(parts, schedule="1f1b", microbatches=4, workers=first_two())
    optimizer = gt.optim.Adam(pipeline.parameters(), lr=0.01)

    def step() -> gt.Tensor:
        optimizer.zero_grad()
        loss = pipeline.step(x, y, nn.functional.cross_entropy)
        optimizer.step()
        return loss

    return step


def first_two() -> list[int]:
    return [worker.id for worker in gt.workers()][:2]


KINDS = {kind.__name__: kind for kind in (plain, templated, compiled, data_parallel, sharded, pipelined)}


def say(**fields: object) -> None:
    print(json.dumps({"t": time.monotonic(), **fields}), flush=True)


def connect(port: str) -> None:
    """Try until there is a server: it may have been killed, and be starting."""
    while True:
        try:
            gt.connect(f"localhost:{port}")
            return
        except gt.errors.ConnectionLost as error:
            say(cause=f"no connection: {error}")


def episode(port: str, kind: str, steps: int, snapshot_steps: int) -> None:
    """Train in a new session."""
    connect(port)
    for round in itertools.count():  # two kinds need as many; bounded by the test or the benchmark, which starts them
        if len(gt.workers()) >= 2:
            break
        if round % 50 == 0:
            say(cause="fewer than two workers are connected")
        time.sleep(0.1)
    say(begin=kind, workers=[worker.pid for worker in gt.workers()])
    step = KINDS[kind]()
    for number in range(steps):
        say(step=number, loss=step().item())
        if snapshot_steps and number % snapshot_steps == 0:
            gt.snapshot()
    say(end=kind)
    gt.disconnect()
    gt.auto_shard(False)


def main(port: str, kind: str, steps: str, wait: str, snapshot_steps: str = "0", episodes: str = "1000000") -> None:
    if wait != "off":
        gt.recovery("replay", wait=float(wait))
    for _ in range(int(episodes)):
        try:
            episode(port, kind, int(steps), 0 if wait == "off" else int(snapshot_steps))
        except gt.GtError as error:
            say(error=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main(*sys.argv[1:])
