"""The process of one row: ``python -m benchmarks.hot.child WORK ROW``. It reads commands and writes answers as lines.

warm SECONDS   run until it gets no faster, for at most this long
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
from benchmarks.hot.rows import ROWS, WORKS, Row, Work
from benchmarks.training import DEVICE, Trainer

#: chunks that a warm-up has at least
LEAST = 3
#: seconds in which no section may move on to be compiled
STILL = 1.0
ADDS = 1000


class Training(Trainer):
    """The training step of the row."""

    def __init__(self, lib: Any, name: str, row: Row) -> None:
        super().__init__(lib, name)
        if row.mode:
            self.model = torch.compile(self.model, mode=row.mode)
        if row.decorated:
            self.step = self._decorated()  # type: ignore[method-assign]

    def _decorated(self) -> Any:
        plain = self.step

        def step(x: Any, y: Any) -> Any:
            self.x, self.y = x, y
            return plain()

        compiled, x, y = gt.compile(step), self.x, self.y
        return lambda: compiled(x, y)


class Adds:
    def __init__(self, lib: Any, row: Row) -> None:
        self.x = lib.ones(64, 64)
        if lib is torch:
            self.x = self.x.to(DEVICE)
        self.chain: Any = chain
        if row.mode:
            self.chain = torch.compile(chain, mode=row.mode)
        if row.decorated:
            self.chain = gt.compile(chain)

    def run(self, steps: int) -> float:
        started = time.perf_counter()
        for _ in range(steps):
            value = self.chain(self.x)[0, 0].item()
        seconds = (time.perf_counter() - started) / steps
        assert value == ADDS + 1, f"{ADDS} adds gave {value}"
        return seconds


def chain(x: Any) -> Any:
    y = x
    for _ in range(ADDS):
        y = y + x
    return y


class Child:
    def __init__(self, work: Work, row: Row) -> None:
        self.work, self.row = work, row
        lib = gt if row.library == "gt" else torch
        self.program: Any = Adds(lib, row) if work.name == "adds" else Training(lib, work.name, row)

    def warm(self, seconds: float) -> dict[str, Any]:
        started, steps = time.perf_counter(), 0
        report: dict[str, Any] = {"settled": False}
        since = None  # when it settled
        while time.perf_counter() - started < seconds:
            self.program.run(self.work.chunk)
            steps += self.work.chunk
            report = self._reached() if steps >= LEAST * self.work.chunk else report
            since = (since or time.perf_counter()) if report["settled"] else None
            if since is not None and (not self.row.compiles or time.perf_counter() - since > STILL):
                break
        return {"warmup_s": (since or time.perf_counter()) - started, "warmup_steps": steps, **report}

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

    def run(self, steps: int) -> dict[str, Any]:
        return {"step_s": self.program.run(steps)}


def main() -> int:
    # so that output of libraries is not read as an answer
    answers, sys.stdout = os.fdopen(os.dup(1), "w"), sys.stderr
    os.dup2(2, 1)

    def answer(report: dict[str, Any]) -> None:
        print(json.dumps(report), file=answers, flush=True)

    try:
        child = Child(WORKS[sys.argv[1]], ROWS[sys.argv[2]])
        answer({"ready": True})
        for line in sys.stdin:
            act, number = line.split()
            answer(child.warm(float(number)) if act == "warm" else child.run(int(number)))
    except Exception as error:
        answer({"error": f"{type(error).__name__}: {error}".splitlines()[0]})
        raise
    finally:
        gt.disconnect()
    return 0


if __name__ == "__main__":
    sys.exit(main())
