"""The cost of ``gt.recovery``: training steps with it off, on, and with a snapshot every second.

Each has its own local system with one worker. Blocks of steps take turns. A ratio is that of the processor times of
client, server and worker together in two blocks that follow each other.
"""

from __future__ import annotations

import argparse
import pathlib
import statistics
import subprocess
import sys
from typing import Any

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.core import environment, results  # noqa: E402

#: name -> the call that begins the program
ROWS = {"off": "", "on": 'gt.recovery("replay")', "snapshots": 'gt.recovery("replay", every=1)'}
CHILD = """
import os, sys, time, gt
from gt import nn
{begin}
gt.manual_seed(0)
x, y = gt.randn(64, 784), gt.randint(0, 10, (64,))
model = nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))
optimizer = gt.optim.Adam(model.parameters(), lr=1e-3)
hertz = os.sysconf("SC_CLK_TCK")


def processor():
    pids = [os.getpid(), *open(f"/proc/{{os.getpid()}}/task/{{os.getpid()}}/children").read().split()]
    fields = [open(f"/proc/{{pid}}/stat").read().rsplit(")", 1)[1].split() for pid in pids]
    return sum(int(f[11]) + int(f[12]) for f in fields) / hertz


for line in sys.stdin:
    begun, used = time.perf_counter(), processor()
    for _ in range(int(line)):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    loss.item()
    print(time.perf_counter() - begun, processor() - used, flush=True)
"""


class Child:
    """A process that trains a number of steps each time it is asked."""

    def __init__(self, begin: str) -> None:
        command = [sys.executable, "-c", CHILD.format(begin=begin)]
        self._popen = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)

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
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=15, help="blocks of each (default 15)")
    parser.add_argument("--steps", type=int, default=1500, help="steps in a block (default 1500)")
    parser.add_argument("--output-dir", default="results")
    options = parser.parse_args(argv)
    record = results.Record(
        options.output_dir,
        suite="recovery",
        name="recovery",
        world_size=1,
        config={"device": "cpu", "blocks": options.blocks, "steps": options.steps},
        environment=environment.record({"gt": 0}),
    )
    children = {name: Child(begin) for name, begin in ROWS.items()}
    try:
        for child in children.values():
            child.block(options.steps)
        rounds = [{name: child.block(options.steps) for name, child in children.items()} for _ in range(options.blocks)]
    finally:
        for child in children.values():
            child.close()
    for name in ("on", "snapshots"):
        record.put(name, value=summary(rounds, name))
    record.finish()
    print(f"record: {record.path}")
    return 0


def summary(rounds: list[dict[str, float]], name: str) -> dict[str, Any]:
    ratios = [times[name] / times["off"] if times["off"] else 1.0 for times in rounds]
    median = statistics.median(ratios)
    print(f"{name}: {median - 1:+.1%} processor time (of {len(ratios)} blocks: {min(ratios):.3f} to {max(ratios):.3f})")
    return {"median": median, "ratios": ratios, "processor_s": [times[name] for times in rounds]}


if __name__ == "__main__":
    sys.exit(main())
