"""The process of one row: ``python -m benchmarks.hot.child WORK ROW MODE``. It reads commands, and writes answers.

warm SECONDS   run until it gets no faster, for at most this long
check 0        the losses of the first steps, at the level that was reached
memory 0       the most memory in use since the last time
run STEPS      seconds per step, with one read at the end
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import torch

import gt
from benchmarks.hot import programs
from benchmarks.hot.rows import ROWS, WORKS, Row, Work

#: chunks and steps that a warm-up has at least: sections become graphs by themselves within this many steps
LEAST, LEAST_STEPS = 3, 40
#: seconds in which no section may move on to be compiled
STILL = 1.0


class Child:
    def __init__(self, work: Work, row: Row, mode: str) -> None:
        self.work, self.row = work, row
        self.program = programs.make(work.name, row, mode)

    def warm(self, seconds: float) -> dict[str, Any]:
        started = time.perf_counter()
        self.program.run(1)
        first, steps = time.perf_counter() - started, 1
        report: dict[str, Any] = {"settled": False}
        since = None  # when it settled
        while time.perf_counter() - started < seconds:
            self.program.run(self.work.chunk)
            steps += self.work.chunk
            report = self._reached() if steps >= max(LEAST_STEPS, LEAST * self.work.chunk) else report
            since = (since or time.perf_counter()) if report["settled"] else None
            if since is not None and (not self.row.compiles or time.perf_counter() - since > STILL):
                break
        warmup = (since or time.perf_counter()) - started
        return {"first_step_s": first, "warmup_s": warmup, "warmup_steps": steps, **report}

    def _reached(self) -> dict[str, Any]:
        """Will it get no faster? And at which levels its instructions run."""
        if self.row.library != "gt":
            return {"settled": True}
        stats = gt.debug.get_worker_stats()
        pieces = stats["compilation_stats"].values()
        levels: dict[str, int] = {}
        for piece in pieces:
            levels[piece["level"]] = levels.get(piece["level"], 0) + piece["length"] * piece["runs"]
        report = {
            "levels": levels,
            "compile_s": sum(p["compile_seconds"] for p in pieces),
            "reasons": sorted({reason for p in pieces for reason in p["reasons"]}),
            "hot": stats["hot_instructions"] / max(1, stats["total_instructions"]),
        }
        return {"settled": not self.row.compiles or self._settled(pieces), **report}

    def _settled(self, pieces: Any) -> bool:
        """Is every running section compiled, or is there a reason why not? A single instruction may not be worth it."""
        most = max((p["runs"] for p in pieces), default=0)
        now = [p for p in pieces if p["runs"] >= most // 4]
        top = "graph" if self.row.gpu_only else "compiled"
        ended = [p["level"] == top or p["reasons"] or (p["length"], p["level"]) == (1, "template") for p in now]
        return bool(now) and all(ended)

    def check(self, _: float) -> dict[str, Any]:
        values, tolerance = self.program.check()
        return {"values": values, "tolerance": tolerance}

    def memory(self, _: float) -> dict[str, Any]:
        """The peaks of the device's memory since the last call, in bytes: {} without a GPU."""
        if not torch.cuda.is_available():
            return {}
        cuda: Any = gt.cuda if self.row.library == "gt" else torch.cuda
        peaks = {"allocated": cuda.max_memory_allocated(), "reserved": cuda.max_memory_reserved()}
        cuda.reset_peak_memory_stats()
        return peaks

    def run(self, steps: float) -> dict[str, Any]:
        figures: dict[str, Any] = self.program.run(int(steps))
        return figures


def main() -> int:
    # so that output of libraries is not read as an answer
    answers, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr
    os.dup2(2, 1)

    def answer(report: dict[str, Any]) -> None:
        print(json.dumps(report), file=answers, flush=True)

    try:
        child = Child(WORKS[sys.argv[1]], ROWS[sys.argv[2]], sys.argv[3])
        acts = {"warm": child.warm, "check": child.check, "memory": child.memory, "run": child.run}
        answer({"ready": True})
        for line in sys.stdin:
            act, number = line.split()
            answer(acts[act](float(number)))
    except Exception as error:
        answer({"error": f"{type(error).__name__}: {error}".splitlines()[0]})
        raise
    finally:
        gt.disconnect()
    return 0


if __name__ == "__main__":
    sys.exit(main())
