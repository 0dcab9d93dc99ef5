"""The cost of the event stream: how much slower a program is while somebody listens, and while nobody does.

    python benchmarks/events.py                          with a listener against without, in alternating blocks
    python benchmarks/events.py --against ../older-gt    also this checkout without a listener against an older one
    python benchmarks/events.py --real-time              on a machine that others use at the same time; needs root
    python benchmarks/events.py --pages 10               also with ten open pages of the dashboard against without

Each pair of blocks gives a ratio of times, and one of processor times: those of the client, the server, the worker and
the listener together, which other programs on the machine disturb less. Printed are the medians of the ratios and their
95 % intervals (bootstrap). The listener is a process of its own, which reads every event.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent))

import numpy as np
import psutil

from benchmarks.core import environment, results
from benchmarks.core.environment import ROOT

#: program -> settings, and steps in a block
PROGRAMS: dict[str, tuple[dict[str, str], int]] = {"training": ({}, 400), "adds": ({"GT_TEMPLATES": "0"}, 2000)}
#: Steps before a block, in which a new listener gets the names of everything.
WARMUP_STEPS = 20
#: The goals: slower by at most this share.
WITH_LISTENER, WITHOUT = 0.05, 0.01
NOBODY = "nobody listens"

LISTENER = """
import sys
from gt.events.table import EventTable
from gt.events.viewer import Viewer
table = EventTable()
with Viewer(sys.argv[1]) as viewer:
    print("listening", flush=True)
    for batch in viewer.batches():
        if batch is not None:
            table.add(batch)
        if table.count > 1_000_000:
            table = EventTable()
"""


class Block(NamedTuple):
    """The seconds of a block, and the processor time of all processes."""

    seconds: float
    processor: float


class Child:
    """A process that answers a line with a line."""

    #: whether it has priority over all other programs
    real_time = False

    def __init__(self, tree: pathlib.Path, words: list[str], settings: dict[str, str], counted: bool = True) -> None:
        #: whether its own processor time counts, beside that of its children
        self._counted = counted
        clean = {key: value for key, value in os.environ.items() if not key.startswith("GT_")}
        self._popen = subprocess.Popen(
            [sys.executable, *words],
            env={
                **clean,
                **settings,
                "PYTHONPATH": str(tree),
                "CUDA_VISIBLE_DEVICES": clean.get("CUDA_VISIBLE_DEVICES", ""),
            },
            cwd=tree,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        #: its first line
        self.first = self.line()
        if Child.real_time:
            for thread in self._threads():
                os.sched_setscheduler(int(thread.name), os.SCHED_RR, os.sched_param(10))

    def line(self) -> str:
        assert self._popen.stdout is not None
        line = self._popen.stdout.readline().strip()
        if not line:
            raise SystemExit("a child process of the benchmark ended early")
        return line

    def run(self, steps: int) -> float:
        assert self._popen.stdin is not None
        self._popen.stdin.write(f"run {steps}\n")
        self._popen.stdin.flush()
        return float(self.line())

    def block(self, steps: int, *others: Child) -> Block:
        """Run a block. The processor time is that of this process, its children and ``others``."""
        self.run(WARMUP_STEPS)
        before = sum(map(Child.processor_time, (self, *others)))
        seconds = self.run(steps)
        return Block(seconds, sum(map(Child.processor_time, (self, *others))) - before)

    def processor_time(self) -> float:
        """The seconds that all threads of this process and its children have run, exact to the nanosecond."""
        return sum(int((thread / "schedstat").read_text().split()[0]) for thread in self._threads()) / 1e9

    def _threads(self) -> list[pathlib.Path]:
        process = psutil.Process(self._popen.pid)
        processes = [*[process] * self._counted, *process.children(recursive=True)]
        return [thread for each in processes for thread in pathlib.Path(f"/proc/{each.pid}/task").iterdir()]

    def close(self) -> None:
        self._popen.terminate()
        with self._popen:  # waits for it, and closes the pipes
            pass


def ratios(first: Callable[[], Block], second: Callable[[], Block], blocks: int) -> list[Block]:
    """first / second of each pair of blocks; which one comes first alternates."""
    measured = []
    for k in range(blocks):
        if k % 2:
            b, a = second(), first()
        else:
            a, b = first(), second()
        measured.append(Block(a.seconds / b.seconds, a.processor / b.processor))
    return measured


def interval(samples: list[float]) -> tuple[float, float, float]:
    """The median, and its 95 % interval by bootstrap."""
    drawn = np.random.default_rng(0).choice(samples, (2000, len(samples)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return float(np.median(samples)), float(low), float(high)


def listening(program: Child, steps: int, pages: int = 0) -> Block:
    """A block while a listener reads all events, or while a dashboard has this many pages. The time of the dashboard
    counts, that of the pages does not: they are in people's browsers."""
    words = [str(ROOT / "benchmarks" / "events_pages.py"), program.first, str(pages)]
    listener = Child(ROOT, words if pages else ["-c", LISTENER, program.first], {}, counted=not pages)
    try:
        return program.block(steps, listener)
    finally:
        listener.close()


def start(tree: pathlib.Path, program: str) -> Child:
    child = str(ROOT / "benchmarks" / "events_child.py")
    return Child(tree, [child, program], {"GT_BACKEND": "torch", **PROGRAMS[program][0]})


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=24, help="pairs of blocks (default 24)")
    parser.add_argument("--steps", type=int, help="steps in a block (default: about a second)")
    parser.add_argument("--only", nargs="*", choices=list(PROGRAMS), default=list(PROGRAMS))
    parser.add_argument("--against", type=pathlib.Path, help="a checkout of GT to compare with, without a listener")
    parser.add_argument("--real-time", action="store_true", help="with priority over all other programs; needs root")
    parser.add_argument("--pages", type=int, default=0, help="also measure a dashboard with this many pages")
    parser.add_argument("--output-dir", default="results")
    options = parser.parse_args(argv)
    Child.real_time = options.real_time
    record = results.Record(
        options.output_dir,
        suite="events",
        name="events",
        world_size=1,
        config={"device": "cpu", "real_time": options.real_time, "blocks": options.blocks, "steps": options.steps},
        environment=environment.record({"gt": 0}),
    )
    for program in options.only:
        compare(record, program, options)
    record.finish()
    print(f"record: {record.path}")
    return 0


def compare(record: results.Record, program: str, options: argparse.Namespace) -> None:
    """Measure one program: with a listener against without; and without against an older checkout."""
    steps, blocks = options.steps or PROGRAMS[program][1], options.blocks
    this = start(ROOT, program)
    try:
        measured = ratios(lambda: listening(this, steps), lambda: this.block(steps), blocks)
        measure(record, program, "with a listener", measured)
        if options.pages:
            measured = ratios(lambda: listening(this, steps, options.pages), lambda: this.block(steps), blocks)
            measure(record, program, f"with {options.pages} pages", measured)
        if options.against:
            other = start(options.against.resolve(), program)
            try:
                measured = ratios(lambda: this.block(steps), lambda: other.block(steps), blocks)
                measure(record, program, NOBODY, measured)
            finally:
                other.close()
    finally:
        this.close()


def measure(record: results.Record, program: str, name: str, samples: list[Block]) -> None:
    goal = WITHOUT if name == NOBODY else WITH_LISTENER
    row: dict[str, Any] = {"goal": 1 + goal}
    for kind in Block._fields:
        of_kind = [getattr(sample, kind) for sample in samples]
        median, low, high = interval(of_kind)
        row[kind] = {"ratios": of_kind, "median": median, "low": low, "high": high}
        found = f"{median - 1:+7.2%}  (95 %: {low - 1:+.2%} to {high - 1:+.2%}; goal {goal:.0%})"
        print(f"{program:<10} {name:<16} {kind:<10} {found}", flush=True)
    record.put(program, name, value=row)


if __name__ == "__main__":
    sys.exit(main())
