"""Users who share one worker: ``python benchmarks/fairness.py [--seconds 60] [--only shares | interactive]``

*shares*: four users with the weights 1, 2, 4 and 8 have work all the time, each of another kind. The worker's time is
measured by an operator. *interactive*: one user adds two small tensors and reads the result, alone and beside three
users who always have heavy work. All are real processes: a server, a worker with one CPU thread, and the clients.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

import gt
from benchmarks.core import environment, results
from gt.client.stream import connect
from gt.events.viewer import Viewer
from gt.scripts.token import create_token
from gt.wire.event_messages import DISPATCHER, TRANSFER
from gt.wire.identities import Quota

ROOT = pathlib.Path(__file__).parent.parent
#: The most that a share may differ from its weight, as a part of it.
GOAL = 0.05
#: The longest wait of the interactive user beside heavy ones: this many times the wait alone, plus one instruction.
INTERACTIVE_GOAL = 3.0
WEIGHTS = (1, 2, 4, 8)


# -- what the clients do: each call submits some work --------------------------------------------


def adds() -> Callable[[], object]:
    """Small instructions, many of them."""
    x = gt.ones(64, 64)

    def step() -> None:
        y = x
        for _ in range(200):
            y = y + 1

    return step


def matmuls() -> Callable[[], object]:
    """Instructions of about a millisecond."""
    x = gt.rand(256, 256)
    return lambda: [x @ x for _ in range(20)]


def training() -> Callable[[], object]:
    """Steps of a small MLP, which are repeated fragments."""
    model = gt.nn.Sequential(gt.nn.Linear(64, 256), gt.nn.ReLU(), gt.nn.Linear(256, 10))
    optimizer = gt.optim.SGD(model.parameters(), lr=0.01)
    x, y = gt.randn(64, 64), gt.randn(64, 10)

    def step() -> None:
        optimizer.zero_grad()
        gt.nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()

    return step


def large() -> Callable[[], object]:
    """Instructions that move memory."""
    x = gt.ones(1 << 20)
    return lambda: [x * 2 for _ in range(20)]


LOADS = {load.__name__: load for load in (adds, matmuls, training, large)}


def run_load(address: str, name: str) -> None:
    gt.connect(address)
    step = LOADS[name]()
    gt.ones(1).item()
    print("ready", connect.session().id, flush=True)
    while True:
        step()


def run_interactive(address: str, count: int) -> None:
    gt.connect(address)
    a, b = gt.ones(16), gt.ones(16)
    for _ in range(20):
        (a + b).tolist()
    times = []
    for _ in range(count):
        begun = time.perf_counter()
        (a + b).tolist()
        times.append(time.perf_counter() - begun)
        time.sleep(0.01)
    print("ready", *times, flush=True)


# -- the system ----------------------------------------------------------------------------------


class SharedSystem:
    """A server with users, and one worker."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        self.folder = pathlib.Path(folder) / "server"
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"localhost:{free.getsockname()[1]}"
        port = self.address.rpartition(":")[2]
        clean = {name: value for name, value in os.environ.items() if not name.startswith("GT_")}
        self._environment = {**clean, "PYTHONPATH": str(ROOT), "XDG_CONFIG_HOME": folder, "OMP_NUM_THREADS": "1"}
        self.start("-m", "gt.server", "-p", port, "--folder", str(self.folder))
        worker = self.token("worker", "worker")
        joined = self.start("-m", "gt.worker", "-p", port, "--device", "cpu", "--threads", "1", token=worker)
        joined.stdout.readline()

    def token(self, user: str, role: str = "client", weight: float = 1.0) -> str:
        return create_token(self.folder, user, role, Quota(weight=weight))

    def start(self, *words: str, token: str = "", **extra: str) -> Any:
        """Start a Python process that prints a line when it is ready."""
        extra |= {"GT_TOKEN": token} if token else {}
        process = subprocess.Popen(
            [sys.executable, *words], stdout=subprocess.PIPE, text=True, env={**self._environment, **extra}, cwd=ROOT
        )
        self._stack.callback(process.stdout.close)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def client(self, what: str, token: str, **extra: str) -> list[str]:
        """Start a client, and wait until it is ready; returns what it said."""
        words = ("benchmarks/fairness.py", "--client", self.address, what)
        said = self.start(*words, token=token, **extra).stdout.readline().split()
        assert said[:1] == ["ready"], f"the client ended: {what}"
        return list(said[1:])


# -- what is measured ------------------------------------------------------------------------------


def shares(seconds: float) -> dict[str, Any]:
    """User -> the weight, the load, and the share of the worker's time."""
    with contextlib.ExitStack() as stack:
        system = SharedSystem(stack)
        users: dict[int, tuple[int, str]] = {}
        for weight, load in zip(WEIGHTS, LOADS, strict=True):
            (number,) = system.client(load, system.token(f"user{weight}", weight=weight))
            users[int(number)] = weight, load
        stack.enter_context(_environ(GT_TOKEN=system.token("watcher", "operator")))
        spent = dict.fromkeys(users, 0)
        with Viewer(f"tcp://{system.address}", detail=False) as viewer:
            for batch in viewer.batches(seconds):
                if batch is not None and batch.source != DISPATCHER and batch.client in spent:
                    spent[batch.client] += sum(ns for family, _, ns, _ in batch.shares if family != TRANSFER)
    total = sum(spent.values())
    return {
        f"weight {weight}": {
            "load": load,
            "share": spent[number] / total,
            "goal": weight / sum(WEIGHTS),
            "error": spent[number] / total / (weight / sum(WEIGHTS)) - 1,
        }
        for number, (weight, load) in users.items()
    }


def interactive(count: int) -> dict[str, Any]:
    """The wait for ``a + b`` in milliseconds: alone; beside three heavy users whose instructions are sent one by one;
    and beside three whose steps are repeated fragments, each of which runs as a whole."""
    found = {}
    for name, templates in (("beside three", "0"), ("beside three, fragments", "1")):
        with contextlib.ExitStack() as stack:
            system = SharedSystem(stack)
            token = system.token("interactive")
            if "alone" not in found:
                found["alone"] = _waits(system.client(f"interactive {count}", token))
            for number, load in enumerate(("large", "matmuls", "large")):
                system.client(load, system.token(f"heavy{number}"), GT_TEMPLATES=templates)
            found[name] = _waits(system.client(f"interactive {count}", token))
    return {**found, "ratio": found["beside three"]["median_ms"] / found["alone"]["median_ms"]}


def _waits(said: list[str]) -> dict[str, float]:
    times = sorted(float(word) * 1000 for word in said)
    return {"median_ms": statistics.median(times), "p99_ms": times[int(0.99 * len(times))], "max_ms": times[-1]}


@contextlib.contextmanager
def _environ(**values: str) -> Any:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the shares are measured (default 60)")
    parser.add_argument("--reads", type=int, default=300, help="reads of the interactive user (default 300)")
    parser.add_argument("--only", choices=["shares", "interactive"])
    parser.add_argument("--output-dir", default="results")
    parser.add_argument("--client", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.client:
        address, what = options.client
        name, _, count = what.partition(" ")
        run_interactive(address, int(count)) if name == "interactive" else run_load(address, name)
        return 0
    record = results.Record(
        options.output_dir,
        suite="fairness",
        name="fairness",
        world_size=1,
        config={"device": "cpu", "seconds": options.seconds, "reads": options.reads, "load": os.getloadavg()[0]},
        environment=environment.record({"gt": 0}),
    )
    if options.only != "interactive":
        for name, row in shares(options.seconds).items():
            record.put("shares", name, value=row)
            print(
                f"{name} {row['load']:<9} {row['share']:6.2%} of the time "
                f"({row['error']:+.1%} of its share; goal ±{GOAL:.0%})"
            )
    if options.only != "shares":
        found = interactive(options.reads)
        record.put("interactive", value=found)
        for name in ("alone", "beside three", "beside three, fragments"):
            print(f"a + b, {name:<23} " + ", ".join(f"{key} {value:.2f}" for key, value in found[name].items()))
        print(f"ratio {found['ratio']:.2f} (goal {INTERACTIVE_GOAL:g} and one instruction)")
    record.finish()
    print(f"record: {record.path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
