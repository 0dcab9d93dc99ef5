"""The machine while a case is measured: its GPUs, and on CPUs the load of other programs."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import Any

import torch

from benchmarks.core import processor, sampler, verdict
from benchmarks.core.environment import nvml_uuid
from benchmarks.core.ranks import World
from gt.wire.shared import host_identity
from gt.wire.structures import WorkerInfo


class Watch(sampler.Watch):
    """The GPUs of the first ``count`` workers; the client and all workers are no other programs.

    ``own_server``: whether this process started the server. Nobody knows the process of another one, nor the load of
    other hosts: the load of other programs is unchecked then.
    """

    def __init__(self, workers: Sequence[WorkerInfo], count: int, own_server: bool) -> None:
        here = host_identity()
        self._all_known = own_server and all(worker.host == here for worker in workers)
        device = torch.device("cuda" if workers[0].gpu else "cpu")
        members = [{"host": here, "gpu": None, "pid": os.getpid()}]
        for number, worker in enumerate(workers):
            card = nvml_uuid(worker.gpu.partition(" ")[0]) if number < count else None
            members.append({"host": worker.host, "gpu": card, "pid": worker.pid})
        super().__init__(World(0, count, 0, device, "gt", members=members, ranks_led=count))

    def __enter__(self) -> Watch:
        super().__enter__()
        self._began = time.monotonic()
        return self

    def __exit__(self, kind: Any, *rest: object) -> None:
        if kind is None and self._all_known and self.world.device.type == "cpu":
            # a case may take less: the load of the second around it is known, that of the case alone is not
            time.sleep(max(0.0, self._began + processor.SHORTEST_S - time.monotonic()))
        super().__exit__(kind, *rest)
        if not self._all_known:
            self.processor = None

    def judged(self, row: dict[str, Any], where: str) -> dict[str, Any]:
        """The row with what was watched meanwhile, and its verdict with the reasons about the machine."""
        machine = verdict.judge(self.facts(), verdict.MACHINE[self.world.device.type], where)
        return row | {
            "gpu": self.cards,
            "processor": self.processor,
            "verdict": verdict.together([machine, row["verdict"]]),
        }
