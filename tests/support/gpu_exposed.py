"""``python -m tests.support.gpu_exposed FOLDER``: fully sharded training on two workers that share one GPU, over NCCL.

Writes a trace of the kernels of one step, and prints what was measured as JSON.
"""

from __future__ import annotations

import json
import os
import pathlib
import sys

os.environ |= {"GT_SHARE_GPUS": "1", "GT_NCCL_SHARED": "1"}

from benchmarks.autoshard import exposed
from tests.support.processes import free_port


def main(folder: str) -> None:
    with exposed.training(free_port(), 4096, 1024, 4, True, folder) as step:
        report = exposed.recorded_step(step).lines_of_text()
        seconds = exposed.traced_step(step, pathlib.Path(folder))
    print(json.dumps({"report": report, "seconds": seconds}))


if __name__ == "__main__":
    main(sys.argv[1])
