"""The cost of ``gt.recovery``: training steps with it off, on, and with snapshots in memory and in files.

Each has its own server with one worker. Blocks of steps take turns. A ratio is that of the processor times of client,
server and worker together in two blocks that follow each other. A snapshot is taken every so many steps, about a second
of work on a machine that does nothing else; so the ratio does not depend on what else the machine does.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
from typing import Any

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.core import environment, results  # noqa: E402
from tests.support.processes import free_port  # noqa: E402

#: name -> whether the program recovers, whether it takes snapshots, whether they are files
ROWS = {
    "off": (False, False, False),
    "on": (True, False, False),
    "snapshots": (True, True, False),
    "files": (True, True, True),
}
CHILD = """
import os, subprocess, sys, time, gt
from gt import nn

recovers, snapshot_steps, port, *options = sys.argv[1:]
quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
others = [
    subprocess.Popen([sys.executable, "-m", "gt.server", "-p", port, *options], **quiet),
    subprocess.Popen([sys.executable, "-m", "gt.worker", "-p", port, "--threads", "1"], **quiet),
]
if recovers == "1":
    gt.recovery("replay")
while True:
    try:
        gt.connect(f"localhost:{port}")
        break
    except gt.errors.ConnectionLost:
        pass
while not gt.workers():
    time.sleep(0.05)
gt.manual_seed(0)
x, y = gt.randn(64, 784), gt.randint(0, 10, (64,))
model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = gt.optim.Adam(model.parameters(), lr=1e-3)
taken = None


def processor():
    # what clock_getcpuclockid gives: nanoseconds, where the times in /proc count ticks of 10 ms
    pids = [os.getpid(), *(other.pid for other in others)]
    return sum(time.clock_gettime(~pid << 3 | 2) for pid in pids)


for line in sys.stdin:
    begun, used = time.perf_counter(), processor()
    for i in range(int(line)):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if snapshot_steps != "0" and i % int(snapshot_steps) == 0:
            assert taken is None or taken.wait()
            taken = gt.snapshot()
    loss.item()
    assert taken is None or taken.wait()
    print(time.perf_counter() - begun, processor() - used, flush=True)
for other in others:
    other.kill()
"""


class Child:
    """A process that trains a number of steps each time it is asked."""

    def __init__(self, recovers: bool, snapshot_steps: int, folder: str) -> None:
        options = ["--snapshots", folder] if folder else []
        command = [sys.executable, "-c", CHILD, str(int(recovers)), str(snapshot_steps), str(free_port()), *options]
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        secrets = {"GT_TOKEN": os.urandom(16).hex(), "GT_OPERATOR_TOKEN": os.urandom(16).hex()}
        self._popen = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, **secrets, "PYTHONPATH": path},
        )

    def block(self, steps: int) -> float:
        """Train, and return the processor time in seconds."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._popen.stdin.write(f"{steps}\n")
        self._popen.stdin.flush()
        _, processor = map(float, self._popen.stdout.readline().split())
        return processor

    def close(self) -> None:
        self._popen.communicate()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        environment.program(__file__), description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--blocks", type=int, default=15, help="blocks of each (default 15)")
    parser.add_argument("--steps", type=int, default=1500, help="steps in a block (default 1500)")
    parser.add_argument("--snapshot-steps", type=int, default=500, help="steps between two snapshots (default 500)")
    parser.add_argument("--output-dir", default="results")
    options = parser.parse_args(argv)
    config = {"blocks": options.blocks, "steps": options.steps, "snapshot_steps": options.snapshot_steps}
    record = results.Record(
        options.output_dir,
        suite="recovery",
        name="recovery",
        world_size=1,
        config={"device": "cpu", **config},
        environment=environment.record({"gt": 0}),
    )
    with tempfile.TemporaryDirectory() as folder:
        rounds = measure(options, folder)
    for name in ROWS:
        if name != "off":
            record.put(name, value=summary(rounds, name, options.snapshot_steps / options.steps))
    record.finish()
    print(f"record: {record.path}")
    return 0


def measure(options: argparse.Namespace, folder: str) -> list[dict[str, float]]:
    """The processor times of all blocks."""
    children = {
        name: Child(recovers, options.snapshot_steps if snapshots else 0, folder if files else "")
        for name, (recovers, snapshots, files) in ROWS.items()
    }
    try:
        for child in children.values():
            child.block(options.steps)
        return [{name: child.block(options.steps) for name, child in children.items()} for _ in range(options.blocks)]
    finally:
        for child in children.values():
            child.close()


def summary(rounds: list[dict[str, float]], name: str, share: float) -> dict[str, Any]:
    """``share``: the part of a block between two snapshots."""
    ratios = [times[name] / times["off"] if times["off"] else 1.0 for times in rounds]
    median, every = statistics.median(ratios), statistics.median(times["off"] for times in rounds) * share
    shown = f"{median - 1:+.1%} processor time (of {len(ratios)} blocks: {min(ratios):.3f} to {max(ratios):.3f})"
    print(f"{name}: {shown}" + f", a snapshot every {every:.2f} s of it" * ROWS[name][1])
    return {"median": median, "ratios": ratios, "processor_s": [times[name] for times in rounds], "every_s": every}


if __name__ == "__main__":
    sys.exit(main())
