#!/usr/bin/env python3
"""Steps that come again: torch eager and compiled, and GT at each of its levels, in turns in one run.

torch             torch eager: what all others are compared with
torch-compile     torch.compile of the model
torch-overhead    torch.compile of the model, mode="reduce-overhead": CUDA graphs, where there is a GPU
eager             GT without templates (GT_TEMPLATES=0)
template          GT as it is
graph             GT with GT_AUTO_COMPILE=graphs: CUDA graphs of the steps as they are (GPUs only)
compiled          GT with GT_AUTO_COMPILE=1: graphs and compiled code, in the background
decorated         the same with the step under @gt.compile

Each row is a process with a system of its own; all are warmed up, which is timed by itself, and then asked in turns. A
ratio is the median over the rounds of a row's step time over another's in the same round: less than 1 is quicker.
"""

from __future__ import annotations

import pathlib
import signal
import sys

if __name__ == "__main__":
    # the root of the repository instead of this folder: modules have one name, wherever this is started
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

from benchmarks.hot import suite
from benchmarks.hot.rows import ROWS


def main(words: list[str] | None = None) -> int:
    return suite.main("compilation_benchmark", (__doc__ or "").splitlines()[0], list(ROWS), words)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the record is closed either way
    sys.exit(main())
