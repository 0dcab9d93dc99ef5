#!/usr/bin/env python3
"""Repeated steps: torch eager and compiled, and GT at each of its levels, in turns in one run.

torch             torch eager: the baseline of all others
torch-compile     torch.compile of the model
torch-overhead    torch.compile of the model, mode="reduce-overhead": CUDA graphs, where there is a GPU
torch-best        model and loss compiled together, fused optimizer, the faster of the two modes
eager             GT without templates (GT_TEMPLATES=0)
template          GT with its defaults
graph             GT with GT_AUTO_COMPILE=graphs: CUDA graphs of the same kernels (GPUs only)
compiled          GT with GT_AUTO_COMPILE=1: graphs and compiled code, in the background
decorated         the same with the step under @gt.compile

Each row is a process with its own system. All are warmed up, which is timed separately, and then take turns. A ratio is
the median over the rounds of a row's step time divided by another's in the same round: less than 1 is faster.
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
    return suite.main("compilation_benchmark", (__doc__ or "").splitlines()[0], list(ROWS), words)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the record is already closed
    sys.exit(main())
