"""Training under faults: every loss is compared with that of an undisturbed run.

    python benchmarks/chaos.py --seconds 600                 # all kinds of programs and faults
    python benchmarks/chaos.py --only plain --faults kill --seconds 60

A server, workers and clients are real processes on this machine. The clients use ``gt.recovery("replay")``. Each worker
and each client reaches the server through a proxy, which can cut it off. Snapshots are files. The server has a journal
if it is one of the faults to kill it. The next fault comes when every client has gone on after the last one; some come
in pairs. Printed and recorded are the faults, the losses that differ, the errors, waits above 30 s, and for each kind
of fault how long it took until the clients went on. ``python -m benchmarks.reports.chaos_table FOLDER`` makes one table
of all records in a folder.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import pathlib
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.chaos_child import KINDS  # noqa: E402
from benchmarks.chaos_system import SIGNALS, ChaosClient, ChaosSystem, Worker, full_disk  # noqa: E402
from benchmarks.core import environment, results  # noqa: E402

#: A client that prints nothing for longer than this, not even what it waits for, hangs.
HANG_S = 30.0
#: How long the next fault waits for the clients.
PATIENCE_S = 120.0
#: Losses may differ by this factor where a mesh became smaller.
ROUNDING = 1e-5
#: fault -> what it does
FAULTS = {
    "kill": "a worker gets SIGKILL",
    "stop": "a worker is stopped",
    "leave": "a worker gets SIGTERM",
    "partition": "a worker's connection to the server carries nothing any more",
    "join": "one more worker joins",
    "full_disk": "the files of a worker, its snapshots, cannot grow for some seconds, nor a server's without a journal",
    "server_kill": "the server gets SIGKILL, and is started again; it has a journal",
    "client_silence": "a client's connection carries nothing for some seconds",
    "client_reset": "a client's connection is reset",
    "client_stop": "a client is stopped for some seconds",
    "client_kill": "a client gets SIGKILL, and another one takes its place",
}


@dataclass(frozen=True)
class Fault:
    kind: str
    #: when it happened, and when its cause was gone
    begin: float
    end: float


@dataclass
class Chaos:
    """A run: its faults, and what they did."""

    system: ChaosSystem
    options: argparse.Namespace
    references: dict[str, list[float]] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    clients: list[ChaosClient] = field(default_factory=list)

    def run(self) -> None:
        options, system, rng = self.options, self.system, random.Random(self.options.seed)
        for _ in range(options.workers):
            system.add_worker()
        wait_for(lambda: len(system.joined()) == options.workers, PATIENCE_S)
        for kind in options.only:
            self.references[kind] = reference(system, kind, options.steps)
            print(f"{kind}: undisturbed", flush=True)
        for kind in options.only:
            self.start_client(kind)
        self.wait_for_clients(0.0)
        end = time.monotonic() + options.seconds
        while time.monotonic() < end and len(self.faults) < options.max_faults:
            time.sleep(options.interval * rng.uniform(0.5, 1.5))
            for _ in range(2 if rng.random() < 0.2 else 1):
                self.fault(rng)
            self.wait_for_clients(max(fault.end for fault in self.faults))

    def start_client(self, kind: str) -> None:
        options = self.options
        more = options.steps, options.wait, options.snapshot_steps, 1_000_000
        self.clients.append(self.system.client(kind, *more))

    def live_clients(self) -> list[ChaosClient]:
        return [client for client in self.clients if client.ended_at is None]

    def wait_for_clients(self, moment: float) -> None:
        """Wait until every client has gone on after this moment, and there are enough workers."""
        on = lambda: all(client.progressed_since(moment) for client in self.live_clients())
        wait_for(lambda: on() and len(self.system.joined()) >= self.options.workers, PATIENCE_S)

    # -- faults --------------------------------------------------------------------------

    def fault(self, rng: random.Random) -> None:
        kind, workers, begin = rng.choice(self.options.faults), self.system.joined(), time.monotonic()
        end = begin
        if kind == "join":
            if len(workers) > self.options.workers + 1:
                return
            self.system.add_worker()
        elif kind == "server_kill":
            self.system.kill_server()
        elif kind.startswith("client"):
            end += self.disturb_client(kind, rng.choice(self.live_clients()), rng)
        elif not workers:
            return
        else:
            end += self.disturb_worker(kind, rng.choice(workers), rng)
        self.faults.append(Fault(kind, begin, end))
        print(f"{begin - self.faults[0].begin:.0f} s: {kind}", flush=True)

    def disturb_worker(self, kind: str, worker: Worker, rng: random.Random) -> float:
        """Returns for how long."""
        if kind == "full_disk":
            seconds = rng.uniform(1, 5)
            stack = contextlib.ExitStack()
            # a server whose journal cannot be written goes on without it, and would not continue after a kill
            for pid in (worker.pid, *([] if self.system.has_journal else [self.system.server.pid])):
                stack.enter_context(full_disk(pid))
            later(seconds, stack.close)
            return seconds
        self.system.workers.remove(worker)
        if kind == "partition":
            worker.proxy.bury()
        else:
            worker.signal(SIGNALS[kind])
        later(2 * HANG_S, worker.process.kill)  # it counts as lost since long
        if len(self.system.workers) < self.options.workers:
            self.system.add_worker()
        return 0.0

    def disturb_client(self, kind: str, client: ChaosClient, rng: random.Random) -> float:
        """Returns for how long."""
        seconds = rng.uniform(1, 20)
        if kind == "client_kill":
            client.ended_at = time.monotonic()
            client.popen.kill()
            self.start_client(client.kind)
            return 0.0
        if kind == "client_reset":
            client.proxy.reset()
            return 0.0
        if kind == "client_stop":
            client.popen.send_signal(signal.SIGSTOP)
            later(seconds, lambda: client.popen.send_signal(signal.SIGCONT))
        else:
            client.proxy.freeze()
            later(seconds, client.proxy.thaw)
        return seconds


def later(seconds: float, action: Any) -> None:
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()


def wait_for(condition: Any, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)


def reference(system: ChaosSystem, kind: str, steps: int) -> list[float]:
    """The losses of a run without recovery and without faults."""
    child = system.client(kind, steps, "off", 0, 1)
    child.popen.wait(300)
    wait_for(lambda: child.lines and "end" in child.lines[-1], 10)
    losses = [line["loss"] for line in child.lines if "loss" in line]
    assert len(losses) == steps, f"{kind} did not end undisturbed: {child.lines[-1:]}"
    return losses


# -- the report ----------------------------------------------------------------------------


def judge(chaos: Chaos) -> dict[str, Any]:
    """Compare all losses, and measure the waits."""
    counts: Counter[str] = Counter()
    errors: list[str] = []
    silent: list[str] = []
    explained = 0
    start = min((fault.begin for fault in chaos.faults), default=0.0)
    for client in chaos.clients:
        want = chaos.references[client.kind]
        for line in client.lines:
            if "loss" in line:
                counts[compare(line["loss"], want[line["step"]])] += 1
            elif "error" in line:
                errors.append(f"{client.kind} at {line['t'] - start:.1f} s: {line['error']}")
        for before, after in long_waits(client.lines, chaos.faults):
            causes = [line for line in client.lines if before <= line["t"] <= after and "cause" in line]
            explained += bool(causes)
            if not causes:
                during = [
                    f"{f.kind} at {f.begin - start:.0f} s" for f in chaos.faults if before - HANG_S < f.begin < after
                ]
                silent.append(f"{client.kind}: {before - start:.1f} to {after - start:.1f} s; {', '.join(during)}")
    return {
        "faults": dict(Counter(fault.kind for fault in chaos.faults)),
        "losses": {name: counts[name] for name in ("equal", "rounded", "wrong")},
        "errors": errors,
        "hangs": silent,
        "explained_long_waits": explained,
        "recovery_s": {kind: summary(recoveries(chaos, kind)) for kind in chaos.options.faults},
    }


def long_waits(lines: list[dict[str, Any]], faults: list[Fault]) -> list[tuple[float, float]]:
    """(begin, end) of the waits above `HANG_S`. The time in which a client was itself disturbed does not count."""
    times = [line["t"] for line in lines if "cause" not in line]
    pauses = [fault.end - fault.begin for fault in faults]
    waits = []
    for before, after in itertools.pairwise(times):
        paused = sum(p for p, fault in zip(pauses, faults, strict=True) if before <= fault.end and fault.begin <= after)
        if after - before > HANG_S + paused:
            waits.append((before, after))
    return waits


def recoveries(chaos: Chaos, kind: str) -> list[float]:
    """For each fault of this kind: how long it took from its end until the last client had gone on. A fault during
    which no client was there all the time has no such time."""
    times = []
    for fault in chaos.faults:
        if fault.kind == kind:
            clients = [c for c in chaos.clients if c.was_there(fault.begin, fault.end + HANG_S)]
            after = (
                next((line["t"] for line in c.lines if line["t"] > fault.end and "cause" not in line), None)
                for c in clients
            )
            times += [max(passed)] if (passed := [t - fault.end for t in after if t is not None]) else []
    return times


def summary(times: list[float]) -> dict[str, Any]:
    if not times:
        return {"count": 0}
    return {"count": len(times), "median": statistics.median(times), "worst": max(times), "samples": times}


def compare(loss: float, want: float) -> str:
    if loss == want:
        return "equal"
    return "rounded" if abs(loss - want) <= ROUNDING * max(1.0, abs(want)) else "wrong"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        environment.program(__file__), description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=600, help="how long faults happen (default 600)")
    parser.add_argument("--interval", type=float, default=1, help="seconds between two faults (default 1)")
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
    record = results.Record(
        options.output_dir,
        suite="chaos",
        name="chaos",
        world_size=options.workers,
        config={"device": "cpu", **{key: value for key, value in vars(options).items() if key != "output_dir"}},
        environment=environment.record({"chaos": options.seed}),
    )
    with contextlib.ExitStack() as stack:
        folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        chaos = Chaos(ChaosSystem(stack, options.threads, folder, "server_kill" in options.faults), options)
        chaos.run()
        report = judge(chaos)
    record.put("report", value=report)
    record.finish()
    show(report)
    print(f"record: {record.path}")
    return int(bool(report["losses"]["wrong"] or report["errors"] or report["hangs"]))


def show(report: dict[str, Any]) -> None:
    losses = report["losses"]
    print(f"{sum(report['faults'].values())} faults: {report['faults']}")
    print(f"losses: {losses['equal']} equal, {losses['rounded']} within rounding, {losses['wrong']} wrong")
    print(f"errors: {len(report['errors'])}", *report["errors"][:10], sep="\n  ")
    print(f"waits above {HANG_S:g} s: {report['explained_long_waits']} with a printed cause, and without one", end=" ")
    print(len(report["hangs"]), *report["hangs"], sep="\n  ")
    for name, row in report["recovery_s"].items():
        if row["count"]:
            print(f"{name}: {row['count']} times, {row['median']:.2f} s (median), {row['worst']:.2f} s (worst)")


if __name__ == "__main__":
    sys.exit(main())
