"""The cost of GT on top of computing: ``python benchmarks/control_plane.py [--quick] [--json FILE] [--only NAME…]``

Every figure is a ratio to something measured in the same run; the two sides take turns. The median over the rounds is
shown beside its goal. This is not a test: a busy machine changes figures, not results.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time
import unittest.mock
from collections.abc import Callable, Iterator
from typing import Any

if __name__ == "__main__":
    # the root of the repository instead of this folder, so that modules have the same name wherever this starts
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

import numpy as np
import psutil
import torch

import gt
from benchmarks import bare
from benchmarks.core.rows import Row
from benchmarks.hot import client_time, null, programs, replay
from gt.client.grad import repeated_pass
from gt.client.stream import connect
from gt.version import VERSION

now = time.perf_counter


def timed(act: Callable[[], Any]) -> float:
    started = now()
    act()
    return now() - started


def in_turns(rounds: int, *acts: Callable[[], Any]) -> list[list[float]]:
    """Seconds of each action; the actions take turns, so that all run under the same load; one round warms up."""
    for act in acts:
        act()
    samples = [[timed(act) for act in acts] for _ in range(rounds)]
    return [list(column) for column in zip(*samples, strict=True)]


def ratio(ours: list[float], theirs: list[float]) -> float:
    """The speed of GT relative to the baseline: the median over the rounds."""
    return statistics.median(t / o for o, t in zip(ours, theirs, strict=True))


def synchronize() -> None:
    gt.zeros(1).item()
    if torch.cuda.is_available():
        torch.cuda.synchronize()


DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


# -- the measurements --------------------------------------------------------------------


def chained_adds(rounds: int) -> Iterator[Row]:
    """Many small ops, then one read."""
    n = 2000
    x, t = gt.ones(64, 64), torch.ones(64, 64, device=DEVICE)
    emitting: list[float] = []

    def ours() -> None:
        y = x
        started = time.thread_time()
        for _ in range(n):
            y = y + x
        emitting.append(time.thread_time() - started)
        assert y[0, 0].item() == n + 1

    def theirs() -> None:
        y = t
        for _ in range(n):
            y = y + t
        assert y[0, 0].item() == n + 1

    gt_s, torch_s = in_turns(rounds, ours, theirs)
    per_op = {"gt_us": statistics.median(gt_s) / n * 1e6, "torch_us": statistics.median(torch_s) / n * 1e6}
    yield Row("2,000 chained adds of 64x64 and a read", ratio(gt_s, torch_s), "x torch eager", ">=", 0.4, per_op)
    yield Row("client's own share", statistics.median(emitting) / n * 1e6, "us an op", "<=", 5.0)


def round_trip(rounds: int) -> Iterator[Row]:
    """The smallest op and a read of its value, against two bare hops of ZeroMQ."""
    a, b = gt.ones(2, 2), gt.ones(2, 2)
    with bare.TwoHops() as hops:

        def ours() -> None:
            for _ in range(100):
                (a + b).numpy()

        def theirs() -> None:
            for _ in range(100):
                hops.ping()

        gt_s, bare_s = in_turns(3 * rounds, ours, theirs)
    details = {"gt_us": statistics.median(gt_s) * 1e4, "bare_us": statistics.median(bare_s) * 1e4}
    yield Row("a+b of 2x2 and read", 1 / ratio(gt_s, bare_s), "x bare ping-pong", "<=", 2.0, details)


def policy_steps(rounds: int) -> Iterator[Row]:
    """Steps of a small policy network, as in REINFORCE: each draws an action from a Categorical, and reads it."""
    states = np.random.default_rng(0).random((20, 4), np.float32)

    def steps(xp: Any) -> Callable[[], Any]:
        nn = xp.nn
        policy = nn.Sequential(nn.Linear(4, 128), nn.Dropout(0.6), nn.ReLU(), nn.Linear(128, 2), nn.Softmax(dim=1))

        def act() -> None:
            log_probs = []
            for state in states:
                distribution = xp.distributions.Categorical(policy(xp.from_numpy(state).unsqueeze(0)))
                action = distribution.sample()
                log_probs.append(distribution.log_prob(action))
                action.item()

        return act

    gt_s, torch_s = in_turns(5 * rounds, steps(gt), steps(torch))
    micro = 1e6 / len(states)
    details = {"gt_us": statistics.median(gt_s) * micro, "torch_us": statistics.median(torch_s) * micro}
    details |= {"least_gt_us": min(gt_s) * micro, "least_torch_us": min(torch_s) * micro}
    yield Row("a step of a policy network and a read", 1 / ratio(gt_s, torch_s), "x torch's time", details=details)


TRIPS = """
import sys, time, gt
gt.connect(sys.argv[1])
a = gt.ones(2, 2)
a.numpy()
print("ready", flush=True)
for line in sys.stdin:
    for _ in range(100): (a + a).numpy()
    print("done", flush=True)
"""


def transports(rounds: int) -> Iterator[Row]:
    """The same round trip over the local system's Unix socket, and over ZeroMQ, TCP and CURVE."""
    a = gt.ones(2, 2)
    with bare.System() as system:
        client = system.client(TRIPS)

        def local() -> None:
            for _ in range(100):
                (a + a).numpy()

        def connected() -> None:
            client.tell("go")
            client.hear("done")

        unix_s, zmq_s = in_turns(rounds, local, connected)
    details = {"unix_us": statistics.median(unix_s) * 1e4, "zmq_us": statistics.median(zmq_s) * 1e4}
    yield Row("round trip by Unix socket", 1 / ratio(unix_s, zmq_s), "x over ZeroMQ", details=details)


def matmul(rounds: int) -> Iterator[Row]:
    n = 2048
    x, t = gt.rand(n, n), torch.rand(n, n, device=DEVICE)
    synchronize()

    def ours() -> None:
        (x @ x)[0, 0].item()

    def theirs() -> None:
        (t @ t)[0, 0].item()

    gt_s, torch_s = in_turns(2 * rounds, ours, theirs)
    details = {"gt_ms": statistics.median(gt_s) * 1e3, "torch_ms": statistics.median(torch_s) * 1e3}
    yield Row("matmul 2048x2048 and a read", ratio(gt_s, torch_s), "x torch", ">=", 0.97, details)


def large_values(rounds: int) -> Iterator[Row]:
    array = np.random.default_rng(0).random(32 << 20)  # 256 MiB
    values: list[Any] = []

    def up() -> None:
        values[:] = [gt.from_numpy(array)]
        synchronize()

    def down() -> None:
        assert values[0].numpy()[-1] == array[-1]

    def copy() -> None:
        array.copy()

    up_s, down_s, copy_s = in_turns(rounds, up, down, copy)
    for name, seconds in (("up", up_s), ("down", down_s)):
        details = {"ms": statistics.median(seconds) * 1e3, "copy_ms": statistics.median(copy_s) * 1e3}
        yield Row(f"256 MiB {name}", ratio(seconds, copy_s), "x numpy copy", ">=", 0.5, details)


def starting(rounds: int) -> Iterator[Row]:
    # with cached bytecode, which is Python's default: the warm-up round writes it
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}

    def python(program: str) -> Callable[[], Any]:
        command = [sys.executable, "-c", program]
        return lambda: subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)

    acts = [python(p) for p in ("", "import gt", "import torch", "import gt; print(gt.randn(2, 2))")]
    nothing, import_gt, import_torch, first = in_turns(min(rounds, 5), *acts)
    alone = [g - n for g, n in zip(import_gt, nothing, strict=True)]
    yield Row("import gt", statistics.median(alone) * 1e3, "ms", "<=", 150)
    beyond = [f - t for f, t in zip(first, import_torch, strict=True)]
    yield Row("first result of an auto-start", statistics.median(beyond), "s more than import torch", "<=", 2.0)


ADDS = """
import sys, gt
gt.connect(sys.argv[1])
x = gt.full((64, 64), float(sys.argv[2]))
def run(n):
    y = x
    for _ in range(n): y = y + x
    return y[0, 0].item()
run(500)
print("ready", flush=True)
for line in sys.stdin:
    n = int(line)
    assert run(n) == (n + 1) * float(sys.argv[2])
    print("done", flush=True)
"""


def two_clients(rounds: int) -> Iterator[Row]:
    """The work of one client done by two at once, on the same worker; the values must not mix."""
    n = 4000
    with bare.System() as system:
        clients = [system.client(ADDS, str(k)) for k in (3, 5)]

        def run(*counts: int) -> None:
            for client, count in zip(clients, counts, strict=False):
                client.tell(str(count))
            for client, _ in zip(clients, counts, strict=False):
                client.hear("done")

        one, two = in_turns(rounds, lambda: run(n), lambda: run(n // 2, n // 2))
    details = {"one_us": statistics.median(one) / n * 1e6, "two_us": statistics.median(two) / n * 1e6}
    yield Row("two clients at once", ratio(two, one), "x one client's rate", ">=", 0.9, details)


def flat_memory(rounds: int) -> Iterator[Row]:
    """Create and free 10,000 tensors of 1 MiB."""
    assert connect._process.local is not None
    processes = [psutil.Process(), *(psutil.Process(pid) for pid in connect._process.local.pids.values())]

    def resident() -> float:
        return sum(p.memory_info().rss for p in processes) / 2**20

    def make(count: int) -> None:
        for _ in range(count):
            gt.ones(512, 512)
        synchronize()

    make(1000)
    before = resident()
    make(10_000)
    yield Row("memory after 10,000 tensors of 1 MiB", resident() - before, "MiB more", "<=", 64)


def dispatcher_alone(rounds: int) -> Iterator[Row]:
    for workers in (1, 8, 64):
        rate = statistics.median(bare.dispatcher_rate(workers) for _ in range(min(rounds, 5)))
        yield Row(f"dispatcher alone, {workers} null worker(s)", rate, "instructions/s")


def repetitions(rounds: int) -> Iterator[Row]:
    """Fragments of 700 instructions that are cached everywhere, with an engine that computes nothing."""
    program = replay.recorded(20 * rounds)
    for workers in (1, 2, 4, 8):
        median = statistics.median(replay.dispatcher(program, workers))
        details = {"ops_per_s": replay.OPS / median}
        yield Row(f"dispatcher, a fragment for {workers} worker(s)", median * 1e6, "us", "<=", 100, details)
        if workers == 1:
            yield Row("dispatcher, replay", replay.OPS / median, "instructions/s", ">=", 1e6)
    alone = replay.OPS / statistics.median(replay.worker(program))
    yield Row("worker, replay", alone, "instructions/s", ">=", 1e6)
    with null.system() as session:
        yield _rate("replay with the client's Python", replay.rate(replay.step, 20), rounds, 150_000)
        yield _rate("replay under @gt.compile", replay.rate(gt.compile(replay.piece), 100), rounds, 1e6)
        pairs = [replay.nothing_repeats(session, 30, seed) for seed in range(2 * rounds)]
        slower, more = (statistics.median(column) * 100 - 100 for column in zip(*pairs, strict=True))
        details = {"of_the_clients_own_time": more}
        yield Row("templates on, nothing repeats", slower, "% slower than off", "<=", 5, details)


def _rate(name: str, once: Callable[[], tuple[float, float]], rounds: int, bound: float) -> Row:
    rates, client = zip(*[once() for _ in range(rounds)], strict=True)
    details = {"client_us": statistics.median(client)}
    return Row(name, statistics.median(rates), "instructions/s", ">=", bound, details)


def backward_passes(rounds: int) -> Iterator[Row]:
    """The client's time for training steps whose backward pass is emitted again, against passes that run the rules."""
    passes = {"run": lambda session, edge, g, run_pass: run_pass(None), "repeated": repeated_pass.run}
    for name in ("mlp-sgd", "convnet", "bert", "vit"):
        with null.system():
            step = _training_step(programs.TASKS[name])
            seconds: dict[str, list[float]] = {kind: [] for kind in passes}
            for round in range(rounds + 2):
                for kind, run in passes.items():
                    with unittest.mock.patch.object(repeated_pass, "run", run):
                        step()
                        used = time.thread_time()
                        for _ in range(8):
                            step()
                        if round > 1:  # until then passes and stretches are learned
                            seconds[kind].append((time.thread_time() - used) / 8)
        details = {f"{kind}_ms": statistics.median(each) * 1e3 for kind, each in seconds.items()}
        value = statistics.median(a / b for a, b in zip(seconds["repeated"], seconds["run"], strict=True))
        yield Row(f"client, training step of {name}", value, "x without kept passes", "<=", 1.0, details)


def _training_step(task: Any) -> Callable[[], None]:
    model, (x, y) = task.model(gt), map(gt.tensor, task.batch())
    optimizer: Any = gt.optim.AdamW(model.parameters()) if task.sgd is None else gt.optim.SGD(model.parameters(), 0.01)

    def step() -> None:
        with gt.autocast(dtype=gt.bfloat16, enabled=task.autocast):
            out = model(x)
            loss = gt.nn.functional.cross_entropy(out.reshape(-1, out.shape[-1]), y.reshape(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


MEASUREMENTS: dict[str, Callable[[int], Iterator[Row]]] = {
    "adds": chained_adds,
    "round-trip": round_trip,
    "policy": policy_steps,
    "transports": transports,
    "matmul": matmul,
    "values": large_values,
    "memory": flat_memory,
    "two-clients": two_clients,
    "dispatcher": dispatcher_alone,
    "replay": repetitions,
    "backward": backward_passes,
    "models": client_time.rows,
    "start": starting,
}


def environment() -> dict[str, Any]:
    return {
        "gt": VERSION,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "device": torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu",
        "torch_threads": torch.get_num_threads(),
    }


def main() -> int:
    return run(MEASUREMENTS, __doc__)


def run(measurements: dict[str, Callable[[int], Iterator[Row]]], description: str) -> int:
    """Measure what the command line names, and print it."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="three rounds instead of fifteen")
    parser.add_argument("--json", metavar="FILE", help="write the figures here as well")
    parser.add_argument("--only", nargs="+", choices=list(measurements), default=list(measurements))
    options = parser.parse_args()
    rounds = 3 if options.quick else 15
    rows = []
    for name in options.only:
        for row in measurements[name](rounds):
            rows.append(row)
            print(row.line(), flush=True)
    record = {
        "environment": environment(),
        "rounds": rounds,
        "rows": [row.record() for row in rows],
    }
    if options.json:
        with open(options.json, "w") as file:
            json.dump(record, file, indent=1)
    else:
        print(json.dumps(record))
    gt.disconnect()
    return 0


if __name__ == "__main__":
    sys.exit(main())
