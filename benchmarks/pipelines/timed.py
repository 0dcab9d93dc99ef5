"""Workers whose ops take a set time and compute nothing, so that a schedule can be measured on any machine.

An op with floating-point operations (`Op.flops`) takes the set time; all others take none. Every worker writes a line
for each of them: when it began and ended, and how many microbatches it holds. ``python -m benchmarks.pipelines.timed
SECONDS FILE SOCKET`` is a worker.
"""

from __future__ import annotations

import json
import pathlib
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from benchmarks.hot.null import Null, serve, system
from gt.client.stream.session import Session
from gt.ops import Signature


class Span(NamedTuple):
    """One op on one worker, in seconds of the wall clock."""

    begin: float
    end: float


class Timed(Null):
    """Ops with floating-point operations take this many seconds."""

    def __init__(self, seconds: float, path: str) -> None:
        self._seconds = seconds
        self._file = open(path, "w", buffering=1)  # noqa: SIM115, open as long as the worker runs

    def link(self, signature: Signature) -> Any:
        compute = super().link(signature)
        if signature.op.flops is None:
            return compute

        def run(*operands: Any) -> Any:
            begin = time.time()
            time.sleep(self._seconds)
            self._file.write(json.dumps([begin, time.time()]) + "\n")
            return compute(*operands)

        return run


@contextmanager
def timed_system(workers: int, seconds: float, folder: pathlib.Path) -> Iterator[Session]:
    """A server and timed workers, and a session with them. Each worker writes its spans into the folder."""
    module = "benchmarks.pipelines.timed"
    with system([(module, str(seconds), str(folder / f"{n}.spans")) for n in range(workers)]) as session:
        yield session


def spans(folder: pathlib.Path) -> list[list[Span]]:
    """The spans of each worker so far."""
    files = sorted(folder.glob("*.spans"), key=lambda path: int(path.stem))
    return [[Span(*json.loads(line)) for line in file.read_text().splitlines()] for file in files]


if __name__ == "__main__":
    serve(Timed(float(sys.argv[1]), sys.argv[2]), sys.argv[3])
