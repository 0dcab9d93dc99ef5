"""``torchrun --nproc_per_node=8 -m benchmarks.node``: one rank for each GPU; a record for each part."""

from benchmarks.core import ranks
from benchmarks.node.suite import main

ranks.run(main)
