"""Training while workers are killed, stopped and replaced: every loss is compared with that of an undisturbed run.

    python benchmarks/chaos.py --seconds 600                 # all kinds of programs, a fault every few seconds
    python benchmarks/chaos.py --only plain --faults kill --seconds 60

A server, workers and clients are real processes on this machine. The clients use ``gt.recovery("replay")``. Printed and
recorded are the faults, the losses that differ, the errors, and for each kind of fault how long clients waited.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import pathlib
import random
import signal
import statistics
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.chaos_child import KINDS  # noqa: E402
from benchmarks.core import environment, results  # noqa: E402

#: A client that prints nothing for longer than this hangs.
HANG_S = 30.0
#: Losses may differ by this factor where a mesh became smaller.
ROUNDING = 1e-5
#: fault -> the signal that causes it; a worker that leaves gets SIGTERM
FAULTS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "leave": signal.SIGTERM}


@dataclass
class Child:
    """A process, and the lines it has printed."""

    popen: subprocess.Popen[str]
    kind: str = ""
    lines: list[dict[str, Any]] = field(default_factory=list)

    def read(self) -> None:
        assert self.popen.stdout is not None
        with self.popen.stdout as lines:
            for line in lines:
                if line.startswith("{"):
                    self.lines.append(json.loads(line))


class System:
    """A server with workers and clients; all of them end with it."""

    def __init__(self, threads: int) -> None:
        self.worker_threads = threads
        self.threads: list[threading.Thread] = []
        self.environment = {**os.environ, "GT_TOKEN": os.urandom(16).hex(), "PYTHONPATH": str(ROOT), "GT_VERBOSE": "1"}
        self.children: list[subprocess.Popen[str]] = []
        self.port = 20_000 + os.getpid() % 20_000
        self.start("gt.server", "-p", str(self.port))
        #: workers that have joined, and those of them that were not disturbed yet
        self.joined: set[subprocess.Popen[str]] = set()
        self.workers: list[subprocess.Popen[str]] = []

    def start(self, module: str, *options: str, pipe: bool = False) -> subprocess.Popen[str]:
        out = subprocess.PIPE if pipe else subprocess.DEVNULL
        command = [sys.executable, "-m", module, *options]
        child = subprocess.Popen(
            command, stdout=out, stderr=subprocess.STDOUT, env=self.environment, cwd=ROOT, text=True
        )
        self.children.append(child)
        return child

    def add_worker(self) -> None:
        """Start a worker. It is one of ``workers`` when it has joined, which it prints."""
        options = ("--host", "localhost", "-p", str(self.port), "--threads", str(self.worker_threads))
        worker = self.start("gt.worker", *options, pipe=True)

        def read() -> None:
            assert worker.stdout is not None
            with worker.stdout as lines:
                for line in lines:
                    if "worker" in line and worker not in self.joined:
                        self.joined.add(worker)
                        self.workers.append(worker)

        self.run_thread(read)

    def run_thread(self, read: Callable[[], None]) -> None:
        self.threads.append(threading.Thread(target=read, daemon=True))
        self.threads[-1].start()

    def client(self, kind: str, steps: int, wait: str, snapshot_steps: int, episodes: int) -> Child:
        arguments = (str(self.port), kind, str(steps), wait, str(snapshot_steps), str(episodes))
        child = Child(self.start("benchmarks.chaos_child", *arguments, pipe=True), kind)
        self.run_thread(child.read)
        return child

    def close(self) -> None:
        for child in reversed(self.children):
            child.kill()
        for child in self.children:
            child.wait()
        for thread in self.threads:
            thread.join(10)


@dataclass
class Chaos:
    """A run: its faults, and what they did."""

    system: System
    options: argparse.Namespace
    references: dict[str, list[float]] = field(default_factory=dict)
    #: (time, kind of fault, process)
    faults: list[tuple[float, str, int]] = field(default_factory=list)

    def run(self) -> list[Child]:
        options, system, rng = self.options, self.system, random.Random(self.options.seed)
        for _ in range(options.workers):
            system.add_worker()
        wait_for(lambda: len(system.workers) == options.workers, 120)
        for kind in options.only:
            self.references[kind] = reference(system, kind, options.steps)
            print(f"{kind}: undisturbed", flush=True)
        more = options.steps, str(options.wait), options.snapshot_steps, 1_000_000
        clients = [system.client(kind, *more) for kind in options.only]
        wait_for(lambda: all(client.lines for client in clients), 120)
        end = time.monotonic() + options.seconds
        while time.monotonic() < end and len(self.faults) < options.max_faults:
            time.sleep(options.interval * rng.uniform(0.5, 1.5))
            self.fault(rng)
        self.settle(clients)
        return clients

    def fault(self, rng: random.Random) -> None:
        """Disturb a worker, and start another one in its place."""
        if not self.system.workers:
            return
        name, worker = rng.choice(self.options.faults), rng.choice(self.system.workers)
        self.faults.append((time.monotonic(), name, worker.pid))
        worker.send_signal(FAULTS[name])
        self.system.workers.remove(worker)
        if name == "stop":  # it is given up after some seconds; then it must not continue
            timer = threading.Timer(2 * HANG_S, worker.kill)
            timer.daemon = True
            timer.start()
        self.system.add_worker()
        print(f"{len(self.faults)} faults; {name} worker of pid {worker.pid}", flush=True)

    def settle(self, clients: list[Child]) -> None:
        """Wait until every client has gone on after the last fault, so that its wait is measured."""
        last = self.faults[-1][0] if self.faults else 0.0
        wait_for(lambda: all(client.lines[-1]["t"] > last for client in clients), 2 * HANG_S)


def wait_for(condition: Any, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)


def reference(system: System, kind: str, steps: int) -> list[float]:
    """The losses of a run without recovery and without faults."""
    child = system.client(kind, steps, "off", 0, 1)
    child.popen.wait(300)
    wait_for(lambda: child.lines and "end" in child.lines[-1], 10)
    losses = [line["loss"] for line in child.lines if "loss" in line]
    assert len(losses) == steps, f"{kind} did not end undisturbed: {child.lines[-1:]}"
    return losses


def judge(chaos: Chaos, clients: list[Child]) -> dict[str, Any]:
    """Compare all losses, and measure the waits."""
    counts: Counter[str] = Counter()
    errors: list[str] = []
    waits: dict[str, list[float]] = {name: [] for name in chaos.options.faults}
    for client in clients:
        want = chaos.references[client.kind]
        for line in client.lines:
            if "loss" in line:
                counts[compare(line["loss"], want[line["step"]])] += 1
            elif "error" in line:
                errors.append(f"{client.kind}: {line['error']}")
        times = [line["t"] for line in client.lines]
        for before, after in itertools.pairwise(times):
            names = [name for t, name, _ in chaos.faults if before < t <= after]
            if names:
                waits[names[0]].append(after - before)
    longest = max((wait for each in waits.values() for wait in each), default=0.0)
    return {
        "faults": dict(Counter(name for _, name, _ in chaos.faults)),
        "losses": {name: counts[name] for name in ("equal", "rounded", "wrong")},
        "errors": errors,
        "hangs": sum(wait > HANG_S for each in waits.values() for wait in each),
        "longest_wait_s": longest,
        "waits_s": {
            name: {"median": statistics.median(each), "worst": max(each), "samples": each}
            for name, each in waits.items()
            if each
        },
    }


def compare(loss: float, want: float) -> str:
    if loss == want:
        return "equal"
    return "rounded" if abs(loss - want) <= ROUNDING * max(1.0, abs(want)) else "wrong"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600, help="how long faults happen (default 600)")
    parser.add_argument("--interval", type=float, default=8, help="seconds between faults (default 8)")
    parser.add_argument("--max-faults", type=int, default=1_000_000)
    parser.add_argument("--workers", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1, help="threads of each worker (default 1)")
    parser.add_argument("--steps", type=int, default=60, help="steps of an episode of training (default 60)")
    parser.add_argument(
        "--wait", type=float, default=60, help="seconds that recovery waits for a new worker (default 60)"
    )
    parser.add_argument(
        "--snapshot-steps", type=int, default=20, help="steps between two snapshots (default 20; 0: none)"
    )
    parser.add_argument("--only", nargs="*", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--faults", nargs="*", choices=list(FAULTS), default=list(FAULTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output-dir", default="results")
    options = parser.parse_args(argv)
    system = System(options.threads)
    try:
        record = results.Record(
            options.output_dir,
            suite="chaos",
            name="chaos",
            world_size=options.workers,
            config={"device": "cpu", **{key: value for key, value in vars(options).items() if key != "output_dir"}},
            environment=environment.record({"chaos": options.seed}),
        )
        chaos = Chaos(system, options)
        report = judge(chaos, chaos.run())
    finally:
        system.close()
    record.put("report", value=report)
    record.finish()
    show(report)
    print(f"record: {record.path}")
    return int(bool(report["losses"]["wrong"] or report["errors"] or report["hangs"]))


def show(report: dict[str, Any]) -> None:
    losses = report["losses"]
    print(f"{sum(report['faults'].values())} faults: {report['faults']}")
    print(f"losses: {losses['equal']} equal, {losses['rounded']} within rounding, {losses['wrong']} wrong")
    print(f"hangs: {report['hangs']}; errors: {len(report['errors'])}", *report["errors"][:10], sep="\n  ")
    for name, waits in report["waits_s"].items():
        print(f"{name}: waits of {waits['median']:.2f} s (median), {waits['worst']:.2f} s (worst)")


if __name__ == "__main__":
    sys.exit(main())
