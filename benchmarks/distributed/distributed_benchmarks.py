#!/usr/bin/env python3
"""Measure a machine for distributed training: communication, training, memory and scaling.

torchrun --nproc_per_node=4 distributed_benchmarks.py                       everything, on 4 GPUs
torchrun --nproc_per_node=4 distributed_benchmarks.py --benchmark comm      one part
torchrun --nproc_per_node=2 distributed_benchmarks.py --backend gloo        on CPUs
python distributed_benchmarks.py                                            one rank
"""

import pathlib
import sys

if __name__ == "__main__":
    # the root of the repository instead of this folder, so that modules have the same name wherever this starts
    sys.path[0] = str(pathlib.Path(__file__).resolve().parents[2])
    from benchmarks.core import ranks
    from benchmarks.distributed.suite import main

    ranks.run(main)
