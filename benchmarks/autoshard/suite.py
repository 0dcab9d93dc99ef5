"""Both scripts: their command lines, the run, and its exit code.

Exit codes: 0 complete, 1 failed, 2 bad input, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

import gt
from benchmarks.autoshard import cases, report
from benchmarks.autoshard.measuring import Bench
from benchmarks.core import environment, results, tables
from benchmarks.core.progress import Progress
from benchmarks.core.ranks import BAD_INPUT, DONE, FAILED, INTERRUPTED, BadInput

QUICK, FULL = 3, 5
#: the default scale of sizes on a CPU
ON_CPU = 0.125
SEED = 0


def parser(name: str, about: str) -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(name, description=about)
    add = made.add_argument
    add("--gpus", type=int, nargs="+", default=None, metavar="N", help="numbers of workers to compare, e.g. 1 8")
    add("--quick", action="store_true", help=f"3 cases, {QUICK} iterations each, instead of 9 and {FULL}")
    add("--iters", type=int, help="iterations of each case")
    add("--scale", type=float, help="multiply all sizes; by itself less than 1 on a CPU or a small GPU")
    add("--port", type=int, default=9000, help="the server's port (default 9000)")
    add("--output-dir", default="./results", help="where the JSON record goes (default ./results)")
    return made


def checked(given: argparse.Namespace, default: int) -> argparse.Namespace:
    given.gpus = sorted(set(given.gpus or [default]))
    for flag, value, least in (("--gpus", min(given.gpus), 1), ("--iters", given.iters, 1), ("--port", given.port, 1)):
        if value is not None and value < least:
            raise BadInput(f"{flag} {value}: at least {least}")
    if given.scale is not None and not 0 < given.scale <= 16:
        raise BadInput(f"--scale {given.scale:g}: more than 0, at most 16")
    if given.port > 65535:
        raise BadInput(f"--port {given.port}: at most 65535")
    results.writable(given.output_dir)
    return given


def scale_for(device: str, quick: bool, memory: int | None) -> tuple[float, str]:
    """The scale of sizes on this device, and the reason for it."""
    if device == "CPU":
        return ON_CPU, f"no GPU: sizes are scaled by {ON_CPU:g} (--scale 1 for all of it)"
    scale = cases.fitting(memory or 80e9, quick)
    if scale == 1:
        return 1.0, ""
    return scale, f"a GPU of {(memory or 0) / 2**30:.0f} GiB: sizes are scaled by {scale:g} (--scale 1 for all of it)"


class Run:
    """Run every case on every number of workers of the current session, and record it step by step."""

    def __init__(self, given: argparse.Namespace, suite: str, **more: Any) -> None:
        self.given, self.more = given, more
        there = sorted(w.id for w in gt.workers())
        if not there:
            raise gt.NoWorkers(_no_workers(given.port))
        if max(given.gpus) > len(there):
            raise BadInput(f"--gpus {max(given.gpus)}: the system has {len(there)} worker(s)")
        self.ids = there
        on_gpu = all(w.device.startswith("cuda") for w in gt.workers() if w.id in there[: max(given.gpus)])
        self.device = "GPU" if on_gpu else "CPU"
        scale, notice = scale_for(self.device, given.quick, gpu_memory() if on_gpu else None)
        self.scale = scale if given.scale is None else given.scale
        if notice and given.scale is None:
            print(f"notice: {notice}", flush=True)
        self.iters = given.iters or (QUICK if given.quick else FULL)
        self.cases = cases.chosen(given.quick, self.scale)
        self.rows: list[tuple[cases.Case, dict[int, Any]]] = []
        gt.manual_seed(SEED)
        self.record = results.Record(
            given.output_dir,
            suite=suite,
            name=f"{suite}_{'_'.join(map(str, given.gpus))}",
            world_size=max(given.gpus),
            config=self.config(),
            environment=environment.record({"gt": SEED}),
        )

    def config(self) -> dict[str, Any]:
        device = gt.workers()[0].device
        name = environment.device_name(torch.device(device if torch.cuda.is_available() else "cpu"))
        return {
            "device": name,
            "device_type": self.device,
            "workers": self.given.gpus,
            "benchmark_iters": self.iters,
            "warmup_iters": 1,
            "scale": self.scale,
            "quick": self.given.quick,
            "dtype": "float32",
            **self.more,
        }

    def all(self) -> None:
        counts = self.given.gpus
        groups: list[str] = []
        with Progress("auto-shard", len(self.cases) * len(counts) * (self.iters + 1)) as bar:
            for case in self.cases:
                if case.group not in groups:
                    groups.append(case.group)
                    print(report.heading(len(groups), case.group), flush=True)
                found = {n: self._one(case, n, bar) for n in counts}
                self.rows.append((case, found))
                print(report.live(case, found, self.device), flush=True)
        summed = report.summary(self.rows)
        self.record.put("summary", value=summed)
        self.record.finish()
        print("\n" + report.comparison(self.rows, self.device))
        print("\n" + report.comparison(self.rows, self.device, "compute"))
        print("\n" + report.told(summed, counts, self.device) + "\n")
        tables.show("Median seconds of each part", report.PARTS, report.parts(self.rows))
        print("\n".join(tables.verdict_lines(self.record.data["verdict"])))
        print(f"record: {self.record.path}", flush=True)

    def _one(self, case: cases.Case, workers: int, bar: Progress) -> dict[str, Any]:
        what = f"{case.name} on {report.device_word(workers, self.device)}"
        found = Bench(self.ids[:workers]).measure(case, self.iters, lambda: bar.step(what))
        self.record.put(case.group, case.name, str(workers), value=found)
        return found


def gpu_memory() -> int | None:
    """Bytes of the smallest GPU among the workers, as they report it."""
    told = [told["device"].get("total") for told in gt.debug.memory().values()]
    return min((n for n in told if n), default=None)


def _no_workers(port: int) -> str:
    return f"start one with: python -m gt.worker --host localhost -p {port}"


def run(act: Callable[[], Run]) -> int:
    """Create the run and perform it; report errors in the words of the README's troubleshooting table."""
    made: Run | None = None
    try:
        made = act()
        made.all()
        return DONE
    except (BadInput, results.Unwritable) as error:
        return _ended(made, BAD_INPUT, "failed", f"error: {error}")
    except gt.NoWorkers as error:
        return _ended(made, FAILED, "failed", f"No workers available: {error}")
    except gt.OutOfMemory as error:
        words = f"Out of memory: {str(error).splitlines()[0]}; give smaller sizes, e.g. --scale 0.5"
        return _ended(made, FAILED, "failed", words)
    except gt.ConnectionLost as error:
        return _ended(made, FAILED, "failed", f"Connection refused: {error}")
    except gt.GtError as error:
        return _ended(made, FAILED, "failed", f"failed: {error}")
    except KeyboardInterrupt:
        return _ended(made, INTERRUPTED, "interrupted", "interrupted")
    finally:
        gt.auto_shard(False)


def _ended(made: Run | None, code: int, status: str, words: str) -> int:
    print(words, file=sys.stderr, flush=True)
    if made is not None:
        made.record.finish(status, words)
        print(f"what was measured until then: {made.record.path}", file=sys.stderr, flush=True)
    return code


def parse(made: argparse.ArgumentParser, words: Sequence[str] | None, default: int) -> argparse.Namespace:
    """Check the arguments; end with exit code 2 if they cannot be run."""
    given = made.parse_args(words)
    try:
        return checked(given, default)
    except (BadInput, results.Unwritable) as error:
        made.error(str(error))
