#!/usr/bin/env python3
"""Auto-sharding on the first 1, 2, … 8 workers of a running system.

python -m gt.server -p 9000
CUDA_VISIBLE_DEVICES=0 python -m gt.worker --host localhost -p 9000      (one for each GPU)
python benchmarks/auto_shard_benchmark.py --gpus 1 4 8

The server is the one at --host and --port, or at GT_SERVER=host:port.
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
from benchmarks.core.ranks import BadInput


def main(words: list[str] | None = None) -> int:
    parser = suite.parser("auto_shard_benchmark.py", (__doc__ or "").splitlines()[0])
    parser.add_argument("--host", default="localhost", help="where the server runs (default localhost)")
    parser.set_defaults(port=None)
    options = parser.parse_args(words)
    address = os.environ.get("GT_SERVER", "") if options.port is None and options.host == "localhost" else ""
    address = address or f"{options.host}:{options.port or 9000}"
    options.port = int(port) if (port := address.rpartition(":")[2]).isdigit() else 9000

    def start() -> suite.Run:
        try:
            gt.connect(address)
        except gt.ConfigError as error:
            raise BadInput(f"GT_SERVER={address}: {error}") from None
        options.gpus = options.gpus or [max(1, len(gt.workers()))]
        return suite.Run(suite.checked(options, 1), "auto_shard_benchmark")

    try:
        return suite.run(start)
    finally:
        gt.disconnect()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # the record is already closed
    sys.exit(main())
