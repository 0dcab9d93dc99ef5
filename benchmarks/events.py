"""The cost of the event stream: how much slower a program is while somebody listens, and while nobody does.

    python benchmarks/events.py                          with a listener against without, in alternating blocks
    python benchmarks/events.py --against ../older-gt    also this checkout without a listener against an older one
    python benchmarks/events.py --real-time              on a machine that others use at the same time; needs root
    python benchmarks/events.py --pages 10               also with ten open pages of the dashboard against without

Each pair of blocks gives a ratio of times, and one of processor times: those of the client, the server, the worker and
the listener together, which other programs on the machine disturb less. Printed are the medians of the ratios and their
95 % intervals (bootstrap), and which process took the additional processor time. The listener is a process of its own,
which reads every event.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys
from collections import Counter
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
#: Pairs of blocks with the same two systems, where two checkouts are compared.
PAIRS = 2
#: The goals: slower by at most this share.
WITH_LISTENER, WITHOUT = 0.05, 0.01
KINDS = "seconds", "processor"
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
    """The seconds of a block, and the processor time of each role: client, server, worker, listener."""

    seconds: float
    roles: dict[str, float]


class Ratio(NamedTuple):
    """A block against another one."""

    seconds: float
    processor: float
    #: role -> the processor time that it took more, as a share of the other block's whole processor time
    added: dict[str, float]


def ratio(block: Block, other: Block) -> Ratio:
    whole = sum(other.roles.values())
    roles = dict.fromkeys([*other.roles, *block.roles])
    added = {role: (block.roles.get(role, 0.0) - other.roles.get(role, 0.0)) / whole for role in roles}
    return Ratio(block.seconds / other.seconds, sum(block.roles.values()) / whole, added)


class Child:
    """A process that answers a line with a line."""

    #: whether it has priority over all other programs
    real_time = False

    def __init__(self, tree: pathlib.Path, words: list[str], settings: dict[str, str], role: str) -> None:
        #: what its own processor time counts as; empty: only that of its children counts
        self._role = role
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
            for _, thread in self._threads():
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
        before = sum(map(Child.processor_times, (self, *others)), Counter())
        seconds = self.run(steps)
        after = sum(map(Child.processor_times, (self, *others)), Counter())
        return Block(seconds, {role: (after[role] - before[role]) / 1e9 for role in after})

    def processor_times(self) -> Counter[str]:
        """Role -> the nanoseconds that all threads of its processes have run, exact to the nanosecond."""
        times: Counter[str] = Counter()
        for role, thread in self._threads():
            times[role] += int((thread / "schedstat").read_text().split()[0])
        return times

    def _threads(self) -> list[tuple[str, pathlib.Path]]:
        """(role, folder in /proc) of each thread."""
        process = psutil.Process(self._popen.pid)
        processes = [(_role(each.cmdline()), each) for each in process.children(recursive=True)]
        if self._role:
            processes.append((self._role, process))
        return [(role, path) for role, each in processes for path in pathlib.Path(f"/proc/{each.pid}/task").iterdir()]

    def close(self) -> None:
        self._popen.terminate()
        with self._popen:  # waits for it, and closes the pipes
            pass


def _role(command: list[str]) -> str:
    """What a child process is: of a local system the server or a worker, and else a dashboard, which listens."""
    return next((role for role in ("server", "worker") if f"gt.{role}" in command), "listener")


def ratios(first: Callable[[], Block], second: Callable[[], Block], blocks: int) -> list[Ratio]:
    """first / second of each pair of blocks; which one comes first alternates."""
    measured = []
    for k in range(blocks):
        if k % 2:
            b, a = second(), first()
        else:
            a, b = first(), second()
        measured.append(ratio(a, b))
    return measured


def interval(samples: list[float]) -> tuple[float, float, float]:
    """The median, and its 95 % interval by bootstrap."""
    drawn = np.random.default_rng(0).choice(samples, (2000, len(samples)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    return float(np.median(samples)), float(low), float(high)


def listening(program: Child, steps: int, pages: int = 0) -> Block:
    """A block while a listener reads all events, or while a dashboard has this many pages. The time of the dashboard
    counts, that of the pages does not: they are in people's browsers."""
    words = [str(ROOT / "benchmarks" / "events_pages_child.py"), program.first, str(pages)]
    listener = Child(ROOT, words if pages else ["-c", LISTENER, program.first], {}, "" if pages else "listener")
    try:
        return program.block(steps, listener)
    finally:
        listener.close()


def start(tree: pathlib.Path, program: str) -> Child:
    child = str(ROOT / "benchmarks" / "events_child.py")
    return Child(tree, [child, program], {"GT_BACKEND": "torch", **PROGRAMS[program][0]}, "client")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        environment.program(__file__), description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
    finally:
        this.close()
    if options.against:
        measure(record, program, NOBODY, nobody_listens(program, options.against.resolve(), steps, blocks))


def nobody_listens(program: str, other: pathlib.Path, steps: int, blocks: int) -> list[Ratio]:
    """This checkout against another one. Each sample is from two new systems, the mean of a few pairs: two processes of
    the same program differ by some percent for as long as they live, by where their memory is."""
    samples = []
    for _ in range(blocks):
        this, that = start(ROOT, program), start(other, program)
        try:
            measured = ratios(lambda: this.block(steps), lambda: that.block(steps), PAIRS)  # noqa: B023, used at once
        finally:
            this.close()
            that.close()
        samples.append(mean(measured))
    return samples


def mean(measured: list[Ratio]) -> Ratio:
    added = {role: float(np.mean([each.added[role] for each in measured])) for role in measured[0].added}
    seconds, processor = (float(np.mean([getattr(each, kind) for each in measured])) for kind in KINDS)
    return Ratio(seconds, processor, added)


def measure(record: results.Record, program: str, name: str, samples: list[Ratio]) -> None:
    goal = WITHOUT if name == NOBODY else WITH_LISTENER
    row: dict[str, Any] = {"goal": 1 + goal}
    for kind in KINDS:
        of_kind = [getattr(sample, kind) for sample in samples]
        median, low, high = interval(of_kind)
        row[kind] = {"ratios": of_kind, "median": median, "low": low, "high": high}
        found = f"{median - 1:+7.2%}  (95 %: {low - 1:+.2%} to {high - 1:+.2%}; goal {goal:.0%})"
        print(f"{program:<10} {name:<16} {kind:<10} {found}", flush=True)
    row["added"] = {role: float(np.median([sample.added[role] for sample in samples])) for role in samples[0].added}
    print(f"{'':<27} of that: " + ", ".join(f"{role} {share:+.2%}" for role, share in row["added"].items()), flush=True)
    record.put(program, name, value=row)


if __name__ == "__main__":
    sys.exit(main())
