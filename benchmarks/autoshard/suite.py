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
from benchmarks.autoshard.watching import Watch
from benchmarks.core import environment, results, tables
from benchmarks.core.progress import Progress
from benchmarks.core.ranks import BAD_INPUT, DONE, FAILED, INTERRUPTED, BadInput

QUICK, FULL = 3, 5
#: the default scale of sizes on a CPU
ON_CPU = 0.125
SEED = 0


def parser(name: str, about: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(environment.program(name), description=about)
    add = parser.add_argument
    add("--gpus", type=int, nargs="+", default=None, metavar="N", help="numbers of workers to compare, e.g. 1 8")
    add("--quick", action="store_true", help=f"3 cases, {QUICK} iterations each, instead of 9 and {FULL}")
    add("--iters", type=int, help="iterations of each case")
    add("--scale", type=float, help="multiply all sizes; by itself less than 1 on a CPU or a small GPU")
    add("--port", type=int, default=9000, help="the server's port (default 9000)")
    add("--output-dir", default="./results", help="where the JSON record goes (default ./results)")
    return parser


def checked(options: argparse.Namespace, default: int) -> argparse.Namespace:
    options.gpus = sorted(set(options.gpus or [default]))
    for flag, value, least in (
        ("--gpus", min(options.gpus), 1),
        ("--iters", options.iters, 1),
        ("--port", options.port, 1),
    ):
        if value is not None and value < least:
            raise BadInput(f"{flag} {value}: at least {least}")
    if options.scale is not None and not 0 < options.scale <= 16:
        raise BadInput(f"--scale {options.scale:g}: more than 0, at most 16")
    if options.port > 65535:
        raise BadInput(f"--port {options.port}: at most 65535")
    results.writable(options.output_dir)
    return options


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

    def __init__(self, options: argparse.Namespace, suite: str, own_server: bool = False, **more: Any) -> None:
        self.options, self.own_server, self.more = options, own_server, more
        workers = sorted(w.id for w in gt.workers())
        if not workers:
            raise gt.NoWorkers(_no_workers(options.port))
        if max(options.gpus) > len(workers):
            raise BadInput(f"--gpus {max(options.gpus)}: the system has {len(workers)} worker(s)")
        self.ids = workers
        on_gpu = all(w.device.startswith("cuda") for w in gt.workers() if w.id in workers[: max(options.gpus)])
        self.device = "GPU" if on_gpu else "CPU"
        scale, notice = scale_for(self.device, options.quick, gpu_memory() if on_gpu else None)
        self.scale = scale if options.scale is None else options.scale
        if notice and options.scale is None:
            print(f"notice: {notice}", flush=True)
        self.iters = options.iters or (QUICK if options.quick else FULL)
        self.cases = cases.chosen(options.quick, self.scale)
        self.rows: list[tuple[cases.Case, dict[int, Any]]] = []
        gt.manual_seed(SEED)
        self.record = results.Record(
            options.output_dir,
            suite=suite,
            name=f"{suite}_{'_'.join(map(str, options.gpus))}",
            world_size=max(options.gpus),
            config=self.config(),
            environment=environment.record({"gt": SEED}),
        )

    def config(self) -> dict[str, Any]:
        device = gt.workers()[0].device
        name = environment.device_name(torch.device(device if torch.cuda.is_available() else "cpu"))
        return {
            "device": name,
            "device_type": self.device,
            "workers": self.options.gpus,
            "benchmark_iters": self.iters,
            "warmup_iters": 1,
            "scale": self.scale,
            "quick": self.options.quick,
            "dtype": "float32",
            **self.more,
        }

    def all(self) -> None:
        counts = self.options.gpus
        groups: list[str] = []
        with Progress("auto-shard", len(self.cases) * len(counts) * (self.iters + 1)) as bar:
            for case in self.cases:
                if case.group not in groups:
                    groups.append(case.group)
                    print(report.heading(len(groups), case.group), flush=True)
                result = {n: self._one(case, n, bar) for n in counts}
                self.rows.append((case, result))
                print(report.live(case, result, self.device), flush=True)
        summed = report.summary(self.rows)
        self.record.put("summary", value=summed)
        self.record.finish()
        print("\n" + report.comparison(self.rows, self.device))
        print("\n" + report.comparison(self.rows, self.device, "compute"))
        print("\n" + report.summary_text(summed, counts, self.device) + "\n")
        tables.show("Median seconds of each part", report.PARTS, report.parts(self.rows))
        expected = report.expected(self.rows, self.device)
        if expected:
            tables.show("Speedup of 8 GPUs", report.EXPECTED, expected)
        print("\n".join(tables.verdict_lines(self.record.data["verdict"])))
        print(f"record: {self.record.path}", flush=True)

    def _one(self, case: cases.Case, workers: int, bar: Progress) -> dict[str, Any]:
        what = f"{case.name} on {report.device_word(workers, self.device)}"
        connected = sorted(gt.workers(), key=lambda worker: worker.id)
        with Watch(connected, workers, self.own_server) as watch:
            measured = Bench(self.ids[:workers]).measure(case, self.iters, lambda: bar.step(what))
        result = watch.judged(measured, f"{case.name} on {workers}")
        self.record.put(case.group, case.name, str(workers), value=result)
        return result


def gpu_memory() -> int | None:
    """Bytes of the smallest GPU among the workers, as they report it."""
    totals = [memory["device"].get("total") for memory in gt.debug.memory().values()]
    return min((total for total in totals if total), default=None)


def _no_workers(port: int) -> str:
    return f"start one with: python -m gt.worker --host localhost -p {port}"


def run(act: Callable[[], Run]) -> int:
    """Create the run and perform it; report errors in the words of the README's troubleshooting table."""
    run: Run | None = None
    try:
        run = act()
        run.all()
        return DONE
    except (BadInput, results.Unwritable) as error:
        return _ended(run, BAD_INPUT, "failed", f"error: {error}")
    except gt.NoWorkers as error:
        return _ended(run, FAILED, "failed", f"No workers available: {error}")
    except gt.OutOfMemory as error:
        words = f"Out of memory: {str(error).splitlines()[0]}; give smaller sizes, e.g. --scale 0.5"
        return _ended(run, FAILED, "failed", words)
    except gt.ConnectionLost as error:
        return _ended(run, FAILED, "failed", f"Connection refused: {error}")
    except gt.GtError as error:
        return _ended(run, FAILED, "failed", f"failed: {error}")
    except KeyboardInterrupt:
        return _ended(run, INTERRUPTED, "interrupted", "interrupted")
    finally:
        gt.auto_shard(False)


def _ended(run: Run | None, code: int, status: str, words: str) -> int:
    print(words, file=sys.stderr, flush=True)
    if run is not None:
        run.record.finish(status, words)
        print(f"what was measured until then: {run.record.path}", file=sys.stderr, flush=True)
    return code


def parse(parser: argparse.ArgumentParser, words: Sequence[str] | None, default: int) -> argparse.Namespace:
    """Check the arguments; end with exit code 2 if they cannot be run."""
    options = parser.parse_args(words)
    try:
        return checked(options, default)
    except (BadInput, results.Unwritable) as error:
        parser.error(str(error))
