#!/usr/bin/env python3
"""Torch alone on the programs of compilation_benchmark.py: eager, torch.compile, and with reduce-overhead.

The same processes, rounds and record as there, without GT: a baseline of a machine's torch.
"""

from __future__ import annotations

import pathlib
import signal
import sys

if __name__ == "__main__":
    # the root of the repository instead of this folder, so that modules have the same name wherever this starts
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from benchmarks.hot import suite
from benchmarks.hot.rows import ROWS


def main(words: list[str] | None = None) -> int:
    offered = [row.name for row in ROWS.values() if row.library == "torch"]
    return suite.main("pytorch_baseline", (__doc__ or "").splitlines()[0], offered, words)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the record is already closed
    sys.exit(main())
