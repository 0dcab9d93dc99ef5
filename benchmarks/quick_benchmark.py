#!/usr/bin/env python3
"""Auto-sharding on GPUs of this machine, or as many CPU workers of one thread each; starts and stops everything.

python benchmarks/quick_benchmark.py --gpus 8 --quick     3 cases, 3 iterations each
python benchmarks/quick_benchmark.py --gpus 1 8           everything, 1 GPU against 8
python benchmarks/quick_benchmark.py --gpus 1 2 --scale 0.125
"""

from __future__ import annotations

import os
import pathlib
import signal
import sys

if __name__ == "__main__":
    # the root of the repository instead of this folder, so that modules have the same name wherever this starts
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[1])

import gt
from benchmarks.autoshard import suite
from benchmarks.autoshard.system import System
from benchmarks.core.ranks import BAD_INPUT, FAILED, INTERRUPTED, BadInput
from gt.launch.local import visible_gpus


def main(words: list[str] | None = None) -> int:
    gpus = len(visible_gpus())
    parser = suite.parser("quick_benchmark.py", (__doc__ or "").splitlines()[0])
    options = suite.parse(parser, words, default=gpus or os.cpu_count() or 1)
    most = max(options.gpus)
    if not gpus and most > (os.cpu_count() or 1):
        print(f"notice: {most} workers on {os.cpu_count()} CPU cores share them: speedups say little", flush=True)
    try:
        print(f"starting a server on port {options.port} and {most} worker(s)", flush=True)
        with System(most, options.port):
            threads = None if gpus else 1
            return suite.run(lambda: suite.Run(options, "quick_benchmark", own_server=True, threads_a_worker=threads))
    except BadInput as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        return INTERRUPTED
    except gt.GtError as error:
        print(f"the system did not start: {error}", file=sys.stderr)
        return FAILED


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the record is closed, and everything has ended
    sys.exit(main())
