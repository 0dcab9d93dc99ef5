"""The journal of a server: what it costs, and how long nobody is served after kill -9.

Two servers, one of them with ``--journal``, have a worker and a client each. The clients train in turns, a block of
steps each. Steps are replayed, so a message has a few bytes. A ratio is that of the processor times in two blocks that
follow each other: of the server alone, and of client, server and worker together. On a busy machine the ratios differ
by more than the journal costs. So what it adds to a message is also measured alone, in a loop.

Then the server with the journal is killed with -9 and started again at once, several times. The time without service is
from the kill to the next loss that the client gets.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.core import environment, results  # noqa: E402
from gt.dispatcher.journal.journal import Journal, PeerRecord  # noqa: E402
from gt.wire.numbering import Numbering  # noqa: E402

#: Messages that a server receives for a step: a submission, and the worker's confirmation.
MESSAGES = 2
CHILD = """
import sys, time, gt
from gt import nn
gt.connect("localhost:{port}")
gt.manual_seed(0)
x, y = gt.randn(16, 32), gt.randint(0, 10, (16,))
model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))
optimizer = gt.optim.SGD(model.parameters(), lr=1e-3)
for line in sys.stdin:
    for i in range(int(line)):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if i % 10 == 9:
            loss.item()
    print(loss.item(), flush=True)
"""


class System:
    """A server, a worker and a client."""

    def __init__(self, *options: str) -> None:
        self._environment = {**os.environ, "GT_TOKEN": os.urandom(16).hex(), "PYTHONPATH": str(ROOT)}
        port = str(free_port())
        self._command = ["-m", "gt.server", "-p", port, *options]
        self._processes: list[subprocess.Popen[str]] = []
        self.server = self.start_server()
        worker = self._start("-m", "gt.worker", "-p", port, "--backend", "numpy", "--threads", "1")
        worker.stdout.readline()  # type: ignore[union-attr]
        self.client = self._start("-c", CHILD.format(port=port))
        self._others = [worker, self.client]

    def _start(self, *arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-u", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self._environment,
            cwd=ROOT,
            text=True,
        )
        self._processes.append(process)
        return process

    def start_server(self) -> subprocess.Popen[str]:
        self.server = self._start(*self._command)
        self.server.stdout.readline()  # type: ignore[union-attr]
        return self.server

    def begin(self, steps: int) -> None:
        self.client.stdin.write(f"{steps}\n")  # type: ignore[union-attr]
        self.client.stdin.flush()  # type: ignore[union-attr]

    def end(self) -> float:
        """The loss after the steps."""
        return float(self.client.stdout.readline())  # type: ignore[union-attr]

    def block(self, steps: int) -> tuple[float, float]:
        """Train; the processor time in seconds of the server, and of all processes."""
        before = [processor_s(process.pid) for process in (self.server, *self._others)]
        self.begin(steps)
        self.end()
        times = [processor_s(p.pid) - b for p, b in zip((self.server, *self._others), before, strict=True)]
        return times[0], sum(times)

    def outage(self) -> float:
        """Kill the server in the middle of steps, and start it again; seconds until the next value."""
        self.begin(100)
        self.end()
        self.begin(10)
        began = time.perf_counter()
        self.server.kill()
        self.server.wait()
        self.start_server()
        self.end()
        return time.perf_counter() - began

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def measure(without: System, journaled: System, steps: int, first: bool) -> tuple[Any, Any]:
    """The times of a block without and with a journal, in either order."""
    if first:
        off = without.block(steps)
        return off, journaled.block(steps)
    on = journaled.block(steps)
    return without.block(steps), on


def added_us() -> float:
    """Microseconds of processor time that a journal adds to a message and its answer: the record, and the counting."""
    with tempfile.TemporaryDirectory() as folder:
        journal, numbering = Journal(pathlib.Path(folder), "", print), Numbering()
        journal.describe = lambda peer: PeerRecord(peer, b"", "", None)
        journal.begin(b"", [])
        times, frames = [], [bytes(60)]
        for _ in range(20):
            begun = time.process_time()
            for i in range(10_000):
                journal.message(b"peer", frames)
                numbering.incoming(frames)
                numbering.outgoing(frames)
                if i % 32 == 0:
                    numbering.acknowledged(numbering.sent)
            times.append((time.process_time() - begun) / 10_000 * 1e6)
        journal.close()
    return statistics.median(times)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def processor_s(pid: int) -> float:
    """The processor time of a process so far, of all its threads."""
    tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        environment.program(__file__), description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--blocks", type=int, default=30, help="blocks of each (default 30)")
    parser.add_argument("--steps", type=int, default=1000, help="steps in a block (default 1000)")
    parser.add_argument("--kills", type=int, default=10, help="how often the server is killed (default 10)")
    parser.add_argument("--output-dir", default="results")
    options = parser.parse_args(argv)
    record = results.Record(
        options.output_dir,
        suite="journal",
        name="journal",
        world_size=1,
        config={"device": "cpu", "blocks": options.blocks, "steps": options.steps, "kills": options.kills},
        environment=environment.record({"gt": 0}),
    )
    with tempfile.TemporaryDirectory() as folder:
        without, journaled = System(), System("--journal", folder)
        try:
            for system in (without, journaled):
                system.block(options.steps)
            pairs = [measure(without, journaled, options.steps, i % 2 == 0) for i in range(options.blocks)]
            size = os.stat(pathlib.Path(folder) / "journal").st_size
            outages = [journaled.outage() for _ in range(options.kills)]
        finally:
            without.close()
            journaled.close()
    for i, name in enumerate(("server", "all")):
        record.put(name, value=summary(name, [(off[i], on[i]) for off, on in pairs]))
    record.put("journal_bytes", value={"size": size})
    added, message = added_us(), statistics.median(off[0] for off, _ in pairs) / options.steps / MESSAGES * 1e6
    record.put("message", value={"added_us": added, "server_us": message, "share": added / message})
    print(f"a message: {added:.2f} us more, of {message:.0f} us processor time of the server ({added / message:.1%})")
    record.put("outage", value={"seconds": outages, "median": statistics.median(outages), "worst": max(outages)})
    print(
        f"without service: {statistics.median(outages):.2f} s (median of {len(outages)}), at most {max(outages):.2f} s"
    )
    record.finish()
    print(f"record: {record.path}")
    return 0


def summary(name: str, pairs: list[tuple[float, float]]) -> dict[str, Any]:
    ratios = [on / off for off, on in pairs]
    median, total = statistics.median(ratios), sum(on for _, on in pairs) / sum(off for off, _ in pairs)
    print(f"{name}: {median - 1:+.1%} processor time (median of {len(pairs)} blocks), {total - 1:+.1%} in all")
    return {"median": median, "total": total, "ratios": ratios, "off_s": [off for off, _ in pairs]}


if __name__ == "__main__":
    sys.exit(main())
