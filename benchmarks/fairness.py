"""Users who share one worker: ``python benchmarks/fairness.py [--seconds 60] [--only PART]``

*shares*: four users with the weights 1, 2, 4 and 8 have work all the time, each of another kind. An operator sees how
long the worker was busy for each, which is more than its instructions ran: finding them and freeing results counts
too. *interactive*: one user adds two small tensors and reads the result, alone and beside three users who always have
heavy work. *throughput*: what the heavy users lose while the interactive one asks 50 times a second. All are real
processes: a server, a worker with one CPU thread, and the clients.

On a machine with other work, clocks measure that work too. So waits are also given in processor time of the worker: how
much it ran between the request and the value.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

import gt
from benchmarks.core import environment, results
from gt.client.stream import connect
from gt.events.viewer import Viewer
from gt.scripts.token import create_token
from gt.wire.event_messages import DISPATCHER, TRANSFERS, EventBatch
from gt.wire.identities import Quota

ROOT = pathlib.Path(__file__).parent.parent
#: The most that a share may differ from its weight, as a part of it.
GOAL = 0.05
#: The longest wait of the interactive user beside heavy ones: this many times the wait alone, plus one instruction.
INTERACTIVE_GOAL = 3.0
#: The most that heavy users may lose of their throughput.
THROUGHPUT_GOAL = 0.05
WEIGHTS = (1, 2, 4, 8)
#: The loads of the three heavy users.
HEAVY = ("large", "matmuls", "large")


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


def run_interactive(address: str, worker: int, count: int) -> None:
    """Prints the waits, in milliseconds, and the processor time of the worker in each."""
    gt.connect(address)
    a, b = gt.ones(16), gt.ones(16)
    for _ in range(20):
        (a + b).tolist()
    times = []
    for _ in range(count):
        ran, begun = processor_ms(worker), time.perf_counter()
        (a + b).tolist()
        times += [(time.perf_counter() - begun) * 1e3, processor_ms(worker) - ran]
        time.sleep(0.01)
    print("ready", *times, flush=True)


def run_asking(address: str) -> None:
    """Asks 50 times a second."""
    gt.connect(address)
    a, b = gt.ones(16), gt.ones(16)
    (a + b).tolist()
    print("ready", connect.session().id, flush=True)
    while True:
        (a + b).tolist()
        time.sleep(0.02)


def processor_ms(pid: int) -> float:
    """How long the first thread of a process has run."""
    return int(pathlib.Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e6


# -- the system ----------------------------------------------------------------------------------


@dataclass
class Use:
    """What a client used of the worker."""

    instructions: int = 0
    #: nanoseconds in which its instructions ran
    ns: int = 0
    #: microseconds in which the worker was busy with its messages while others waited, since the client connected: when
    #: the first events came, and when the last ones came
    first_us: int | None = None
    last_us: int = 0

    def add(self, batch: EventBatch) -> None:
        for family, count, ns, _ in batch.shares:
            if family not in TRANSFERS:
                self.instructions += count
                self.ns += ns
        self.last_us = batch.blocked_us
        if self.first_us is None:
            self.first_us = batch.blocked_us

    @property
    def busy_us(self) -> int:
        return self.last_us - (self.first_us or 0)


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
        self.worker = joined.pid
        self._watcher = self.token("watcher", "operator")
        self.clients: list[Any] = []

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
        self.clients.append(self.start(*words, token=token, **extra))
        said = self.clients[-1].stdout.readline().split()
        assert said[:1] == ["ready"], f"the client ended: {what}"
        return list(said[1:])

    def heavy(self, templates: str) -> set[int]:
        """Start three heavy users; returns the numbers of their clients."""
        tokens = [self.token(f"heavy{number}") for number in range(len(HEAVY))]
        words = [self.client(load, token, GT_TEMPLATES=templates) for load, token in zip(HEAVY, tokens, strict=True)]
        return {int(number) for (number,) in words}

    def watch(self, clients: set[int], seconds: float) -> dict[int, Use]:
        """What each client used of the worker in this time, as an operator sees it."""
        found = {client: Use() for client in clients}
        with (
            _environ(GT_TOKEN=self._watcher),
            Viewer(f"tcp://{self.address}", detail=False) as viewer,
        ):
            for batch in viewer.batches(seconds):
                if batch is not None and batch.source != DISPATCHER and batch.client in found:
                    found[batch.client].add(batch)
        return found


# -- what is measured ------------------------------------------------------------------------------


def shares(seconds: float) -> dict[str, Any]:
    """User -> the load, the share of the worker's time, and the share of the time in which instructions ran."""
    with contextlib.ExitStack() as stack:
        system = SharedSystem(stack)
        users: dict[int, tuple[int, str]] = {}
        for weight, load in zip(WEIGHTS, LOADS, strict=True):
            (number,) = system.client(load, system.token(f"user{weight}", weight=weight))
            users[int(number)] = weight, load
        uses = system.watch(set(users), seconds)
    busy, running = sum(use.busy_us for use in uses.values()), sum(use.ns for use in uses.values())
    found = {}
    for number, (weight, load) in users.items():
        share, goal = uses[number].busy_us / busy, weight / sum(WEIGHTS)
        row = {"load": load, "share": share, "goal": goal, "error": share / goal - 1}
        found[f"weight {weight}"] = row | {"instructions_alone": uses[number].ns / running}
    return found


def interactive(count: int) -> dict[str, Any]:
    """The wait for ``a + b`` in milliseconds: alone; beside three heavy users whose instructions are sent one by one;
    and beside three whose steps are repeated fragments. ``instruction_ms`` is the mean of the longest heavy ones."""
    found: dict[str, Any] = {}
    for name, templates in (("beside three", "0"), ("beside three, fragments", "1")):
        with contextlib.ExitStack() as stack:
            system = SharedSystem(stack)
            token, what = system.token("interactive"), f"interactive {system.worker} {count}"
            if "alone" not in found:
                found["alone"] = _waits(system.client(what, token))
            heavy = system.heavy(templates)
            found[name] = _waits(system.client(what, token))
            ran = system.watch(heavy, 2.0).values()
            found[name]["instruction_ms"] = max(use.ns / max(1, use.instructions) for use in ran) / 1e6
            limit = INTERACTIVE_GOAL * found["alone"]["median_ms"] + found[name]["instruction_ms"]
            found[name]["within_goal"] = found[name]["median_ms"] <= limit
    return found


def _waits(said: list[str]) -> dict[str, Any]:
    waits, ran = sorted(map(float, said[::2])), sorted(map(float, said[1::2]))
    last = int(0.99 * len(waits))
    wall = {"median_ms": statistics.median(waits), "p99_ms": waits[last], "max_ms": waits[-1]}
    return {**wall, "worker_median_ms": statistics.median(ran), "worker_p99_ms": ran[last]}


def throughput(seconds: float, blocks: int = 6) -> dict[str, float]:
    """The instructions of the heavy users in a second of the worker's processor time, with and without a user who asks
    50 times a second, in turn."""
    with contextlib.ExitStack() as stack:
        system = SharedSystem(stack)
        heavy = system.heavy("1")
        system.client("asking", system.token("interactive"))
        asking = system.clients[-1]
        rates: dict[bool, list[float]] = {True: [], False: []}
        for block in range(2 * blocks):
            asks = bool((block + block // 2) % 2)  # off, on, on, off
            asking.send_signal(signal.SIGCONT if asks else signal.SIGSTOP)
            ran = processor_ms(system.worker)
            count = sum(use.instructions for use in system.watch(heavy, max(1.0, seconds / blocks / 2)).values())
            rates[asks].append(count / (processor_ms(system.worker) - ran) * 1e3)
        asking.send_signal(signal.SIGCONT)
    beside, alone = statistics.median(rates[True]), statistics.median(rates[False])
    return {"alone_per_s": alone, "beside_per_s": beside, "loss": 1 - beside / alone}


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
    parser = argparse.ArgumentParser(environment.program(__file__), description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long the shares are measured (default 60)")
    parser.add_argument("--reads", type=int, default=300, help="reads of the interactive user (default 300)")
    parser.add_argument("--only", choices=["shares", "interactive", "throughput"])
    parser.add_argument("--output-dir", default="results")
    parser.add_argument("--client", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.client:
        address, what = options.client
        name, *numbers = what.split()
        if name == "interactive":
            run_interactive(address, *map(int, numbers))
        else:
            run_asking(address) if name == "asking" else run_load(address, name)
        return 0
    record = results.Record(
        options.output_dir,
        suite="fairness",
        name="fairness",
        world_size=1,
        config={"device": "cpu", "seconds": options.seconds, "reads": options.reads, "load": os.getloadavg()[0]},
        environment=environment.record({"gt": 0}),
    )
    if options.only in (None, "shares"):
        for name, row in shares(options.seconds).items():
            record.put("shares", name, value=row)
            print(
                f"{name} {row['load']:<9} {row['share']:6.2%} of the time "
                f"({row['error']:+.1%} of its share; goal ±{GOAL:.0%})"
            )
    if options.only in (None, "interactive"):
        found = interactive(options.reads)
        record.put("interactive", value=found)
        for name, row in found.items():
            print(f"a + b, {name:<23} " + ", ".join(f"{key} {value:.2f}" for key, value in row.items()))
        print(f"goal: {INTERACTIVE_GOAL:g} times the median alone, and one instruction")
    if options.only in (None, "throughput"):
        lost = throughput(options.seconds)
        record.put("throughput", value=lost)
        print(f"the heavy users lose {lost['loss']:.1%} of their throughput (goal {THROUGHPUT_GOAL:.0%})")
    record.finish()
    print(f"record: {record.path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
